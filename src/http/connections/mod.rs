//! Bounds the connections of one listener, and keeps room for newcomers and for every tenant.
//!
//! - [`activity`]: when a connection was last used, and when it has used up its time
//! - [`queue`]: connections by their last use
//! - [`request`]: the open requests of a connection
//! - [`table`]: whose connections there are
//!
//! A connection has no holder until a request on it authenticates. Then it is held by that
//! request's tenant, and by [`Holder::Several`] once a second tenant has used it. A held connection
//! is never closed for a newcomer. At most three quarters of all connections are held, so a quarter
//! is for newcomers at all times: if there is no room, the one that was left idle for longest is
//! closed. When more than three quarters would be held, the holder of the most gives one up.
//!
//! A lock is taken when a connection is opened, closed, held first, and used by a second tenant
//! first. Other requests read atomics of their own connection only.

pub(super) mod activity;
mod queue;
pub(super) mod request;
mod table;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::activity::{Activity, millis_since};
use self::queue::Rank;
use self::table::{Claim, Table};
use crate::common::ids::TenantId;
use crate::telemetry::metrics::ConnectionMetrics;

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
    /// One for each connection. A newcomer waits here until an evicted connection is closed.
    permits: Arc<Semaphore>,
    table: Mutex<Table>,
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    /// No request has authenticated.
    New = 0,
    OneTenant = 1,
    Several = 2,
    /// To end after its open requests, or at once.
    Leaving = 3,
}

/// A connection that was let in. Leaves the table when dropped.
pub(super) struct Admitted {
    pub(super) connection: Arc<Connection>,
    connections: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

/// A request's way to its connection.
#[derive(Clone)]
pub(super) struct ConnectionHandle {
    connection: Arc<Connection>,
    connections: Arc<Connections>,
}

/// The refusal of one more connection: requests run on all that were looked at, and no other tenant
/// has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShareUsed {
    pub(super) held: usize,
    /// The most that all tenants together may hold.
    pub(super) max: usize,
}

impl Connections {
    pub(super) fn new(bounds: ConnectionBounds, metrics: ConnectionMetrics) -> Arc<Self> {
        Arc::new(Self {
            epoch: Instant::now(),
            permits: Arc::new(Semaphore::new(bounds.all)),
            table: Mutex::new(Table::new(bounds.all, bounds.per_peer)),
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
        if self.table.lock().is_peer_full(address) {
            self.metrics.refused.inc();
            return None;
        }
        let permit = match self.permits.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.make_room();
                // The evicted connection gives its permit back when it is closed.
                self.permits.clone().acquire_owned().await.ok()?
            }
        };
        let mut table = self.table.lock();
        let connection = Arc::new(Connection {
            number: table.next_number(),
            peer: table.count_peer(address),
            activity: Arc::new(Activity::new(self.epoch, self.bounds.head_timeout)),
            // A child token each: checking a token takes its lock.
            leave: leave.child_token(),
            evicted: CancellationToken::new(),
            state: AtomicU8::new(State::New as u8),
            tenant: OnceLock::new(),
            rank: AtomicU64::new(0),
        });
        table.insert(connection.clone());
        self.show(&table);
        Some(Admitted { connection, connections: self.clone(), _permit: permit })
    }

    /// Closes the connection without a holder that was left idle for longest.
    pub(super) fn make_room(&self) {
        let mut table = self.table.lock();
        let Some(victim) = table.evict(millis_since(self.epoch)) else { return };
        self.show(&table);
        drop(table);
        self.metrics.evicted_for_room.inc();
        victim.evicted.cancel();
    }

    /// Notes on whose behalf a request is.
    fn claim(&self, connection: &Arc<Connection>, holder: Holder) -> Result<(), ShareUsed> {
        let mut table = self.table.lock();
        let claim = table.claim(connection, holder, millis_since(self.epoch));
        self.show(&table);
        drop(table);
        match claim {
            Claim::Held => Ok(()),
            Claim::InPlaceOf(victim) => {
                self.metrics.evicted_for_share.inc();
                victim.activity.set_leaving();
                victim.leave.cancel();
                Ok(())
            }
            Claim::Refused(refusal) => Err(refusal),
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
            _ => State::Leaving,
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
            State::Several | State::Leaving => true,
        }
    }

    fn rank(&self) -> Rank {
        (self.rank.load(Ordering::Relaxed), self.number)
    }

    fn set_rank(&self, time: u64) {
        self.rank.store(time, Ordering::Relaxed);
    }
}

impl ConnectionHandle {
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
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut table = self.connections.table.lock();
        table.remove(&self.connection);
        self.connections.show(&table);
    }
}

#[cfg(test)]
#[path = "tests/connections.rs"]
mod tests;
