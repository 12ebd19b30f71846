//! Every server is killed each 250 ms, at half of the load that the machine can take.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use rand::RngExt;
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trunkline::backend::supervise::restart_policy::Budget;
use trunkline::common::ids::{CallId, ServerId};
use trunkline::config::{Program, ServerConfig, Transport};
use trunkline::gateway::{Call, Caller, Gateway, Operation, ToolName};
use trunkline::protocol::jsonrpc::RawObject;
use trunkline::protocol::mcp::requests::CallMeta;
use trunkline::registry::Registry;
use trunkline::telemetry::metrics::Metrics;
use trunkline::tenants::limits::Cost;

use crate::checks::Idle;
use crate::direct::Direct;
use crate::options::{Options, Way};
use crate::outcome::{Outcome, judge};
use crate::plan::{Cancel, Plan, SERVERS};
use crate::report::Tally;
use crate::round::{Round, log_of, own_program};
use crate::stalls::Stalls;
use crate::watchdog::Watchdog;
use crate::{checks, processes, worker};

const KILL_EVERY: Duration = Duration::from_millis(250);
/// How soon after the kill all calls are to be answered, and the p99 of a server that is not
/// killed, as a part of what it is without kills. Both are shown. What fails the test is several
/// times that: on a machine that does other things as well, any process may have to wait that long
/// for its turn.
const ANSWERED_AIM: Duration = Duration::from_millis(50);
const RISE_AIM: f64 = 1.1;
const FAILS_AT: u32 = 5;
/// How long it is looked how many calls the machine can take.
const FULL_LOAD: Duration = Duration::from_secs(3);
/// The neighbour is measured in turns, with and without kills, so often, by so many callers.
const TURNS: u32 = 4;
const NEIGHBOUR_CALLERS: usize = 4;
const NEIGHBOUR: &str = "neighbour";
/// A moment before calls are missed in a round of kills.
const SETTLE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Notes {
    /// When the servers were last killed.
    killed: Mutex<Option<Instant>>,
    /// From there to the answer of each call that ended with its server.
    answered_after: Mutex<Vec<Duration>>,
    /// From one call of a caller to its next.
    pace: Mutex<Duration>,
}

/// Kills for so long; what is wrong is counted.
pub async fn run(options: &Options, time: Duration, tally: &Arc<Tally>, watchdog: &Arc<Watchdog>) {
    let round = Round {
        way: Way::Gateway,
        seed: options.seed,
        calls: 0,
        tenants: options.tenants,
        max_in_flight: options.max_in_flight,
        ids: None,
    };
    watchdog.enter("servers start", None);
    let dir = TempDir::new().expect("a temporary directory can be made");
    let metrics = Metrics::new();
    let (servers, stop) = (TaskTracker::new(), CancellationToken::new());
    let mut config: BTreeMap<_, _> =
        (0..SERVERS).map(|server| round.server(server, dir.path())).collect();
    config.insert(ServerId::parse(NEIGHBOUR).expect("a plain name"), neighbour(dir.path()));
    let mut environment = round.environment(&metrics);
    // However often they are killed, they come back: it is the kills that are to be seen here. No
    // tenant is blamed for them, so a tenant's quarantine lasts no time.
    let (starts, healthy_after, probe_every) = (usize::MAX, Duration::ZERO, Duration::ZERO);
    environment.budget = Budget { starts, healthy_after, probe_every, ..Budget::default() };
    let before = Idle::now();
    let registry = Registry::start(&config, &environment, &Arc::default(), &servers, &stop);
    let gateway = Arc::new(Gateway::new(registry, metrics));
    checks::all_start(&gateway, tally).await;

    watchdog.enter("servers are killed", None);
    let notes = Arc::new(Notes::default());
    // As many as there are slots in half of the servers: nobody waits for one.
    let callers = SERVERS * options.max_in_flight as usize / 2;
    let mut working = JoinSet::new();
    for index in 0..callers {
        let (gateway, tally, notes) = (gateway.clone(), tally.clone(), notes.clone());
        let (watchdog, seed, tenant) = (watchdog.clone(), options.seed, index % options.tenants);
        working.spawn(async move {
            let client = Direct::new(gateway, tenant);
            let mut next = Instant::now();
            for client_id in 1.. {
                let plan = Plan::draw(seed, tenant, index, client_id);
                make(&client, &plan, &tally, &notes).await;
                watchdog.step();
                // Who is late does not catch up: that would be more than half of the load.
                next = Instant::now().max(next + *notes.pace.lock());
                sleep_until(next).await;
            }
        });
    }
    let full_load = full_load(tally).await;
    *notes.pace.lock() = Duration::from_secs(2 * callers as u64).div_f64(full_load);
    println!("  {full_load:.0} calls/s at full load; half of that from here on");
    let (mut calm, mut killing, stalls) = (vec![], vec![], Stalls::watch());
    for _ in 0..TURNS {
        calm.extend(measure(&gateway, time / TURNS / 4, tally).await);
        let killer = tokio::spawn(kill_all(dir.path().to_owned(), tally.clone(), notes.clone()));
        killing.extend(measure(&gateway, time / TURNS, tally).await);
        killer.abort();
        let _ = killer.await;
    }
    working.shutdown().await;
    println!("  the machine itself let a thread wait for up to {:.1?}", stalls.longest());
    report(&notes, calm, killing, tally);

    watchdog.enter("servers stop", None);
    checks::calls_end(&gateway, tally).await;
    stop.cancel();
    servers.close();
    servers.wait().await;
    checks::nothing_runs(&gateway, dir.path(), tally).await;
    checks::no_complaints((0..SERVERS).map(|server| log_of(dir.path(), server)), tally);
    gateway.registry().shared().for_each(|server| tally.add(server.metrics()));
    drop(gateway);
    if let Err(after) = Idle::again(before).await {
        tally.fault(format!("something is left: {before:?}, now {after:?}"));
    }
}

