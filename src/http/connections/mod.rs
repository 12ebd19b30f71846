//! Bounds the connections of one listener, and keeps room for newcomers and for every tenant.
//!
//! - [`activity`]: when a connection was last used, and when it has used up its time
//! - [`memory`]: the memory that a connection takes
//! - [`queue`]: connections by their last use
//! - [`request`]: the open requests of a connection
//! - [`table`]: whose connections there are
//!
//! A connection has no holder until a request on it authenticates. Then it is held by that
//! request's tenant, and by [`Holder::Several`] once a second tenant has used it. A held connection
//! is never closed for a newcomer. Connections count by the memory that they take. At most three
//! quarters of it are held, so a quarter is for newcomers at all times: if there is no room, the
//! connection that was left idle for longest is closed. When more than three quarters would be
//! held, the holder of the most gives one up.
//!
//! A lock is taken when a connection is opened, closed, held first, used by a second tenant first,
//! and when its memory changes: when it begins or ceases to be idle, with its first long read, with
//! a long head that has no end, and when its open requests take twice what was counted for them, or
//! an eighth.
//! Other requests read atomics of their own connection only.

pub(super) mod activity;
mod memory;
mod queue;
pub(super) mod request;
mod table;
pub(super) mod unread_body;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::Request;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;

use self::activity::{Activity, millis_since};
use self::memory::Meter;
use self::queue::Rank;
use self::request::OpenRequest;
use self::table::{Table, Victims};
use crate::common::ids::TenantId;
use crate::telemetry::metrics::ConnectionMetrics;

/// Open requests of one connection that take no more than this are in its size already.
const REQUESTS_FREE: usize = 16 * 1024;

/// The bounds of one listener.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionBounds {
    /// The most connections.
    pub all: usize,
    /// The most connections of one peer address, if that is bounded.
    pub per_peer: Option<u32>,
    /// The time for the head of a request to arrive.
    pub head_timeout: Duration,
}

/// The connections of one listener.
pub(super) struct Connections {
    epoch: Instant,
    bounds: ConnectionBounds,
    table: Mutex<Table>,
    /// Wakes the newcomer that waits until an evicted connection is closed.
    closed: Notify,
    metrics: ConnectionMetrics,
}

/// The holder of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Holder {
    Tenant(TenantId),
    /// Several tenants, as behind a proxy; also administrators and other replicas.
    Several,
}

/// One connection, as long as the table knows it.
#[derive(Debug)]
pub(super) struct Connection {
    number: u64,
    address: IpAddr,
    peer: Option<table::Peer>,
    pub(super) activity: Arc<Activity>,
    /// Cancelled for the connection to end after its open requests.
    pub(super) leave: CancellationToken,
    /// Cancelled for the connection to end at once.
    pub(super) evicted: CancellationToken,
    /// A [`State`], changed under the table's lock.
    state: AtomicU8,
    /// The first tenant that held the connection.
    tenant: OnceLock<TenantId>,
    /// The place in its queue, changed under the table's lock.
    rank: AtomicU64,
    /// The bytes that it counts for, changed under the table's lock.
    size: AtomicUsize,
    /// The part of them that its buffers take, and the part for open requests.
    buffers: AtomicUsize,
    requests: AtomicUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    /// No request has authenticated.
    New = 0,
    OneTenant = 1,
    Several = 2,
    /// To end after its open requests.
    Leaving = 3,
    /// To end at once.
    Evicted = 4,
}

/// A connection that was let in. Leaves the table when dropped.
pub(super) struct Admitted {
    pub(super) connection: Arc<Connection>,
    connections: Arc<Connections>,
}

/// A request's way to its connection.
#[derive(Clone)]
pub(super) struct ConnectionHandle {
    connection: Arc<Connection>,
    connections: Arc<Connections>,
}

/// Why a newcomer does not get in now.
enum NotAdmitted {
    PeerIsFull,
    /// Evicted connections are not closed yet.
    NoRoomYet,
}

