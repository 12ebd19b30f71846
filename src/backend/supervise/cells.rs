//! Runs the calls of suspects in cells: backends of their own, with one instance each, beside the
//! backend that everybody shares. [`suspects`](super::suspects) decides who is in a cell.
//!
//! A cell's process is started by its first call. When it ends, the cell ends with it: no restart
//! policy applies, since its members' next call is the start of another cell.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::restart_policy::{Failed, NextStart};
use super::serving_run::ServingRun;
use super::suspects::{Fault, Suspects};
use super::{CHECK_EVERY, InstanceSupervisor};
use crate::backend::connection::{CloseReason, Connection};
use crate::backend::{Backend, BackendRef, CANCEL_GRACE, RunState};
use crate::common::ids::TenantId;
use crate::config::{ServerConfig, Sharing, Transport};

/// A process that ends so long after its last call was not ended by a call, as far as one can know.
/// Shorter, and a tenant could have a process started again and again by calls that end it later.
const IDLE: Duration = Duration::from_secs(10);
/// The tenants that one line of the log names.
const LOGGED_MAX: usize = 10;

/// The part that a backend has in keeping tenants apart.
pub(in crate::backend) enum Isolation {
    /// Has one tenant, or can have no second process beside its own.
    None,
    /// The shared backend, which has the cells.
    Shared(Cells),
    /// A cell of a shared backend.
    Cell { shared: Weak<Backend>, number: u64 },
}

pub(in crate::backend) struct Cells {
    suspects: Mutex<Suspects>,
    /// The cells of the tenants that have one: a snapshot, mostly empty, that every call reads.
    placements: ArcSwap<HashMap<TenantId, Placement>>,
    running: TaskTracker,
    stop: CancellationToken,
}

#[derive(Clone)]
struct Placement {
    cell: Arc<Backend>,
    number: u64,
    refused_until: Option<Instant>,
    until: Instant,
}

/// A tenant whose calls kept ending the server: they are refused for this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantQuarantined {
    pub retry_after: Duration,
}

/// A tenant whose calls run apart, as the operator sees it.
pub struct Suspect {
    pub tenant: TenantId,
    /// Whether its calls are refused.
    pub is_quarantined: bool,
    /// When that ends, unless there is another crash.
    pub until: Timestamp,
}

/// The consequence of the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consequence {
    /// A failure like any other.
    Failure,
    /// A restart at once: a tenant may have caused the end.
    Pardoned,
    /// The end of a cell.
    CellEnds,
}

