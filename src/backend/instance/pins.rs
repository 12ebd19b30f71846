//! The tools of pinned servers (`pin = true`): those whose definition is not the one that was approved are held back.
//!
//! What was approved stands in the store. Whoever reads it there tells it here; each run of a server brings the tools it
//! has listed; both are compared whenever either is another. As long as nobody has said what was approved, all is held
//! back.
//!
//! Whether a run is pinned is what its server's configuration said when it was started. So a server that a new
//! configuration pins is known here by its first list, and one that is no longer pinned stays, for the runs it has left.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use prometheus::IntGauge;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use super::tools::{Tool, ToolSet};
use crate::backend::changes::mailbox::List;
use crate::backend::connection::Connection;
use crate::common::ids::ServerId;
use crate::pins::Hash;
use crate::telemetry::metrics::Metrics;

/// How long a server that was never seen before waits until what it has is approved.
const FIRST_USE_WAIT: Duration = Duration::from_secs(5);
/// Names in one line of the log.
const NAMES_MAX: usize = 10;

/// The definitions that were approved, by the names of the tools.
pub type Approved = HashMap<String, Hash>;

/// All pinned servers.
#[derive(Default)]
pub struct Pins {
    metrics: Metrics,
    servers: RwLock<BTreeMap<ServerId, Arc<Pinned>>>,
    /// Told when a server has listed its tools.
    listed: Notify,
}

struct Pinned {
    held: IntGauge,
    shelf: Mutex<Shelf>,
    /// Whether it is known what was approved.
    is_known: watch::Sender<bool>,
}

#[derive(Default)]
struct Shelf {
    /// Nothing, as long as that is not known.
    approved: Option<Approved>,
    runs: Vec<OfRun>,
    /// Whether a list is new here.
    is_fresh: bool,
    /// What is held back and was told to the operator.
    told: BTreeSet<String>,
}

/// What one run of the server has.
struct OfRun {
    connection: Weak<Connection>,
    tools: Arc<ToolSet>,
}

impl Pins {
    /// With these servers pinned.
    pub fn new<'a>(servers: impl Iterator<Item = &'a ServerId>, metrics: &Metrics) -> Self {
        let pins = Self { metrics: metrics.clone(), ..Self::default() };
        servers.for_each(|server| drop(pins.known(server)));
        pins
    }

    /// The servers that are pinned, or were.
    pub fn servers(&self) -> Vec<ServerId> {
        self.servers.read().keys().cloned().collect()
    }

    fn get(&self, server: &ServerId) -> Option<Arc<Pinned>> {
        self.servers.read().get(server).cloned()
    }

    /// A server that is pinned; known from now on, if it was not.
    fn known(&self, server: &ServerId) -> Arc<Pinned> {
        if let Some(pinned) = self.get(server) {
            return pinned;
        }
        let new = || Pinned {
            held: self.metrics.held_tools(server.as_str()),
            shelf: Mutex::default(),
            is_known: watch::Sender::new(false),
        };
        self.servers.write().entry(server.clone()).or_insert_with(|| Arc::new(new())).clone()
    }

    /// Waits until a server has listed its tools.
    pub async fn listed(&self) {
        self.listed.notified().await;
    }

    /// What the runs of a server have now.
    pub fn tools(&self, server: &ServerId) -> Vec<Arc<ToolSet>> {
        let Some(pinned) = self.get(server) else { return vec![] };
        let mut shelf = pinned.shelf.lock();
        shelf.clear_away();
        shelf.runs.iter().map(|run| run.tools.clone()).collect()
    }

    /// Whether a server has listed its tools since this was last asked.
    pub fn take_fresh(&self, server: &ServerId) -> bool {
        let pinned = self.get(server);
        pinned.is_some_and(|pinned| std::mem::take(&mut pinned.shelf.lock().is_fresh))
    }

    /// What was asked for by [`Pins::take_fresh`] could not be made use of.
    pub fn set_fresh(&self, server: &ServerId, is_fresh: bool) {
        if let Some(pinned) = self.get(server) {
            pinned.shelf.lock().is_fresh |= is_fresh;
        }
    }

    /// What was approved of a server; nothing if it was never seen. Those who listen hear if tools come or go by it.
    pub fn set_approved(&self, server: &ServerId, approved: Option<Approved>) {
        let Some(pinned) = self.get(server) else { return };
        let is_known = approved.is_some();
        let changed: Vec<_> = {
            let mut shelf = pinned.shelf.lock();
            shelf.clear_away();
            shelf.approved = approved;
            let judged = shelf.runs.iter().filter(|run| shelf.judge(&run.tools));
            judged.filter_map(|run| run.connection.upgrade()).collect()
        };
        pinned.tell(server);
        pinned.is_known.send_replace(is_known);
        for connection in changed {
            connection.recipients.changes.list_changed(List::Tools);
        }
    }

    /// What a run of a pinned server has now; until it is known what was approved, all of it is held back. Waits a
    /// moment for that.
    pub(crate) async fn enter(
        &self,
        server: &ServerId,
        tools: &Arc<ToolSet>,
        connection: &Arc<Connection>,
        deadline: Instant,
    ) {
        let pinned = self.known(server);
        pinned.shelf.lock().put(tools, connection);
        pinned.tell(server);
        self.listed.notify_one();
        let mut is_known = pinned.is_known.subscribe();
        let deadline = deadline.min(Instant::now() + FIRST_USE_WAIT);
        if timeout_at(deadline, is_known.wait_for(|is_known| *is_known)).await.is_err() {
            tracing::warn!(%server, "what was approved of server `{server}` cannot be read: all its tools are held back");
        }
    }
}

