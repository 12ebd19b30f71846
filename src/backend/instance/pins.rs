//! Holds back tools of pinned servers (`pin = true`) whose definition is not the approved one.
//!
//! The store has the approved definitions, and its reader sets them here. Each run of a server adds
//! the tools that it has listed. Both are compared whenever either changes. Until the approved ones
//! are known, all tools are held back.
//!
//! A run is pinned if its server was configured so when it started. A server that a reload pins is
//! known here from its first list on; one that is no longer pinned stays, for the runs that drain.

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
use crate::common::ids::{ServerId, TenantId};
use crate::pins::Hash;
use crate::telemetry::metrics::Metrics;

/// A server that was never seen before waits this long until its tools are approved.
const FIRST_USE_WAIT: Duration = Duration::from_secs(5);
/// Tools named in one line of the log.
const NAMES_MAX: usize = 10;

/// The approved definitions, by tool.
pub type Approved = HashMap<String, Hash>;

#[derive(Default)]
pub struct Pins {
    metrics: Metrics,
    servers: RwLock<BTreeMap<ServerId, Arc<Pinned>>>,
    /// Notified when a server has listed its tools.
    listed: Notify,
}

struct Pinned {
    held: IntGauge,
    tools: Mutex<PinnedTools>,
    /// Whether the approved definitions are known.
    is_known: watch::Sender<bool>,
}

#[derive(Default)]
struct PinnedTools {
    /// `None` until they are known.
    approved: Option<Approved>,
    runs: Vec<RunTools>,
    /// Whether a run has listed its tools since [`Pins::take_fresh`].
    is_fresh: bool,
    /// Tools that are held back and were reported to the operator.
    reported: BTreeSet<String>,
}

/// The tools of one run.
struct RunTools {
    /// The run's tenant; the gateway if tenants share the run.
    tenant: TenantId,
    connection: Weak<Connection>,
    tools: Arc<ToolSet>,
}

impl Pins {
    /// Pins these servers.
    pub fn new<'a>(servers: impl Iterator<Item = &'a ServerId>, metrics: &Metrics) -> Self {
        let pins = Self { metrics: metrics.clone(), ..Self::default() };
        servers.for_each(|server| drop(pins.get_or_add(server)));
        pins
    }

    /// Returns the servers that are pinned, or were.
    pub fn servers(&self) -> Vec<ServerId> {
        self.servers.read().keys().cloned().collect()
    }

    fn get(&self, server: &ServerId) -> Option<Arc<Pinned>> {
        self.servers.read().get(server).cloned()
    }

    fn get_or_add(&self, server: &ServerId) -> Arc<Pinned> {
        let new = || Pinned {
            held: self.metrics.held_tools(server.as_str()),
            tools: Mutex::default(),
            is_known: watch::Sender::new(false),
        };
        self.servers.write().entry(server.clone()).or_insert_with(|| Arc::new(new())).clone()
    }

    /// Waits until a server has listed its tools.
    pub async fn listed(&self) {
        self.listed.notified().await;
    }

    /// Returns the present tools of all runs of a server, each with the run's tenant. The tenant of
    /// a run that tenants share is the gateway.
    pub fn tools(&self, server: &ServerId) -> Vec<(TenantId, Arc<ToolSet>)> {
        let Some(pinned) = self.get(server) else { return vec![] };
        let mut tools = pinned.tools.lock();
        tools.drop_closed();
        tools.runs.iter().map(|run| (run.tenant.clone(), run.tools.clone())).collect()
    }

    /// Returns whether a server has listed its tools since this was last asked.
    pub fn take_fresh(&self, server: &ServerId) -> bool {
        let pinned = self.get(server);
        pinned.is_some_and(|pinned| std::mem::take(&mut pinned.tools.lock().is_fresh))
    }

    /// Undoes [`Pins::take_fresh`] for a caller that failed.
    pub fn set_fresh(&self, server: &ServerId, is_fresh: bool) {
        if let Some(pinned) = self.get(server) {
            pinned.tools.lock().is_fresh |= is_fresh;
        }
    }

    /// Sets the approved definitions of a server; `None` if it was never seen. Tells listeners if
    /// tools come or go by it.
    pub fn set_approved(&self, server: &ServerId, approved: Option<Approved>) {
        let Some(pinned) = self.get(server) else { return };
        let is_known = approved.is_some();
        let changed: Vec<_> = {
            let mut tools = pinned.tools.lock();
            tools.drop_closed();
            tools.approved = approved;
            let changed = tools.runs.iter().filter(|run| tools.hold_unapproved(&run.tools));
            changed.filter_map(|run| run.connection.upgrade()).collect()
        };
        pinned.report(server);
        pinned.is_known.send_replace(is_known);
        for connection in changed {
            connection.recipients.changes.list_changed(List::Tools);
            connection.tell_skills_changed();
        }
    }

    /// Adds the tools that a run of a pinned server has listed. Waits a moment for the approved
    /// definitions; until then all tools are held back.
    pub(crate) async fn add_listed(
        &self,
        server: &ServerId,
        tenant: &TenantId,
        tools: &Arc<ToolSet>,
        connection: &Arc<Connection>,
        deadline: Instant,
    ) {
        let pinned = self.get_or_add(server);
        pinned.tools.lock().set(tenant, tools, connection);
        pinned.report(server);
        self.listed.notify_one();
        let mut is_known = pinned.is_known.subscribe();
        let deadline = deadline.min(Instant::now() + FIRST_USE_WAIT);
        if timeout_at(deadline, is_known.wait_for(|is_known| *is_known)).await.is_err() {
            tracing::warn!(
                %server,
                "the approved tools of server `{server}` cannot be read: all its tools are held \
                 back"
            );
        }
    }
}

