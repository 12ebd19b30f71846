//! Synchronises pins: approvals go from the store to the gateway, observed tools from the gateway
//! to the store.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::backend::instance::pins::Pins;
use crate::backend::instance::tools::{Tool, ToolSet};
use crate::common::ids::{ServerId, TenantId};
use crate::config::Config;
use crate::pins::{Definition, canonical, within_bounds};
use crate::store::{Follower, HELD_MAX, Pinned, Sighting, Store, StoreError, Subject};
use crate::telemetry::metrics::Metrics;

/// Limits the writes for a server that keeps changing its tools.
const WRITE_PAUSE: Duration = Duration::from_millis(300);
/// The held definitions that the own processes of one tenant may add: a quarter is kept for others.
const HELD_OF_TENANT_MAX: usize = HELD_MAX - HELD_MAX / 4;

/// Returns the pinned servers of a configuration, with their approvals as far as the store can be
/// read.
pub(crate) async fn open(config: &Config, store: &Store, metrics: &Metrics) -> Arc<Pins> {
    let pinned = config.servers.iter().filter(|(_, server)| server.pin);
    let pins = Arc::new(Pins::new(pinned.map(|(id, _)| id), metrics));
    if !pins.servers().is_empty()
        && let Err(error) = reconcile(&pins, store).await
    {
        tracing::warn!(%error, "cannot read approvals: all tools of pinned servers are held back");
    }
    pins
}

/// Keeps both sides up to date. Runs for ever.
pub(crate) async fn follow(pins: Arc<Pins>, store: Store) {
    let meanwhile = "the last known approvals stay in force";
    let mut follower = Follower::new(store.changes(Subject::Policy), "approved tools", meanwhile);
    loop {
        follower.changed(pins.listed()).await;
        if !pins.servers().is_empty() {
            while follower.retry(reconcile(&pins, &store).await).await.is_none() {}
            sleep(WRITE_PAUSE).await;
        }
    }
}

/// Continues with the other servers if one fails. Returns the first error.
async fn reconcile(pins: &Pins, store: &Store) -> Result<(), StoreError> {
    let mut pinned = store.pinned().await?;
    let (were_any, mut outcome) = approve_first_use(pins, store, &pinned).await;
    if were_any {
        pinned = store.pinned().await?;
    }
    for server in pins.servers() {
        let known = pinned.get(&server);
        pins.set_approved(&server, known.map(|pinned| pinned.approved.clone()));
    }
    for (server, known) in &pinned {
        let is_fresh = pins.take_fresh(server);
        let sighting = sighting(known, &pins.tools(server), is_fresh);
        if !sighting.is_empty() {
            let noted = store.record_sighting(server, &sighting).await;
            outcome = outcome.and(noted.inspect_err(|_| pins.set_fresh(server, is_fresh)));
        }
    }
    outcome
}

/// Approves the tools of servers that are seen for the first time, as a process lists them that
/// tenants share. A tenant's own process decides nothing for others: where there is none but such,
/// no tool is approved, and the operator decides. Returns whether there were any, and the first
/// error.
async fn approve_first_use(
    pins: &Pins,
    store: &Store,
    pinned: &BTreeMap<ServerId, Pinned>,
) -> (bool, Result<(), StoreError>) {
    let (mut were_any, mut outcome) = (false, Ok(()));
    for server in pins.servers().iter().filter(|server| !pinned.contains_key(*server)) {
        let runs = pins.tools(server);
        if runs.is_empty() {
            continue;
        }
        let shared = runs.iter().find(|(tenant, _)| *tenant == TenantId::gateway());
        let definitions = shared.map(|(_, tools)| within_bounds(tools.pinned().map(definition)));
        let used = store.first_use(server, definitions.as_deref().unwrap_or_default()).await;
        match (&used, definitions) {
            (Ok(true), Some(definitions)) => {
                let tools = definitions.len();
                tracing::info!(%server, tools, "server `{server}` is new: its tools are approved");
            }
            (Ok(true), None) => tracing::warn!(
                %server,
                "server `{server}` is new, and only tenants' own processes list its tools: all are \
                 held back until `trunkline pin approve {server} --all`"
            ),
            _ => {}
        }
        were_any |= used.is_ok();
        outcome = outcome.and(used.map(drop));
    }
    (were_any, outcome)
}

