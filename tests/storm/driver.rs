//! The two runs, each a number of rounds.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, interval};
use trunkline::backend::connection::request_ids::IdSource;
use trunkline::common::time_slice::use_short_time_slices;

use crate::checks::Idle;
use crate::killing;
use crate::options::{Options, Way};
use crate::plan::hash;
use crate::planted;
use crate::report::Tally;
use crate::round::{self, Round};
use crate::watchdog::Watchdog;

/// Calls of one round. Each round has a gateway and servers of its own: the gateway waits longer
/// after every failure of a server, so one server can only be killed so often without slowing the
/// storm down.
const ROUND_CALLS: u64 = 50_000;
/// Calls of the planted run.
const PLANTED_CALLS: u64 = 20_000;
/// Over MCP the bug shows as soon, but calls take longer: more often the gateway notices it too,
/// and replaces the server.
const PLANTED_CALLS_MCP: u64 = 5_000;
/// One call in so many must be answered, even by a gateway that refuses most of them.
const ANSWERED_MIN: u64 = 50;
/// With fewer it is not told whether those who hang up are noticed.
const HUNG_UP_MIN: u64 = 1_000;
const PROGRESS_EVERY: Duration = Duration::from_secs(3);

/// The source of a gateway's ids; `None` for the real one.
type Ids = Option<fn() -> Arc<dyn IdSource>>;

/// One run.
struct Run {
    way: Way,
    name: &'static str,
    calls: u64,
    ids: Ids,
}

/// Runs the whole test.
pub fn run(options: &Options) -> ExitCode {
    // As `trunkline serve` does.
    let _ = use_short_time_slices();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("threads can be started");
    println!("identity storm, seed {}", options.seed);
    let watchdog = Watchdog::start();
    if let Some(seconds) = options.kill {
        let tally = Arc::new(Tally::default());
        let time = Duration::from_secs(seconds);
        runtime.block_on(killing::run(options, time, &tally, &watchdog));
        tally.summary(time);
        let faults = tally.faults() + tally.mismatches.get() + tally.alarms.get();
        return if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    for way in options.ways() {
        println!("replay: {}", options.replay(way));
        let planted = match way {
            Way::Gateway => PLANTED_CALLS,
            Way::Mcp => PLANTED_CALLS_MCP,
        };
        let runs = [
            Run { way, name: "honest", calls: options.calls(way), ids: None },
            Run { way, name: "planted", calls: planted, ids: Some(planted::ids) },
        ];
        for run in runs.iter().filter(|run| options.wants(way, run.name)) {
            println!("{}, {}: {} calls", way.name(), run.name, run.calls);
            let tally = Arc::new(Tally::default());
            let began = Instant::now();
            runtime.block_on(run.storm(options, &tally, &watchdog));
            run.judge(&tally);
            tally.summary(began.elapsed());
            let outcome = if tally.faults() == 0 { &watchdog.passed } else { &watchdog.failed };
            outcome.add(1);
        }
    }
    watchdog.close();
    if watchdog.failed.get() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Run {
    async fn storm(&self, options: &Options, tally: &Arc<Tally>, watchdog: &Arc<Watchdog>) {
        let show = tokio::spawn(show_progress(tally.clone()));
        let rounds = self.calls.div_ceil(ROUND_CALLS);
        let mut idle = None;
        for number in 0..rounds {
            let round = Round {
                way: self.way,
                seed: hash((options.seed, self.name, number)),
                calls: self.calls * (number + 1) / rounds - self.calls * number / rounds,
                tenants: options.tenants,
                max_in_flight: options.max_in_flight,
                ids: self.ids,
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

    /// Notes a fault unless the run shows what it should.
    fn judge(&self, tally: &Tally) {
        match (self.ids, tally.mismatches.get(), tally.alarms.get()) {
            (None, 0, 0) | (Some(_), 1.., _) => {}
            (None, ..) => tally.fault("answers reached the wrong calls".to_owned()),
            (Some(_), ..) => tally.fault("the planted bug was not seen".to_owned()),
        }
        if tally.answered() < self.calls / ANSWERED_MIN {
            tally.fault("hardly any call was answered: this shows nothing".to_owned());
        }
        // Many who hang up do so before their request has arrived, or when its answer is on the
        // way: not all count.
        let (hung_up, fell_silent) = (tally.hung_up.get(), tally.fell_silent.get());
        let is_telling = self.ids.is_none() && hung_up >= HUNG_UP_MIN;
        if is_telling && tally.given_up.get() < fell_silent + hung_up / 20 {
            tally.fault("calls go on though their callers have hung up".to_owned());
        }
        let is_mcp = is_telling && self.way == Way::Mcp;
        if is_mcp && tally.updates.get() == 0 {
            tally.fault("no update reached its subscriber: this shows nothing".to_owned());
        }
        if is_mcp && (tally.unread.get() == 0 || tally.read_late.get() == 0) {
            tally.fault("no answer was left unread".to_owned());
        }
        if is_telling && tally.remade.get() == 0 {
            tally.fault("no tenant was removed".to_owned());
        }
        if is_telling && fell_silent == 0 {
            tally.fault("calls go on though their callers have said not to".to_owned());
        }
    }
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
