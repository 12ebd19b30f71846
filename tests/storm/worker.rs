//! One of several clients of one tenant: makes its calls one after the other, and looks at each
//! answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::sleep;
use trunkline::common::ids::{TenantGeneration, TenantId, TenantName};
use trunkline::common::policy::Policy;
use trunkline::gateway::{Caller, Gateway};
use trunkline::tenants::Tenant;
use trunkline::tenants::budgets::Budgets;

use crate::direct::Direct;
use crate::mcp;
use crate::mcp::fronts::{Front, Fronts};
use crate::outcome::{Outcome, judge};
use crate::plan::{Cancel, Plan, SERVERS};
use crate::report::Tally;
use crate::watchdog::{Watchdog, Workers};

/// The longest pause before a server that is down is tried again, or rather the next one is.
const RETRY_WAIT_MAX: Duration = Duration::from_millis(10);

/// Calls of one worker from tenant to tenant of the same name.
const REMADE_EVERY: u64 = 20;
/// The deadline of calls that must be answered, if the server answers at all.
const PATIENCE: Duration = Duration::from_secs(1);

pub struct Shared {
    pub gateway: Arc<Gateway>,
    /// The address of each tenant's front; `None` if calls go straight to the gateway.
    pub fronts: Option<Fronts>,
    pub tally: Arc<Tally>,
    pub watchdog: Arc<Watchdog>,
    pub workers: Arc<Workers>,
}

/// How a worker makes its calls.
enum Client {
    Direct(Direct),
    Mcp(mcp::Client),
}

/// Makes calls 1 to `calls` of one worker.
pub async fn run(shared: Arc<Shared>, tenant: usize, worker: usize, calls: u64) {
    let mut client = match &shared.fronts {
        None => Client::Direct(Direct::new(shared.gateway.clone(), tenant)),
        Some(fronts) => Client::Mcp(mcp::Client::new(fronts.of(tenant), shared.tally.clone())),
    };
    let round_seed = shared.workers.round_seed;
    let position = &shared.workers.client_ids[tenant * shared.workers.per_tenant + worker];
    for client_id in 1..=calls {
        let plan = Plan::draw(round_seed, tenant, worker, client_id);
        position.store(client_id, Ordering::Relaxed);
        if client_id.is_multiple_of(REMADE_EVERY) {
            match (&mut client, &shared.fronts) {
                (Client::Direct(client), _) => {
                    client.remake_tenant();
                    shared.tally.remade.add(1);
                }
                // The other workers of the tenant go on meanwhile.
                (Client::Mcp(_), Some(fronts)) if worker == 0 && Front::is_remade(tenant) => {
                    fronts.of(tenant).remake_tenant().await;
                    shared.tally.remade.add(1);
                }
                (Client::Mcp(_), _) => {}
            }
        }
        make(&shared, &mut client, &plan).await;
        shared.tally.calls.add(1);
        shared.watchdog.step();
    }
    position.store(0, Ordering::Relaxed);
}

/// Has the first tenant call a quiet server, one call at a time. Never ends.
pub async fn call_quiet_server(shared: Arc<Shared>, server: usize) {
    let Some(fronts) = &shared.fronts else { return };
    let mut client = mcp::Client::new(fronts.of(0), shared.tally.clone());
    let Workers { round_seed, per_tenant, .. } = *shared.workers;
    for client_id in 1.. {
        let drawn = Plan::draw(round_seed, 0, per_tenant + server, client_id);
        let plan = Plan { timeout: PATIENCE, cancel: Cancel::Never, ..drawn };
        let outcome = client.call(&plan, server).await;
        let is_down = matches!(outcome, Outcome::Unavailable { .. });
        judge(&shared.tally, &plan.mark, outcome);
        if is_down {
            sleep(RETRY_WAIT_MAX).await;
        }
    }
}

/// Returns a caller for a tenant.
pub fn caller(tenant: usize) -> Caller {
    caller_of(tenant_id(tenant))
}

pub fn caller_of(tenant: TenantId) -> Caller {
    let (policy, budgets) = (Policy::unlimited(), Budgets::unlimited());
    Caller::of(Arc::new(Tenant::new(tenant, 0, policy, None, &budgets)))
}

/// The name of a tenant.
pub fn tenant_name(tenant: usize) -> TenantName {
    TenantName::parse(&format!("tenant-{tenant}")).expect("a plain name")
}

pub fn tenant_id(tenant: usize) -> TenantId {
    tenant_name(tenant).of(TenantGeneration::BUILT_IN)
}

/// Makes one call, with whichever server is up.
async fn make(shared: &Shared, client: &mut Client, plan: &Plan) {
    for server in (plan.server..).map(|server| server % SERVERS) {
        let outcome = match client {
            Client::Direct(client) => client.call(plan, server).await,
            Client::Mcp(client) => client.call(plan, server).await,
        };
        let wait = match &outcome {
            Outcome::Unavailable { retry_after, reason } => {
                shared.watchdog.unavailable(reason.clone());
                Some(*retry_after)
            }
            _ => None,
        };
        judge(&shared.tally, &plan.mark, outcome);
        match wait {
            Some(wait) => sleep(wait.min(RETRY_WAIT_MAX)).await,
            None => return,
        }
    }
}

/// Done when the caller goes away.
pub async fn leave(cancel: Cancel) {
    match cancel {
        Cancel::Never => std::future::pending().await,
        Cancel::After(wait) => sleep(wait).await,
        Cancel::Turns(turns) => {
            for _ in 0..turns {
                yield_now().await;
            }
        }
    }
}
