//! The two runs, each a number of rounds.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, interval};
use trunkline::backend::request_ids::IdSource;

use crate::checks::Idle;
use crate::options::Options;
use crate::plan::hash;
use crate::planted;
use crate::report::Tally;
use crate::round::{self, Round};
use crate::watchdog::Watchdog;

/// Calls of one round. Each round has a gateway and servers of its own: the gateway waits longer after
/// every failure of a server, so one server can only be killed so often without slowing the storm down.
const ROUND_CALLS: u64 = 50_000;
/// Calls of the planted run.
const PLANTED_CALLS: u64 = 20_000;
/// One call in so many must be answered, even by a gateway that refuses most of them.
const ANSWERED_MIN: u64 = 50;
const PROGRESS_EVERY: Duration = Duration::from_secs(3);

/// Where a gateway's ids come from; `None` for where they really do.
type Ids = Option<fn() -> Arc<dyn IdSource>>;

/// Runs the whole test.
pub fn run(options: &Options) -> ExitCode {
    let runs: [(&str, u64, Ids); 2] =
        [("honest", options.calls, None), ("planted", PLANTED_CALLS, Some(planted::ids))];
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("threads can be started");
    println!("identity storm, seed {}", options.seed);
    println!("replay: {}", options.replay());
    let watchdog = Watchdog::start();
    for (name, calls, ids) in runs.into_iter().filter(|(name, ..)| options.wants(name)) {
        println!("{name}: {calls} calls");
        let tally = Arc::new(Tally::default());
        let began = Instant::now();
        runtime.block_on(storm(options, name, calls, ids, &tally, &watchdog));
        match (ids, tally.mismatches.get(), tally.alarms.get()) {
            (None, 0, 0) | (Some(_), 1.., _) => {}
            (None, ..) => tally.fault("answers reached the wrong calls".to_owned()),
            (Some(_), ..) => tally.fault("the planted bug was not seen".to_owned()),
        }
        if tally.answered() < calls / ANSWERED_MIN {
            tally.fault("hardly any call was answered: this shows nothing".to_owned());
        }
        tally.summary(began.elapsed());
        let outcome = if tally.faults() == 0 { &watchdog.passed } else { &watchdog.failed };
        outcome.add(1);
    }
    watchdog.close();
    if watchdog.failed.get() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn storm(
    options: &Options,
    name: &str,
    calls: u64,
    ids: Ids,
    tally: &Arc<Tally>,
    watchdog: &Arc<Watchdog>,
) {
    let show = tokio::spawn(show_progress(tally.clone()));
    let rounds = calls.div_ceil(ROUND_CALLS);
    let mut idle = None;
    for number in 0..rounds {
        let round = Round {
            seed: hash((options.seed, name, number)),
            calls: calls * (number + 1) / rounds - calls * number / rounds,
            tenants: options.tenants,
            max_in_flight: options.max_in_flight,
            ids,
        };
        round::run(round, tally, watchdog).await;
        // Compared with the first round, which has started whatever is started once.
        let Some(before) = idle else {
            idle = Some(Idle::now());
            continue;
        };
        if let Err(after) = Idle::again(before).await {
            tally.fault(format!("round {number} left something: {before:?}, now {after:?}"));
        }
    }
    show.abort();
}

async fn show_progress(tally: Arc<Tally>) {
    let began = Instant::now();
    let mut ticks = interval(PROGRESS_EVERY);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        tally.progress(began.elapsed());
    }
}
