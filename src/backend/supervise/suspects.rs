//! Finds out whose calls end a shared server. Plain data: no clock, no lock, no process.
//!
//! A process that ends while many tenants' calls are in flight says little about any of them: a
//! hostile tenant can end it whenever an innocent one is busy. So a tenant is never judged by a
//! process that it shares. Suspects are put into a **cell**, a process of their own:
//!
//! ```text
//!   in flight at two crashes of the shared process: suspects
//!        │ the half that was written to last
//!        ▼
//!      cell ──cell crashes──▶ the others are cleared; the cell is halved
//!        │  └──shared process crashes──▶ the cell is cleared; half of the others is next
//!        ▼
//!   cell of one ──crashes three times──▶ quarantined: this tenant's calls are refused
//! ```
//!
//! The cell is a new process, and the shared process is new after its crash. So neither has had a
//! call of the other's suspects, and a delayed crash is told apart as well. Only a process that one
//! tenant alone has ever used counts against that tenant. Hence nobody else can have it refused.
//!
//! Every crash halves the suspects, so that a tenant is found after few. Those crashes say nothing
//! against the server: it restarts at once ([`Fault::Suspects`]). Crashes that clear everybody, and
//! those beyond [`PARDONS_MAX`], count against the server as ever.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::common::ids::TenantId;

/// Crashes are remembered for this long, and so is a tenant in a cell without another crash. A
/// server that ends less often than twice in this time needs no help.
pub(crate) const MEMORY: Duration = Duration::from_secs(600);
/// The crashes that are remembered: two make a suspect, more rank no better.
const CRASHES_MAX: usize = 8;
/// The crashes of a tenant's own cell after which the tenant is refused.
const CRASHES_OF_ONE: usize = 3;
/// The crashes within [`MEMORY`] that do not count against the server. Enough to find one tenant of
/// 256 (eight halvings) and to spare, and few enough that restarts cost little.
pub(crate) const PARDONS_MAX: usize = 16;
/// The cells of one server: one for suspects, the others for tenants that have crashed alone. Each
/// may be a process.
pub(crate) const CELLS_MAX: usize = 8;

/// The verdict on a crash of the shared process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Counts against the server.
    Server,
    /// One of the suspects may have caused it.
    Suspects,
}

/// The tenants whose calls run apart from all others', in one process.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// Never repeats. A cell is another one after each crash.
    pub(crate) number: u64,
    pub(crate) members: Vec<TenantId>,
    /// Ends then, if it does not crash before.
    pub(crate) until: Instant,
    /// Calls of its only member are refused until then.
    pub(crate) refused_until: Option<Instant>,
    /// When it crashed while it had this one member, the latest [`CRASHES_OF_ONE`].
    crashes: VecDeque<Instant>,
}

impl Cell {
    /// Returns whether it serves to find out which suspect it is.
    fn is_trial(&self) -> bool {
        self.crashes.is_empty()
    }
}

struct Crash {
    at: Instant,
    /// The tenants that were in flight, except those that were cleared since.
    tenants: Vec<TenantId>,
}

pub(crate) struct Suspects {
    /// How long a tenant is refused.
    quarantine: Duration,
    crashes: VecDeque<Crash>,
    /// The suspects of the present search, the likeliest first. Those in the trial cell included.
    suspects: Vec<TenantId>,
    cells: Vec<Cell>,
    /// When crashes were pardoned.
    pardons: VecDeque<Instant>,
    /// No cells before this time: they do not start.
    disabled_until: Option<Instant>,
    next_number: u64,
}

impl Suspects {
    pub(crate) fn new(quarantine: Duration) -> Self {
        Self {
            quarantine,
            crashes: VecDeque::new(),
            suspects: vec![],
            cells: vec![],
            pardons: VecDeque::new(),
            disabled_until: None,
            next_number: 0,
        }
    }

    pub(crate) fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Notes a crash of the shared process. `tenants` were in flight, those written to last first.
    pub(crate) fn note_crash(&mut self, tenants: Vec<TenantId>, now: Instant) -> Fault {
        self.expire(now);
        self.clear_trial(&tenants);
        self.suspects.retain(|suspect| tenants.contains(suspect));
        if self.crashes.len() == CRASHES_MAX {
            self.crashes.pop_front();
        }
        self.crashes.push_back(Crash { at: now, tenants });
        if self.suspects.is_empty() {
            self.suspects = self.seen_twice();
        }
        let is_disabled = self.disabled_until.is_some();
        let is_full = self.cells.len() >= CELLS_MAX || self.pardons.len() >= PARDONS_MAX;
        if self.suspects.is_empty() || is_disabled || is_full {
            self.suspects.clear();
            return Fault::Server;
        }
        self.pardons.push_back(now);
        self.open_trial(now);
        Fault::Suspects
    }