impl Pinned {
    /// Counts what is held back, and tells the operator of what was not before.
    fn tell(&self, server: &ServerId) {
        let mut shelf = self.shelf.lock();
        let held = shelf.held();
        self.held.set(held.len() as i64);
        // As long as nothing is known, that is what the operator is told.
        let is_known = shelf.approved.is_some();
        if is_known && !held.is_subset(&shelf.told) {
            let tools: Vec<_> = held.iter().take(NAMES_MAX).collect();
            tracing::warn!(
                %server, held = held.len(), ?tools,
                "tools of server `{server}` are held back, since they are not as they were approved: \
                 `trunkline pin list {server}` shows them"
            );
        }
        if is_known {
            shelf.told = held;
        }
    }
}

impl Shelf {
    /// In place of what the run had before.
    fn put(&mut self, tools: &Arc<ToolSet>, connection: &Arc<Connection>) {
        self.clear_away();
        self.judge(tools);
        let is_same = |run: &OfRun| std::ptr::eq(run.connection.as_ptr(), Arc::as_ptr(connection));
        if let Some(at) = self.runs.iter().position(is_same) {
            let before = self.runs.swap_remove(at).tools;
            // Calls that found a tool there and are still waiting would get the changed one.
            let is_held = |tool: &&Tool| tools.get(tool.name()).is_some_and(|new| new.is_held());
            for tool in before.all().filter(is_held) {
                tool.set_held(true);
            }
        }
        self.runs.push(OfRun { connection: Arc::downgrade(connection), tools: tools.clone() });
        self.is_fresh = true;
    }

    /// Holds back what is not approved. Says whether that made a difference.
    fn judge(&self, tools: &ToolSet) -> bool {
        let mut is_different = false;
        for tool in tools.all() {
            let approved = self.approved.as_ref().and_then(|approved| approved.get(tool.name()));
            let is_held = approved.is_none_or(|hash| *hash != tool.hash());
            is_different |= tool.set_held(is_held);
        }
        is_different
    }

    /// Without runs that are over.
    fn clear_away(&mut self) {
        let runs = |run: &OfRun| run.connection.upgrade().is_some_and(|it| !it.is_closed());
        self.runs.retain(runs);
    }

    /// The names of all tools that are held back.
    fn held(&self) -> BTreeSet<String> {
        let tools = self.runs.iter().flat_map(|run| run.tools.all());
        tools.filter(|tool| tool.is_held()).map(|tool| tool.name().to_owned()).collect()
    }
}

#[cfg(test)]
#[path = "tests/pins.rs"]
mod tests;