impl Isolation {
    pub(in crate::backend) fn of(config: &ServerConfig, quarantine: Duration) -> Self {
        let is_process = matches!(config.transport, Transport::Stdio(_));
        if !is_process || config.sharing != Sharing::Shared || config.exclusive {
            return Self::None;
        }
        Self::Shared(Cells {
            suspects: Mutex::new(Suspects::new(quarantine)),
            placements: ArcSwap::default(),
            running: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    fn cells(&self) -> Option<&Cells> {
        match self {
            Self::Shared(cells) => Some(cells),
            Self::None | Self::Cell { .. } => None,
        }
    }
}

impl BackendRef {
    /// Returns the backend for a tenant's calls: this one, or the tenant's cell.
    pub fn for_calls_of(self, tenant: &TenantId) -> Self {
        let Some(cells) = self.isolation.cells() else { return self };
        let cell = cells.placements.load().get(tenant).map(|it| it.cell.clone());
        match cell {
            Some(cell) => Self::of_cell(cell, self),
            None => self,
        }
    }
}

impl InstanceSupervisor {
    /// Returns when to start again after a run has failed. A cell does not.
    pub(super) fn crashed(&mut self, serving: &ServingRun, end: &CloseReason) -> Option<NextStart> {
        let (connection, up) = (&serving.run.ready.connection, serving.since.elapsed());
        connection.close(end);
        match self.backend.note_crash(connection) {
            Consequence::Failure => Some(self.fail(Failed::After(up), &end.to_string())),
            Consequence::Pardoned => {
                let next = self.policy.after_pardon(up, Instant::now());
                self.set_down(&end.to_string());
                self.set_state(RunState::Starting);
                Some(next)
            }
            Consequence::CellEnds => {
                self.set_state(RunState::Stopped);
                None
            }
        }
    }
}

impl Backend {
    /// Returns why a tenant's calls are refused, if they are.
    pub fn quarantine_of(&self, tenant: &TenantId) -> Option<TenantQuarantined> {
        let until = self.isolation.cells()?.placements.load().get(tenant)?.refused_until?;
        let retry_after = until.duration_since(Instant::now());
        (!retry_after.is_zero()).then_some(TenantQuarantined { retry_after })
    }

    /// Returns whether a tenant's calls go here. They do not while it has a cell.
    pub fn takes_calls_of(&self, tenant: &TenantId) -> bool {
        self.isolation.cells().is_none_or(|it| !it.placements.load().contains_key(tenant))
    }

    /// Returns the tenants whose calls run apart.
    pub fn suspects(&self) -> Vec<Suspect> {
        let Some(cells) = self.isolation.cells() else { return vec![] };
        let (now, today) = (Instant::now(), Timestamp::now());
        let placements = cells.placements.load();
        let mut suspects: Vec<_> = placements
            .iter()
            .map(|(tenant, placement)| {
                let refused_until = placement.refused_until.filter(|until| *until > now);
                let until = refused_until.unwrap_or(placement.until).duration_since(now);
                let until = today.checked_add(until).unwrap_or(today);
                let is_quarantined = refused_until.is_some();
                Suspect { tenant: tenant.clone(), is_quarantined, until }
            })
            .collect();
        suspects.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        suspects
    }

    /// Returns the cells, each with the first of its tenants.
    pub fn cells(&self) -> Vec<(TenantId, Arc<Self>)> {
        let Some(cells) = self.isolation.cells() else { return vec![] };
        let mut by_number: HashMap<u64, (TenantId, Arc<Self>)> = HashMap::new();
        for (tenant, placement) in &**cells.placements.load() {
            let new = || (tenant.clone(), placement.cell.clone());
            let (first, _) = by_number.entry(placement.number).or_insert_with(new);
            if tenant < first {
                *first = tenant.clone();
            }
        }
        by_number.into_values().collect()
    }

    pub(super) fn is_cell(&self) -> bool {
        matches!(self.isolation, Isolation::Cell { .. })
    }

    /// Notes that a run has ended which had calls. The members of an ended cell have another place
    /// from here on: callers who learn of the end look their backend up again.
    fn note_crash(self: &Arc<Self>, connection: &Connection) -> Consequence {
        let now = Instant::now();
        match &self.isolation {
            Isolation::None => Consequence::Failure,
            Isolation::Shared(cells) => {
                let tenants = connection.in_flight.tenants_at_close();
                let mut suspects = cells.suspects.lock();
                let fault = suspects.note_crash(tenants, now);
                self.place(cells, &suspects);
                match fault {
                    Fault::Server => Consequence::Failure,
                    Fault::Suspects => Consequence::Pardoned,
                }
            }
            Isolation::Cell { shared, number } => {
                let was_idle = connection.in_flight.was_idle_for(IDLE);
                Self::change_cells(shared, |suspects| match was_idle {
                    true => suspects.note_idle_cell_end(*number, now),
                    false => suspects.note_cell_crash(*number, now),
                });
                Consequence::CellEnds
            }
        }
    }

    /// Notes that a cell does not start: the server may not be able to run twice.
    pub(super) fn note_cell_failed(&self) {
        let Isolation::Cell { shared, .. } = &self.isolation else { return };
        let server = &self.id;
        tracing::warn!(
            %server,
            "a second process of server `{server}` does not start: the calls of tenants that may \
             end it are not kept apart for now; `exclusive = true` says that it cannot run twice"
        );
        Self::change_cells(shared, |suspects| suspects.disable(Instant::now()));
    }

    fn change_cells(shared: &Weak<Self>, change: impl FnOnce(&mut Suspects)) {
        let Some(shared) = shared.upgrade() else { return };
        if let Some(cells) = shared.isolation.cells() {
            let mut suspects = cells.suspects.lock();
            change(&mut suspects);
            shared.place(cells, &suspects);
        }
    }

    /// Directs the calls of suspects to their cells. Cells that are no more drain.
    fn place(self: &Arc<Self>, cells: &Cells, suspects: &Suspects) {
        let before = cells.placements.load_full();
        let mut placements = HashMap::new();
        for cell in suspects.cells() {
            let known = before.values().find(|it| it.number == cell.number);
            let backend = match known {
                Some(known) => known.cell.clone(),
                None => self.start_cell(cells, cell.number),
            };
            let placement = Placement {
                cell: backend,
                number: cell.number,
                refused_until: cell.refused_until,
                until: cell.until,
            };
            if known.is_none() {
                self.log_cell(&cell.members, cell.refused_until);
            }
            let members = cell.members.iter().cloned();
            placements.extend(members.map(|member| (member, placement.clone())));
        }
        let is_kept = |old: &Placement| placements.values().any(|it| it.number == old.number);
        let ended: Vec<_> =
            before.values().filter(|old| !is_kept(old)).map(|it| it.cell.clone()).collect();
        cells.placements.store(Arc::new(placements));
        if self.is_active() {
            self.update_up_metrics();
        }
        // Not before: whoever finds its cell draining looks its backend up again.
        for cell in ended {
            cell.drain(self.config.longest_call() + CANCEL_GRACE);
        }
    }

    fn start_cell(self: &Arc<Self>, cells: &Cells, number: u64) -> Arc<Self> {
        let cell = self.new_cell(number);
        cells.running.spawn(cell.clone().supervise_boxed(cells.stop.clone()));
        cell
    }

    /// Breaks the cycle of types: a backend supervises cells, which are backends.
    fn supervise_boxed(
        self: Arc<Self>,
        stop: CancellationToken,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.supervise(stop))
    }

    /// Returns how many tenants' calls run apart, and how many tenants are refused.
    pub(in crate::backend) fn suspects_len(&self) -> (usize, usize) {
        let Some(cells) = self.isolation.cells() else { return (0, 0) };
        let placements = cells.placements.load();
        let refused = placements.values().filter(|it| it.refused_until.is_some()).count();
        (placements.len() - refused, refused)
    }

    fn log_cell(&self, members: &[TenantId], refused_until: Option<Instant>) {
        let (server, count) = (&self.id, members.len());
        let names: Vec<_> =
            members.iter().take(LOGGED_MAX).map(|tenant| tenant.name().as_str()).collect();
        match (refused_until, &*names) {
            (Some(until), [tenant]) => {
                let again_in_s = until.duration_since(Instant::now()).as_secs();
                tracing::warn!(
                    %server, %tenant, again_in_s,
                    "tenant `{tenant}` is in quarantine for server `{server}`: its calls have \
                     ended a process of its own again and again"
                );
            }
            _ => tracing::warn!(
                %server, count, tenants = ?names,
                "server `{server}` has ended during calls of the same tenants: the calls of some \
                 run in a process of their own"
            ),
        }
    }
}

/// Ends cells whose time is over, until `stop`. Leaves no process behind.
pub(super) async fn run(backend: Arc<Backend>, stop: CancellationToken) {
    let Some(cells) = backend.isolation.cells() else { return };
    let expire = async {
        loop {
            sleep(CHECK_EVERY).await;
            if !cells.placements.load().is_empty() {
                let mut suspects = cells.suspects.lock();
                suspects.expire(Instant::now());
                backend.place(cells, &suspects);
            }
        }
    };
    tokio::select! {
        () = expire => {}
        () = stop.cancelled() => {}
    }
    {
        // No cell begins after this.
        let mut suspects = cells.suspects.lock();
        suspects.disable(Instant::now());
        backend.place(cells, &suspects);
    }
    cells.stop.cancel();
    cells.running.close();
    cells.running.wait().await;
}
