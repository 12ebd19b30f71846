//! The connections of one listener by their holders, and which of them goes when there is no room.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::queue::Queue;
use super::{Connection, Holder, ShareUsed, State};

#[derive(Debug)]
pub(super) struct Table {
    /// Connections that nobody holds, and may be closed at any time. Those that were told to leave
    /// are among them.
    free: Queue,
    by_holder: HashMap<Holder, Queue>,
    /// Each holder with the number of its connections.
    sizes: BTreeSet<(usize, Holder)>,
    held: usize,
    held_max: usize,
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

/// The end of a holder's claim to a connection.
#[derive(Debug)]
pub(super) enum Claim {
    Held,
    /// Another connection has to leave, which its holder no longer holds.
    InPlaceOf(Arc<Connection>),
    Refused(ShareUsed),
}

impl Table {
    /// A quarter is kept for connections that nobody holds.
    pub(super) fn new(max: usize, per_peer: Option<u32>) -> Self {
        Self {
            free: Queue::default(),
            by_holder: HashMap::new(),
            sizes: BTreeSet::new(),
            held: 0,
            held_max: (max - max.div_ceil(4)).max(1),
            per_peer,
            peers: HashMap::new(),
            admitted: 0,
        }
    }

    /// Returns the number of connections that nobody holds, and of the others.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.free.len(), self.held)
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
        self.take_out(connection);
    }

    /// Takes out the connection that was left idle for longest, of those that nobody holds.
    pub(super) fn evict(&mut self, now: u64) -> Option<Arc<Connection>> {
        let victim = self.free.longest_idle(now)?;
        self.free.remove(&victim);
        victim.set_state(State::Leaving);
        Some(victim)
    }

    pub(super) fn claim(
        &mut self,
        connection: &Arc<Connection>,
        holder: Holder,
        now: u64,
    ) -> Claim {
        match self.holder(connection) {
            _ if connection.state() == State::Leaving => Claim::Held,
            Some(Holder::Several) => Claim::Held,
            Some(before) if before == holder => Claim::Held,
            Some(_) => {
                self.take_out(connection);
                self.hold(connection, Holder::Several);
                Claim::Held
            }
            None => {
                let victim = match self.make_room(&holder, now) {
                    Ok(victim) => victim,
                    Err(refusal) => return Claim::Refused(refusal),
                };
                self.take_out(connection);
                self.hold(connection, holder);
                victim.map_or(Claim::Held, Claim::InPlaceOf)
            }
        }
    }

    /// Makes room for one more connection of `holder`, if there is none: the holder of the most
    /// gives one up. A tenant that has the most itself is refused rather than an open request of
    /// its own ended.
    fn make_room(
        &mut self,
        holder: &Holder,
        now: u64,
    ) -> Result<Option<Arc<Connection>>, ShareUsed> {
        if self.held < self.held_max {
            return Ok(None);
        }
        let own = self.by_holder.get(holder).map_or(0, Queue::len);
        let Some((most, largest)) = self.sizes.last() else { return Ok(None) };
        let from = if own + 1 > *most { holder } else { largest }.clone();
        let victim = self.by_holder.get_mut(&from).and_then(|queue| queue.longest_idle(now));
        let Some(victim) = victim else { return Ok(None) };
        if from == *holder && *holder != Holder::Several && victim.activity.is_busy() {
            return Err(ShareUsed { held: own, max: self.held_max });
        }
        self.take_out(&victim);
        victim.set_state(State::Leaving);
        self.free.insert(victim.clone());
        Ok(Some(victim))
    }

    /// Returns who holds a connection.
    fn holder(&self, connection: &Connection) -> Option<Holder> {
        match connection.state() {
            State::New | State::Leaving => None,
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
        let queue = self.by_holder.entry(holder.clone()).or_default();
        queue.insert(connection.clone());
        let size = queue.len();
        self.held += 1;
        self.sizes.remove(&(size - 1, holder.clone()));
        self.sizes.insert((size, holder));
    }

    /// Takes a connection from where it is, if it is anywhere.
    fn take_out(&mut self, connection: &Connection) {
        let Some(holder) = self.holder(connection) else {
            self.free.remove(connection);
            return;
        };
        let Some(queue) = self.by_holder.get_mut(&holder) else { return };
        if queue.remove(connection).is_none() {
            return;
        }
        let size = queue.len();
        self.held -= 1;
        self.sizes.remove(&(size + 1, holder.clone()));
        if size == 0 {
            self.by_holder.remove(&holder);
        } else {
            self.sizes.insert((size, holder));
        }
    }
}

#[cfg(test)]
impl Table {
    /// Returns the number of connections of each holder, the smallest first.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> {
        self.sizes.iter().map(|(size, _)| *size)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts() == (0, 0)
            && self.by_holder.is_empty()
            && self.sizes.is_empty()
            && self.peers.is_empty()
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