    /// Notes a crash of a cell. A cell that has ended meanwhile says nothing any more.
    pub(crate) fn note_cell_crash(&mut self, number: u64, now: Instant) {
        self.expire(now);
        let Some(index) = self.cells.iter().position(|cell| cell.number == number) else { return };
        let mut cell = self.cells.remove(index);
        if cell.members.len() > 1 {
            self.suspects = cell.members;
            return self.open_trial(now);
        }
        if cell.is_trial() {
            // That explains the crashes before.
            self.suspects.clear();
            self.crashes.clear();
            self.pardons.clear();
        }
        if cell.crashes.len() == CRASHES_OF_ONE {
            cell.crashes.pop_front();
        }
        cell.crashes.push_back(now);
        let is_proven = cell.crashes.len() == CRASHES_OF_ONE;
        cell.refused_until = is_proven.then(|| now + self.quarantine);
        cell.until = now + MEMORY;
        cell.number = self.number();
        self.cells.push(cell);
    }

    /// Notes that a cell has ended while it had nothing to do. With one member, that says nothing
    /// against it: somebody else may have ended the process, and only its own is harmed.
    pub(crate) fn note_idle_cell_end(&mut self, number: u64, now: Instant) {
        let next = self.number();
        match self.cells.iter_mut().find(|cell| cell.number == number && cell.members.len() == 1) {
            Some(cell) => cell.number = next,
            None => self.note_cell_crash(number, now),
        }
    }

    /// Ends all cells, and makes none for a time: a second process does not start beside the first.
    pub(crate) fn disable(&mut self, now: Instant) {
        self.disabled_until = Some(now + MEMORY);
        self.cells.clear();
        self.suspects.clear();
        self.crashes.clear();
    }

    /// Forgets what is too long ago.
    pub(crate) fn expire(&mut self, now: Instant) {
        let is_old = |at: &Instant| *at + MEMORY <= now;
        while self.crashes.pop_front_if(|crash| is_old(&crash.at)).is_some() {}
        while self.pardons.pop_front_if(|at| is_old(at)).is_some() {}
        self.disabled_until.take_if(|until| *until <= now);
        for cell in &mut self.cells {
            while cell.crashes.len() > 1 && cell.crashes.pop_front_if(|at| is_old(at)).is_some() {}
            cell.refused_until.take_if(|until| *until <= now);
        }
        if self.cells.iter().any(|cell| cell.is_trial() && cell.until <= now) {
            self.suspects.clear();
        }
        self.cells.retain(|cell| cell.until > now);
    }

    /// Ends the trial cell. Its members had no call in the shared process when that crashed, except
    /// those who were in flight: their calls were in another instance before.
    fn clear_trial(&mut self, in_flight: &[TenantId]) {
        let Some(index) = self.cells.iter().position(Cell::is_trial) else { return };
        let mut cleared = self.cells.remove(index).members;
        cleared.retain(|member| !in_flight.contains(member));
        self.suspects.retain(|suspect| !cleared.contains(suspect));
        for crash in &mut self.crashes {
            crash.tenants.retain(|tenant| !cleared.contains(tenant));
        }
    }

    /// Returns those in flight at the last crash who were so at an earlier one, too.
    fn seen_twice(&self) -> Vec<TenantId> {
        let mut crashes = self.crashes.iter().rev();
        let Some(last) = crashes.next() else { return vec![] };
        let earlier: Vec<_> = crashes.collect();
        let was_seen = |tenant: &&TenantId| earlier.iter().any(|it| it.tenants.contains(tenant));
        last.tenants.iter().filter(was_seen).cloned().collect()
    }

    /// Puts the likelier half of the suspects into a cell.
    fn open_trial(&mut self, now: Instant) {
        let members = self.suspects[..self.suspects.len().div_ceil(2)].to_vec();
        let (number, until) = (self.number(), now + MEMORY);
        let (refused_until, crashes) = (None, VecDeque::new());
        self.cells.push(Cell { number, members, until, refused_until, crashes });
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

#[cfg(test)]
#[path = "tests/suspects.rs"]
mod tests;