/// The bundled server, which nobody kills.
fn neighbour(dir: &Path) -> ServerConfig {
    let args = vec!["std".to_owned()];
    let (command, cwd) = (own_program(), Some(dir.to_owned()));
    ServerConfig::new(Transport::Stdio(Program { command, args, cwd, ..Program::default() }))
}

/// Makes one call, whose caller stays, and notes how long after a kill it was answered, if it ended
/// so.
async fn make(client: &Direct, plan: &Plan, tally: &Tally, notes: &Notes) {
    let plan = Plan { mark: plan.mark.clone(), cancel: Cancel::Never, ..*plan };
    let began = Instant::now();
    let outcome = client.call(&plan, plan.server).await;
    let killed = *notes.killed.lock();
    if let (Outcome::Ended, Some(killed)) = (&outcome, killed)
        && began < killed
    {
        notes.answered_after.lock().push(killed.elapsed());
    }
    if let Outcome::Unavailable { retry_after, .. } = &outcome {
        sleep(KILL_EVERY.min(*retry_after)).await;
    }
    judge(tally, &plan.mark, outcome);
    tally.calls.add(1);
}

/// How many calls a second are answered when all callers go on and on.
async fn full_load(tally: &Tally) -> f64 {
    sleep(SETTLE).await;
    let (began, before) = (Instant::now(), tally.calls.get());
    sleep(FULL_LOAD).await;
    (tally.calls.get() - before) as f64 / began.elapsed().as_secs_f64()
}

/// Kills every server, again and again.
async fn kill_all(dir: std::path::PathBuf, tally: Arc<Tally>, notes: Arc<Notes>) {
    let mut next = Instant::now();
    loop {
        next += KILL_EVERY;
        sleep_until(next).await;
        let logs = (0..SERVERS).map(|server| log_of(&dir, server));
        let servers: Vec<_> =
            logs.filter_map(|log| Some((processes::last_started(&log)?, log))).collect();
        // Before: what ends with its server must not be taken for what ended with an earlier one.
        *notes.killed.lock() = Some(Instant::now());
        for (server, log) in servers {
            tally.kills.add(u64::from(processes::kill(server, &log, false)));
        }
    }
}

