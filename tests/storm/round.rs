//! One round: a gateway with its servers from start to stop, and the calls between.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trunkline::backend::Environment;
use trunkline::backend::connection::request_ids::IdSource;
use trunkline::common::ids::ServerId;
use trunkline::config::{Program, ServerConfig, Start, Transport};
use trunkline::gateway::Gateway;
use trunkline::registry::Registry;
use trunkline::telemetry::metrics::Metrics;

use crate::mcp::fronts::Fronts;
use crate::mcp::listener;
use crate::options::Way;
use crate::plan::{MAX_RESPONSE, QUIET_SERVERS, SERVERS, rng};
use crate::report::Tally;
use crate::watchdog::{Watchdog, Workers};
use crate::worker::{self, Shared};
use crate::{checks, processes};

/// Clients of one tenant that call at once.
const WORKERS_PER_TENANT: usize = 4;
/// How long abandoned calls keep their slots: shorter than some servers are late.
const CANCEL_GRACE: Duration = Duration::from_millis(50);
/// A server that has started this often is left alone: each restart waits twice as long as the
/// last.
const STARTS_MAX: usize = 4;

pub struct Round {
    pub way: Way,
    pub seed: u64,
    pub calls: u64,
    pub tenants: usize,
    pub max_in_flight: u32,
    /// The source of ids, if it is not the real one.
    pub ids: Option<fn() -> Arc<dyn IdSource>>,
}

/// Runs a round to its end and checks what it leaves.
pub async fn run(round: Round, tally: &Arc<Tally>, watchdog: &Arc<Watchdog>) {
    watchdog.enter("servers start", None);
    let dir = TempDir::new().expect("a temporary directory can be made");
    let metrics = Metrics::new();
    let (servers, stop) = (TaskTracker::new(), CancellationToken::new());
    let config: BTreeMap<_, _> =
        (0..round.servers()).map(|server| round.server(server, dir.path())).collect();
    let environment = round.environment(&metrics);
    let registry = Registry::start(&config, &environment, &Arc::default(), &servers, &stop);
    let gateway = Arc::new(Gateway::new(registry, metrics));
    checks::all_start(&gateway, tally).await;
    let fronts = match round.way {
        Way::Gateway => None,
        Way::Mcp => Some(Fronts::open(&gateway, round.tenants, dir.path()).await),
    };

    let total = round.tenants * WORKERS_PER_TENANT;
    let workers = Arc::new(Workers {
        round_seed: round.seed,
        per_tenant: WORKERS_PER_TENANT,
        client_ids: std::iter::repeat_with(Default::default).take(total).collect(),
    });
    watchdog.enter("calls are made", Some(workers.clone()));
    let (tally, watchdog) = (tally.clone(), watchdog.clone());
    let shared = Arc::new(Shared { gateway: gateway.clone(), fronts, tally, watchdog, workers });
    let mut working = JoinSet::new();
    for index in 0..total {
        let (tenant, worker) = (index / WORKERS_PER_TENANT, index % WORKERS_PER_TENANT);
        let calls = share_of(round.calls, index, total);
        working.spawn(worker::run(shared.clone(), tenant, worker, calls));
    }
    let listening = beside(&round, &shared);
    let killer = tokio::spawn(kill_servers(
        round.seed,
        round.servers(),
        dir.path().to_owned(),
        shared.clone(),
    ));
    while let Some(ended) = working.join_next().await {
        ended.expect("no worker panics");
    }
    killer.abort();
    let _ = killer.await;
    drop(listening);

    let Shared { tally, watchdog, fronts, .. } = &*shared;
    if let Some(fronts) = fronts {
        watchdog.enter("connections are closed", None);
        fronts.close().await;
        checks::calls_end(&gateway, tally).await;
    }
    watchdog.enter("slots are given back", None);
    checks::nothing_in_flight(&gateway, round.max_in_flight, tally).await;
    watchdog.enter("servers stop", None);
    stop.cancel();
    servers.close();
    servers.wait().await;
    checks::nothing_runs(&gateway, dir.path(), tally).await;
    if round.ids.is_none() {
        let logs = (0..round.servers()).map(|server| log_of(dir.path(), server));
        checks::no_complaints(logs, tally);
    }
    for server in gateway.registry().shared() {
        tally.add(server.metrics());
    }
    tally.add_given_up(gateway.metrics());
}

/// The name of a server.
pub fn server_name(server: usize) -> String {
    format!("storm-{server}")
}

/// Kills one server after the other, and now and then the guard before it.
async fn kill_servers(seed: u64, servers: usize, dir: PathBuf, shared: Arc<Shared>) {
    let mut rng = rng((seed, "kills"));
    loop {
        sleep(Duration::from_millis(rng.random_range(50..=250))).await;
        let log = log_of(&dir, rng.random_range(0..servers));
        let guard_instead = rng.random_ratio(1, 4);
        if processes::starts(&log) < STARTS_MAX
            && let Some(server) = processes::last_started(&log)
            && processes::kill(server, &log, guard_instead)
        {
            shared.tally.kills.add(1);
        }
    }
}

pub fn log_of(dir: &Path, server: usize) -> PathBuf {
    dir.join(format!("{server}.starts"))
}

/// Shares `calls` out so that the shares differ by one at most.
fn share_of(calls: u64, index: usize, total: usize) -> u64 {
    let (index, total) = (index as u64, total as u64);
    calls * (index + 1) / total - calls * index / total
}

/// Starts the clients of the MCP storm that are there until all calls are made: a listener for each
/// tenant, and the only caller of the quiet servers.
fn beside(round: &Round, shared: &Arc<Shared>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let Some(fronts) = &shared.fronts else { return tasks };
    for tenant in 0..round.tenants {
        // The caller of the quiet servers listens elsewhere.
        let server = tenant % round.servers();
        let (address, tally) = (fronts.of(tenant).address, shared.tally.clone());
        tasks.spawn(listener::run(address, tenant, server, tally));
    }
    for server in SERVERS..round.servers() {
        tasks.spawn(worker::call_quiet_server(shared.clone(), server));
    }
    tasks
}

impl Round {
    /// Returns how many servers there are.
    fn servers(&self) -> usize {
        match self.way {
            Way::Gateway => SERVERS,
            Way::Mcp => SERVERS + QUIET_SERVERS,
        }
    }

    pub fn server(&self, server: usize, dir: &Path) -> (ServerId, ServerConfig) {
        let id = ServerId::parse(&server_name(server)).expect("a plain name");
        let era = if server.is_multiple_of(2) { "modern" } else { "legacy" };
        let log = log_of(dir, server);
        let program = Program {
            command: own_program(),
            args: ["child", &self.seed.to_string(), era, &log.to_string_lossy()]
                .map(str::to_owned)
                .to_vec(),
            cwd: Some(dir.to_owned()),
            ..Program::default()
        };
        let config = ServerConfig {
            max_in_flight: self.max_in_flight,
            sharing_is_explicit: true,
            start: if server == 0 { Start::Lazy } else { Start::Eager },
            timeout: Duration::from_secs(1),
            start_timeout: Duration::from_secs(10),
            ..ServerConfig::new(Transport::Stdio(program))
        };
        (id, config)
    }

    pub fn environment(&self, metrics: &Metrics) -> Environment {
        let mut environment = Environment::new(own_program(), MAX_RESPONSE, metrics.clone());
        environment.cancel_grace = CANCEL_GRACE;
        if let Some(ids) = self.ids {
            environment.ids = ids;
        }
        environment
    }
}

pub fn own_program() -> PathBuf {
    std::env::current_exe().expect("the system knows what runs")
}