/// The refusal of one more connection: requests run on all that were looked at, and no other tenant
/// has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShareUsed {
    pub(super) held: usize,
    /// The most that all tenants together may hold, if all were as large.
    pub(super) max: usize,
}

impl Connections {
    pub(super) fn new(bounds: ConnectionBounds, metrics: ConnectionMetrics) -> Arc<Self> {
        Arc::new(Self {
            epoch: Instant::now(),
            table: Mutex::new(Table::new(bounds.all, bounds.per_peer)),
            closed: Notify::new(),
            bounds,
            metrics,
        })
    }

    /// Lets a newcomer in, for which another connection may have to go. Returns `None` if its peer
    /// has as many connections as one may have. `leave` ends all connections after their open
    /// requests.
    pub(super) async fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        leave: &CancellationToken,
    ) -> Option<Admitted> {
        loop {
            match self.try_admit(address, leave) {
                Ok(admitted) => return Some(admitted),
                Err(NotAdmitted::PeerIsFull) => {
                    self.metrics.refused.inc();
                    return None;
                }
                Err(NotAdmitted::NoRoomYet) => self.closed.notified().await,
            }
        }
    }

    fn try_admit(
        self: &Arc<Self>,
        address: IpAddr,
        leave: &CancellationToken,
    ) -> Result<Admitted, NotAdmitted> {
        let mut table = self.table.lock();
        if table.is_peer_full(address) {
            return Err(NotAdmitted::PeerIsFull);
        }
        self.end(&table.make_room_for_newcomer(millis_since(self.epoch)));
        if !table.has_room() {
            return Err(NotAdmitted::NoRoomYet);
        }
        let connection = Arc::new(Connection {
            number: table.next_number(),
            address,
            peer: table.count_peer(address),
            activity: Arc::new(Activity::new(self.epoch, self.bounds.head_timeout)),
            // A child token each: checking a token takes its lock.
            leave: leave.child_token(),
            evicted: CancellationToken::new(),
            state: AtomicU8::new(State::New as u8),
            tenant: OnceLock::new(),
            rank: AtomicU64::new(0),
            size: AtomicUsize::new(table.size_of_new()),
            buffers: AtomicUsize::new(memory::BARE),
            requests: AtomicUsize::new(0),
        });
        table.insert(connection.clone());
        self.show(&table);
        Ok(Admitted { connection, connections: self.clone() })
    }

    /// Closes the connection without a holder that was left idle for longest.
    pub(super) fn make_room(&self) {
        let mut table = self.table.lock();
        let Some(victim) = table.evict(millis_since(self.epoch)) else { return };
        self.show(&table);
        drop(table);
        self.end(&Victims { leaving: vec![], evicted: vec![victim] });
    }

    /// Notes on whose behalf a request is.
    fn claim(&self, connection: &Arc<Connection>, holder: Holder) -> Result<(), ShareUsed> {
        let mut table = self.table.lock();
        let claim = table.claim(connection, holder, millis_since(self.epoch));
        self.show(&table);
        drop(table);
        self.end(&claim?);
        Ok(())
    }

    /// Notes the memory that a connection takes.
    fn resize(&self, connection: &Connection) {
        let size = connection.buffers.load(Ordering::Relaxed);
        let size = size + connection.requests.load(Ordering::Relaxed);
        let mut table = self.table.lock();
        let victims = table.resize(connection, size, millis_since(self.epoch));
        self.show(&table);
        drop(table);
        self.end(&victims);
    }

    fn end(&self, victims: &Victims) {
        for victim in &victims.leaving {
            self.metrics.evicted_for_share.inc();
            victim.activity.set_leaving();
            victim.leave.cancel();
        }
        for victim in &victims.evicted {
            self.metrics.evicted_for_room.inc();
            victim.evicted.cancel();
        }
    }

    fn show(&self, table: &Table) {
        let (new, held) = table.counts();
        self.metrics.unauthenticated.set(i64::try_from(new).unwrap_or(i64::MAX));
        self.metrics.authenticated.set(i64::try_from(held).unwrap_or(i64::MAX));
    }
}

