//! All servers at one moment: who holds which slot, and who waits. Taken by looking at the very
//! tables that the calls go through, so it cannot disagree with them for long.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::backend::connection::live_calls::LiveCall;
use crate::backend::instance::pool::InstanceStatus;
use crate::backend::queue::WaitingCall;
use crate::backend::{Backend, RunState};
use crate::common::ids::ServerId;
use crate::registry::{Registry, Server};

/// Waiting calls of one server that are shown one by one.
pub const LINE_MAX: usize = 60;
/// Instances of one server that are shown one by one.
const INSTANCES_MAX: usize = 64;

/// One moment on both clocks: that of deadlines, and that of people. Kept for as long as snapshots
/// are compared, so that one moment never has two times.
#[derive(Clone, Copy)]
pub struct Clocks {
    at: Timestamp,
    now: Instant,
}

pub struct Snapshot {
    clocks: Clocks,
    pub now: Instant,
    pub servers: Vec<ServerSnapshot>,
}

pub struct ServerSnapshot {
    pub id: ServerId,
    pub state: &'static str,
    pub reason: Option<String>,
    pub since: Option<Timestamp>,
    pub is_paused: bool,
    pub slots: u32,
    /// How many of the slots are kept for tenants that hold few or none.
    pub kept: u32,
    pub taken: u32,
    pub kept_free: u32,
    pub waiting: usize,
    pub oldest: Option<Instant>,
    pub instances: Vec<InstanceSnapshot>,
    /// Instances that are not in the list.
    pub more_instances: usize,
    pub line: Vec<WaitingCall>,
}

pub struct InstanceSnapshot {
    /// The tenant of a process of its own; and where each session has one, the session.
    pub owner: Option<String>,
    /// From 0.
    pub number: usize,
    pub state: &'static str,
    /// The calls that it may have at once now, and at most.
    pub limit: u32,
    pub limit_max: u32,
    pub calls: Vec<LiveCall>,
}

impl Clocks {
    pub fn now() -> Self {
        Self { at: Timestamp::now(), now: Instant::now() }
    }
}

impl Snapshot {
    pub fn take(registry: &Registry, clocks: Clocks) -> Self {
        let servers = registry.servers().iter().map(|it| ServerSnapshot::of(it)).collect();
        Self::of(clocks, servers)
    }

    pub(super) fn of(clocks: Clocks, servers: Vec<ServerSnapshot>) -> Self {
        Self { clocks, now: Instant::now(), servers }
    }

    pub fn at(&self) -> i64 {
        self.millis(self.now)
    }

    /// Converts a time of the clock of deadlines to milliseconds since 1970.
    pub fn millis(&self, time: Instant) -> i64 {
        let Clocks { at, now } = self.clocks;
        let at = at.as_millisecond();
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        match time.checked_duration_since(now) {
            Some(ahead) => at.saturating_add(millis(ahead)),
            None => at.saturating_sub(millis(now.duration_since(time))),
        }
    }
}

impl ServerSnapshot {
    /// Returns a server without slots.
    pub(super) fn new(id: ServerId) -> Self {
        Self {
            id,
            state: "ready",
            reason: None,
            since: None,
            is_paused: false,
            slots: 0,
            kept: 0,
            taken: 0,
            kept_free: 0,
            waiting: 0,
            oldest: None,
            instances: vec![],
            more_instances: 0,
            line: vec![],
        }
    }

    fn of(server: &Server) -> Self {
        let mut this = Self::new(server.id().clone());
        match server.shared() {
            Some(backend) => {
                let instances = backend.instances();
                let state = backend.state();
                this.state = state.as_str();
                let alike = instances.iter().filter(|it| it.state.as_str() == this.state);
                this.since = alike.map(|it| it.since).min();
                let down = backend.down();
                this.since = down.as_ref().map(|down| down.since).or(this.since);
                this.reason = down.and_then(|down| down.reason).map(|it| it.to_string());
                this.add(backend, None);
                for (tenant, cell) in backend.cells() {
                    this.add(&cell, Some(format!("{tenant}, apart")));
                }
            }
            None => {
                let owned = server.owned();
                this.state = match server {
                    Server::PerSession(_) => "per_session",
                    _ => "per_tenant",
                };
                for owned in owned {
                    let session = owned.session.as_ref().map(|session| session.short());
                    let owner = match session {
                        Some(session) => format!("{}, {session}", owned.tenant),
                        None => owned.tenant.to_string(),
                    };
                    this.add(&owned.backend, Some(owner));
                }
            }
        }
        this
    }

    /// Adds a backend of the server: its instances behind the others, its line behind the others'.
    fn add(&mut self, backend: &Backend, owner: Option<String>) {
        let queue = backend.queue().view(LINE_MAX);
        self.slots += queue.slots;
        self.kept += queue.reserved;
        self.taken += queue.taken;
        self.kept_free += queue.reserved_free;
        self.waiting += queue.waiting;
        self.is_paused |= backend.queue().is_held();
        self.oldest = self.oldest.into_iter().chain(queue.oldest).min();
        self.line.extend(queue.line);
        self.line.truncate(LINE_MAX);
        let limit_max = backend.config().max_in_flight;
        for (number, instance) in backend.instances().iter().enumerate() {
            if self.instances.len() >= INSTANCES_MAX {
                self.more_instances += 1;
                continue;
            }
            let owner = owner.clone();
            self.instances.push(InstanceSnapshot::of(instance, number, limit_max, owner));
        }
    }
}

impl InstanceSnapshot {
    fn of(status: &InstanceStatus, number: usize, limit_max: u32, owner: Option<String>) -> Self {
        let limit = match &status.state {
            RunState::Ready(_) => status.in_flight().map_or(0, |(_, limit)| limit),
            _ => 0,
        };
        let (state, calls) = (status.state.as_str(), status.live_calls());
        Self { owner, number, state, limit, limit_max, calls }
    }
}