/// The times of the neighbour's calls.
async fn measure(gateway: &Arc<Gateway>, time: Duration, tally: &Arc<Tally>) -> Vec<Duration> {
    sleep(SETTLE.min(time / 4)).await;
    let end = Instant::now() + time;
    let callers = (0..NEIGHBOUR_CALLERS).map(|tenant| {
        let (gateway, tally, runtime) = (gateway.clone(), tally.clone(), Handle::current());
        spawn_blocking(move || measure_one(&runtime, &gateway, tenant, end, &tally))
    });
    join_all(callers).await.into_iter().flat_map(|calls| calls.expect("it only calls")).collect()
}

/// Calls at random moments, from a thread of its own. The runtime's timers go by whole
/// milliseconds: by them, all calls would begin at the same point between two ticks of the
/// server's, and whatever delays a hundredth of them would show as a millisecond or as nothing.
fn measure_one(
    runtime: &Handle,
    gateway: &Arc<Gateway>,
    tenant: usize,
    end: Instant,
    tally: &Tally,
) -> Vec<Duration> {
    let (caller, mut latencies) = (Arc::new(worker::caller(tenant)), vec![]);
    while Instant::now() < end {
        std::thread::park_timeout(Duration::from_micros(rand::rng().random_range(1000..3000)));
        let (gateway, caller, began) = (gateway.clone(), caller.clone(), Instant::now());
        let call = runtime.spawn(async move {
            let admission = caller.tenant.admit(Cost::Call).await.expect("nothing is limited");
            let called = gateway.call(&caller, admission, &to_neighbour(&gateway, &caller)).await;
            called.map(|_| began.elapsed()).map_err(|error| error.to_string())
        });
        match runtime.block_on(call).expect("calls do not panic") {
            Ok(latency) => latencies.push(latency),
            Err(error) => tally.fault(format!("the neighbour failed: {error}")),
        }
    }
    latencies
}

fn to_neighbour(gateway: &Gateway, caller: &Caller) -> Call {
    let server = gateway.server(caller, NEIGHBOUR).expect("the neighbour is configured");
    let arrived = Instant::now();
    Call {
        id: CallId::generate(),
        server,
        operation: Operation::Tool {
            name: ToolName::Own("sleep".to_owned()),
            arguments: RawObject::parse(r#"{"ms":5}"#.into()).expect("a plain object"),
            mirrored: None,
        },
        others: String::new(),
        meta: CallMeta::default(),
        size: 0,
        fairness_key: Default::default(),
        listener: None,
        arrived,
        deadline: arrived + Duration::from_secs(10),
        deadline_max: None,
        tags: Default::default(),
        waits_for_limits: false,
        traced: None,
        held: None,
        is_kept: false,
        begin_mark: None,
    }
}

fn report(notes: &Notes, calm: Vec<Duration>, killing: Vec<Duration>, tally: &Tally) {
    let mut after = std::mem::take(&mut *notes.answered_after.lock());
    let (p99, late, count) = (quantile(&mut after, 0.99), quantile(&mut after, 1.0), after.len());
    println!(
        "  {count} calls ended with their server: answered after {:.1?} \
         (median), {p99:.1?} (p99), {late:.1?} (latest; aim: {ANSWERED_AIM:?})",
        quantile(&mut after, 0.5),
    );
    if count == 0 || p99 > FAILS_AT * ANSWERED_AIM {
        tally.fault("calls are not answered when their server is killed".to_owned());
    }
    let (mut calm, mut killing) = (calm, killing);
    let (alone, beside) = (quantile(&mut calm, 0.99), quantile(&mut killing, 0.99));
    println!(
        "  neighbour, {} and {} calls: p99 {alone:.2?} without kills, {beside:.2?} with",
        calm.len(),
        killing.len()
    );
    println!("  which is {:.2} times as much (aim: {RISE_AIM})", beside.div_duration_f64(alone));
    if beside > FAILS_AT * alone {
        tally.fault("the neighbour has noticed".to_owned());
    }
}

fn quantile(durations: &mut [Duration], part: f64) -> Duration {
    durations.sort();
    let at = (durations.len() as f64 * part) as usize;
    durations.get(at.min(durations.len().saturating_sub(1))).copied().unwrap_or_default()
}
