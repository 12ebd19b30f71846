//! The connections of one listener by their holders, and which of them goes when there is no room.
//!
//! All bounds are in bytes. A connection has the size that `memory` estimates, and at least its
//! share of the bytes if there are few descriptors. So one bound is that of both.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::queue::Queue;
use super::{Connection, Holder, ShareUsed, State, memory};

/// The most bytes of all connections together, as `memory` estimates them.
pub(super) const BYTES_MAX: usize = 96 * 1024 * 1024;
/// So much of the room is given up before it is needed: newcomers that come fast do not wait for
/// one eviction each.
const SPARE_PART: usize = 64;

#[derive(Debug)]
pub(super) struct Table {
    /// Connections that nobody holds, and may be closed at any time. Those that were told to leave
    /// are among them.
    free: Queue,
    by_holder: HashMap<Holder, Queue>,
    /// Each holder with the bytes of its connections.
    sizes: BTreeSet<(usize, Holder)>,
    /// The connections that are held, and their bytes.
    held: usize,
    held_bytes: usize,
    /// The bytes of evicted connections that are not closed yet.
    closing: usize,
    max: usize,
    size_min: usize,
    per_peer: Option<u32>,
    /// Empty if peers have no bound.
    peers: HashMap<Peer, u32>,
    admitted: u64,
}

/// A peer address. Of IPv6, the first 64 bits: whoever has one address there has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    V4(u32),
    V6(u64),
}

/// Connections that have to end for others.
#[derive(Debug, Default)]
pub(super) struct Victims {
    /// To end after their open requests.
    pub leaving: Vec<Arc<Connection>>,
    /// To end at once.
    pub evicted: Vec<Arc<Connection>>,
}

impl Table {
    /// Bounds connections to `all`, and to the bytes of [`BYTES_MAX`]. A quarter is kept for
    /// connections that nobody holds.
    pub(super) fn new(all: usize, per_peer: Option<u32>) -> Self {
        Self {
            free: Queue::default(),
            by_holder: HashMap::new(),
            sizes: BTreeSet::new(),
            held: 0,
            held_bytes: 0,
            closing: 0,
            max: BYTES_MAX,
            size_min: BYTES_MAX / all.max(1),
            per_peer,
            peers: HashMap::new(),
            admitted: 0,
        }
    }