impl Pinned {
    /// Counts the tools that are held back, and reports new ones to the operator.
    fn report(&self, server: &ServerId) {
        let mut tools = self.tools.lock();
        let held = tools.held();
        self.held.set(held.len() as i64);
        // Until then, `add_listed` has told the operator that they are not known.
        let is_known = tools.approved.is_some();
        if is_known && !held.is_subset(&tools.reported) {
            let tools: Vec<_> = held.iter().take(NAMES_MAX).collect();
            tracing::warn!(
                %server, held = held.len(), ?tools,
                "tools of server `{server}` are held back, since they differ from the approved \
                 ones: `trunkline pin list {server}` shows them"
            );
        }
        if is_known {
            tools.reported = held;
        }
    }
}

impl PinnedTools {
    /// Replaces the tools of a run.
    fn set(&mut self, tenant: &TenantId, tools: &Arc<ToolSet>, connection: &Arc<Connection>) {
        self.drop_closed();
        self.hold_unapproved(tools);
        let is_same =
            |run: &RunTools| std::ptr::eq(run.connection.as_ptr(), Arc::as_ptr(connection));
        if let Some(at) = self.runs.iter().position(is_same) {
            let before = self.runs.swap_remove(at).tools;
            // A call that found the old tool and still waits must not get the changed one.
            let now = |name: &str| tools.get(name).or_else(|| tools.skills.get(name));
            let is_held = |tool: &&Tool| now(tool.name()).is_some_and(|new| new.is_held());
            for tool in before.pinned().filter(is_held) {
                tool.set_held(true);
            }
        }
        let (tenant, tools) = (tenant.clone(), tools.clone());
        self.runs.push(RunTools { tenant, connection: Arc::downgrade(connection), tools });
        self.is_fresh = true;
    }

    /// Holds back all but approved tools. Returns whether that changed anything.
    fn hold_unapproved(&self, tools: &ToolSet) -> bool {
        let mut is_different = false;
        for tool in tools.pinned() {
            let approved = self.approved.as_ref().and_then(|approved| approved.get(tool.name()));
            let is_held = approved.is_none_or(|hash| *hash != tool.hash());
            is_different |= tool.set_held(is_held);
        }
        is_different
    }

    /// Forgets runs that have ended.
    fn drop_closed(&mut self) {
        let runs = |run: &RunTools| run.connection.upgrade().is_some_and(|it| !it.is_closed());
        self.runs.retain(runs);
    }

    /// Returns the names of all tools that are held back.
    fn held(&self) -> BTreeSet<String> {
        let tools = self.runs.iter().flat_map(|run| run.tools.pinned());
        tools.filter(|tool| tool.is_held()).map(|tool| tool.name().to_owned()).collect()
    }
}

#[cfg(test)]
#[path = "tests/pins.rs"]
mod tests;