/// Compares the tools of a server's instances with what the store knows. Missing tools count only
/// after a fresh list: another replica's instance may have others.
fn sighting(known: &Pinned, runs: &[(TenantId, Arc<ToolSet>)], is_fresh: bool) -> Sighting {
    let tools = || runs.iter().flat_map(|(_, tools)| tools.pinned());
    let held: Vec<&Tool> = tools().filter(|tool| tool.is_held()).collect();
    let key = |tool: &Tool| (tool.name().to_owned(), tool.hash());
    let mut seen = HashSet::new();
    let mut by_tenant: HashMap<&TenantId, usize> = HashMap::new();
    let tools_of = |(tenant, tools)| ToolSet::pinned(tools).map(move |tool| (tenant, tool));
    let new = runs.iter().map(|(tenant, tools)| (tenant, &**tools)).flat_map(tools_of);
    let new = new.filter(|(tenant, tool)| {
        if !tool.is_held() || !seen.insert(key(tool)) {
            return false;
        }
        let count = by_tenant.entry(tenant).or_default();
        *count += 1;
        let is_shared = **tenant == TenantId::gateway();
        let max = if is_shared { HELD_MAX } else { HELD_OF_TENANT_MAX };
        *count <= max && !known.held.contains(&key(tool))
    });
    let new = within_bounds(new.map(|(_, tool)| definition(tool)).take(HELD_MAX));
    if !is_fresh || runs.is_empty() {
        return Sighting { held: new, ..Sighting::default() };
    }
    let has: HashSet<_> = held.iter().map(|tool| key(tool)).collect();
    let names: HashSet<&str> = tools().map(Tool::name).collect();
    let is_there = |tool: &&String| names.contains(tool.as_str());
    let approved = known.approved.keys();
    let missing = approved.filter(|tool| !is_there(tool) && !known.gone.contains(*tool));
    Sighting {
        held: new,
        released: known.held.iter().filter(|held| !has.contains(held)).cloned().collect(),
        gone: missing.cloned().collect(),
        back: known.gone.iter().filter(is_there).cloned().collect(),
    }
}

pub(crate) fn definition(tool: &Tool) -> Definition {
    Definition {
        tool: tool.name().to_owned(),
        hash: tool.hash(),
        text: canonical(tool.definition().get()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(tenant: &str, tools: usize) -> (TenantId, Arc<ToolSet>) {
        let names = (0..tools).map(|number| format!("{tenant}-{number}"));
        (TenantId::testing(tenant), ToolSet::held_testing(names))
    }

    fn count(held: &[Definition], tenant: &str) -> usize {
        held.iter().filter(|it| it.tool.starts_with(tenant)).count()
    }

    #[test]
    fn what_is_held_back_of_one_tenants_process_leaves_a_quarter_to_those_of_others() {
        let (greedy, other) = (run("greedy", HELD_MAX), run("other", HELD_MAX / 4));
        let first = sighting(&Pinned::default(), std::slice::from_ref(&greedy), true).held;
        assert_eq!(first.len(), HELD_MAX - HELD_MAX / 4);
        // What is known already counts, too.
        let known = first.iter().map(|it| (it.tool.clone(), it.hash)).collect();
        let known = Pinned { held: known, ..Pinned::default() };
        let next = sighting(&known, &[greedy, other], true).held;
        assert_eq!((count(&next, "greedy"), count(&next, "other")), (0, HELD_MAX / 4));
    }

    #[test]
    fn a_process_that_tenants_share_may_have_all_that_is_held_back() {
        let (_, tools) = run("shared", HELD_MAX);
        let held = sighting(&Pinned::default(), &[(TenantId::gateway(), tools)], true).held;
        assert_eq!(held.len(), HELD_MAX);
    }
}