    /// Returns the number of connections that nobody holds, and of the others.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.free.len(), self.held)
    }

    /// Returns the size of a connection of which nothing has arrived.
    pub(super) fn size_of_new(&self) -> usize {
        self.size_min.max(memory::BARE)
    }

    /// Returns true if there is room for one more connection now.
    pub(super) fn has_room(&self) -> bool {
        self.bytes() + self.closing + self.size_of_new() <= self.max
    }

    /// Evicts connections until there will be room for one more when they are closed, and a little
    /// more: the newcomers after it need not wait.
    pub(super) fn make_room_for_newcomer(&mut self, now: u64) -> Victims {
        let spare =
            if self.max / SPARE_PART > self.size_of_new() { self.max / SPARE_PART } else { 0 };
        self.evict_until(self.max - self.size_of_new() - spare, now)
    }

    pub(super) fn is_peer_full(&self, address: IpAddr) -> bool {
        let count = self.peers.get(&Peer::of(address)).copied().unwrap_or_default();
        self.per_peer.is_some_and(|max| count >= max)
    }

    /// Counts one more connection of a peer, if peers have a bound.
    pub(super) fn count_peer(&mut self, address: IpAddr) -> Option<Peer> {
        self.per_peer?;
        let peer = Peer::of(address);
        *self.peers.entry(peer).or_default() += 1;
        Some(peer)
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.admitted += 1;
        self.admitted
    }

    pub(super) fn insert(&mut self, connection: Arc<Connection>) {
        self.free.insert(connection);
    }

    pub(super) fn remove(&mut self, connection: &Connection) {
        if let Some(peer) = connection.peer
            && let Some(count) = self.peers.get_mut(&peer)
        {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&peer);
            }
        }
        if connection.state() == State::Evicted {
            self.closing -= connection.size();
        } else {
            self.take_out(connection);
        }
    }

    /// Takes out the connection that was left idle for longest, of those that nobody holds.
    pub(super) fn evict(&mut self, now: u64) -> Option<Arc<Connection>> {
        let victim = self.free.longest_idle(now)?;
        self.free.remove(&victim);
        self.closing += victim.size();
        victim.set_state(State::Evicted);
        Some(victim)
    }

    /// Notes the memory that a connection takes now. Others may have to end for it.
    pub(super) fn resize(&mut self, connection: &Connection, size: usize, now: u64) -> Victims {
        let size = size.max(self.size_min);
        if connection.state() == State::Evicted || connection.size() == size {
            return Victims::default();
        }
        match self.holder(connection) {
            None => self.free.resize(connection, size),
            Some(holder) => self.change(&holder, |queue| queue.resize(connection, size)),
        }
        let mut victims = Victims::default();
        while self.held_bytes > self.held_max() {
            let Some((_, largest)) = self.sizes.last() else { break };
            let Some(victim) = self.give_up(&largest.clone(), now) else { break };
            victims.leaving.push(victim);
        }
        victims.evicted = self.evict_until(self.max, now).evicted;
        victims
    }

    /// Notes that a request on behalf of `holder` came over this connection. Others may have to
    /// leave for it.
    pub(super) fn claim(
        &mut self,
        connection: &Arc<Connection>,
        holder: Holder,
        now: u64,
    ) -> Result<Victims, ShareUsed> {
        let mut victims = Victims::default();
        match self.holder(connection) {
            _ if matches!(connection.state(), State::Leaving | State::Evicted) => {}
            Some(Holder::Several) => {}
            Some(before) if before == holder => {}
            Some(_) => {
                self.take_out(connection);
                self.hold(connection, Holder::Several);
            }
            None => {
                victims.leaving = self.make_room(connection.size(), &holder, now)?;
                self.take_out(connection);
                self.hold(connection, holder);
            }
        }
        Ok(victims)
    }

    /// Makes room for one more connection of `holder`, if there is none: the holder of the most
    /// gives some up. A tenant that has the most itself is refused rather than an open request of
    /// its own ended.
    fn make_room(
        &mut self,
        size: usize,
        holder: &Holder,
        now: u64,
    ) -> Result<Vec<Arc<Connection>>, ShareUsed> {
        let mut leaving = vec![];
        while self.held_bytes + size > self.held_max() {
            let own = self.by_holder.get(holder).map_or(0, Queue::bytes);
            let Some((most, largest)) = self.sizes.last() else { break };
            let from = if own + size > *most { holder } else { largest }.clone();
            let Some(victim) = self.longest_idle_of(&from, now) else { break };
            if from == *holder && *holder != Holder::Several && victim.activity.is_busy() {
                let held = self.by_holder.get(holder).map_or(0, Queue::len);
                let average = own.max(size) / held.max(1);
                return Err(ShareUsed { held, max: self.held_max() / average.max(1) });
            }
            self.release(&victim);
            leaving.push(victim);
        }
        Ok(leaving)
    }

    /// Lets a holder give up the connection that was left idle for longest.
    fn give_up(&mut self, holder: &Holder, now: u64) -> Option<Arc<Connection>> {
        let victim = self.longest_idle_of(holder, now)?;
        self.release(&victim);
        Some(victim)
    }

    fn longest_idle_of(&mut self, holder: &Holder, now: u64) -> Option<Arc<Connection>> {
        self.by_holder.get_mut(holder)?.longest_idle(now)
    }

    /// Makes a connection one that nobody holds, and that has to leave.
    fn release(&mut self, connection: &Arc<Connection>) {
        self.take_out(connection);
        connection.set_state(State::Leaving);
        self.free.insert(connection.clone());
    }

    fn evict_until(&mut self, bytes_max: usize, now: u64) -> Victims {
        let mut victims = Victims::default();
        while self.bytes() > bytes_max {
            let Some(victim) = self.evict(now) else { break };
            victims.evicted.push(victim);
        }
        victims
    }

    /// Returns the bytes of all connections that are to stay.
    fn bytes(&self) -> usize {
        self.free.bytes() + self.held_bytes
    }

    fn held_max(&self) -> usize {
        self.max - self.max / 4
    }

    /// Returns who holds a connection.
    fn holder(&self, connection: &Connection) -> Option<Holder> {
        match connection.state() {
            State::New | State::Leaving | State::Evicted => None,
            State::OneTenant => connection.tenant.get().cloned().map(Holder::Tenant),
            State::Several => Some(Holder::Several),
        }
    }

    fn hold(&mut self, connection: &Arc<Connection>, holder: Holder) {
        let state = match &holder {
            Holder::Tenant(tenant) => {
                connection.tenant.get_or_init(|| tenant.clone());
                State::OneTenant
            }
            Holder::Several => State::Several,
        };
        connection.set_state(state);
        self.change(&holder, |queue| queue.insert(connection.clone()));
    }

    /// Takes a connection from where it is, if it is anywhere.
    fn take_out(&mut self, connection: &Connection) {
        match self.holder(connection) {
            Some(holder) => self.change(&holder, |queue| {
                queue.remove(connection);
            }),
            None => {
                self.free.remove(connection);
            }
        }
    }

    /// Changes the connections of a holder, and what is known about them all.
    fn change(&mut self, holder: &Holder, change: impl FnOnce(&mut Queue)) {
        let queue = self.by_holder.entry(holder.clone()).or_default();
        let (count, bytes) = (queue.len(), queue.bytes());
        change(queue);
        self.held = self.held - count + queue.len();
        self.held_bytes = self.held_bytes - bytes + queue.bytes();
        self.sizes.remove(&(bytes, holder.clone()));
        if queue.len() == 0 {
            self.by_holder.remove(holder);
        } else {
            self.sizes.insert((queue.bytes(), holder.clone()));
        }
    }
}

#[cfg(test)]
impl Table {
    /// Returns the number of connections of each holder, the smallest first.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> {
        self.sizes.iter().map(|(_, holder)| self.by_holder[holder].len())
    }

    /// Returns the bytes of all connections that are not closed.
    pub(super) fn bytes_not_closed(&self) -> usize {
        self.bytes() + self.closing
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts() == (0, 0)
            && self.by_holder.is_empty()
            && self.sizes.is_empty()
            && self.peers.is_empty()
            && self.bytes_not_closed() == 0
    }
}

impl Peer {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.to_bits()),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }
}