impl Connection {
    fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::New,
            1 => State::OneTenant,
            2 => State::Several,
            3 => State::Leaving,
            _ => State::Evicted,
        }
    }

    fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
        self.activity.set_authenticated(matches!(state, State::OneTenant | State::Several));
    }

    fn is_held_by(&self, tenant: &TenantId) -> bool {
        match self.state() {
            State::New => false,
            State::OneTenant => self.tenant.get() == Some(tenant),
            // Whoever else uses it changes nothing.
            State::Several | State::Leaving | State::Evicted => true,
        }
    }

    fn rank(&self) -> Rank {
        (self.rank.load(Ordering::Relaxed), self.number)
    }

    fn set_rank(&self, time: u64) {
        self.rank.store(time, Ordering::Relaxed);
    }

    pub(super) fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    fn set_size(&self, size: usize) {
        self.size.store(size, Ordering::Relaxed);
    }

    /// Notes the memory of the buffers. Returns true if it has changed.
    fn set_buffers(&self, bytes: usize) -> bool {
        self.buffers.swap(bytes, Ordering::Relaxed) != bytes
    }

    /// Takes note of the memory of open requests. Returns true if it counts otherwise now: that is
    /// seldom, so that requests do without the table's lock.
    fn update_requests(&self) -> bool {
        let counted = self.requests.load(Ordering::Relaxed);
        let open = self.activity.open_bytes();
        if open <= counted.max(REQUESTS_FREE) && open >= counted / 8 {
            return false;
        }
        let bytes = if open <= REQUESTS_FREE { 0 } else { open.next_power_of_two() };
        self.requests.swap(bytes, Ordering::Relaxed) != bytes
    }
}

impl ConnectionHandle {
    pub(super) fn address(&self) -> IpAddr {
        self.connection.address
    }

    /// Notes that a request of this tenant has authenticated. Refused if the connection has no
    /// holder, and the tenant may hold no more.
    pub(super) fn used_by(&self, tenant: &TenantId) -> Result<(), ShareUsed> {
        if self.connection.is_held_by(tenant) {
            return Ok(());
        }
        self.connections.claim(&self.connection, Holder::Tenant(tenant.clone()))
    }

    /// Notes that a request of an administrator or of another replica has authenticated.
    pub(super) fn used_by_operator(&self) {
        if matches!(self.connection.state(), State::New | State::OneTenant) {
            // Never refused: only tenants are.
            let _ = self.connections.claim(&self.connection, Holder::Several);
        }
    }
}

impl Admitted {
    pub(super) fn handle(&self) -> ConnectionHandle {
        let (connection, connections) = (self.connection.clone(), self.connections.clone());
        ConnectionHandle { connection, connections }
    }

    /// Notes that a request on the connection has begun.
    pub(super) fn begin(&self, request: &Request<impl Sized>) -> OpenRequest {
        let open = OpenRequest::new(self.connection.activity.clone(), request);
        if self.connection.update_requests() {
            self.connections.resize(&self.connection);
        }
        open
    }

    /// Notes that the connection has given its buffers back.
    pub(super) fn idle(&self) {
        if self.connection.set_buffers(memory::BARE) | self.connection.update_requests() {
            self.connections.resize(&self.connection);
        }
    }

    /// Follows the memory that the connection takes, by what arrives on its stream.
    pub(super) fn measured<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: T,
    ) -> impl AsyncRead + AsyncWrite + Unpin + use<T> {
        let Self { connection, connections } = self;
        let (connection, connections) = (connection.clone(), connections.clone());
        let mut meter = Meter::default();
        InspectReader::new(stream, move |bytes: &[u8]| {
            if bytes.is_empty() {
                return;
            }
            let buffers = meter.read(bytes, connection.activity.is_in_head());
            // Both, whatever the first one says.
            if connection.set_buffers(buffers) | connection.update_requests() {
                connections.resize(&connection);
            }
        })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut table = self.connections.table.lock();
        table.remove(&self.connection);
        self.connections.show(&table);
        drop(table);
        self.connections.closed.notify_one();
    }
}

#[cfg(test)]
#[path = "tests/connections.rs"]
mod tests;
