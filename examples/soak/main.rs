//! Runs a gateway for a long time at half of the load it can take, and looks at what is left.
//!
//! ```text
//! cargo run --release --example soak                       40 minutes
//! cargo run --release --example soak -- --minutes 120
//! cargo run --release --example soak -- --minutes 1        a smoke test: memory is not judged
//! ```
//!
//! Four tenants call over REST and over MCP of both eras. Some callers hang up, and sessions are
//! opened and ended. One of three servers is killed every 5 s. The configuration changes every
//! 20 s, and another server is replaced with it. Each call sends a mark of its own and must get
//! that mark back.
//!
//! Exit code 1 if an answer has another call's mark, a call fails without a known reason, memory
//! grows by more than 1 MiB an hour after the first ten minutes, or descriptors or calls in flight
//! are left at the end. Driver, gateway and servers are one executable, run several times.
//!
//! - `target`: the gateway, its files, its servers, and what the system tells of its process
//! - `caller`: one caller, and `mcp`: the messages that it sends over MCP
//! - `tally`: what became of the calls
//! - `slope`: the growth of memory

mod caller;
#[path = "../load/client.rs"]
mod client;
mod mcp;
#[path = "../fairness/process.rs"]
mod process;
mod slope;
mod tally;
mod target;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use caller::{Caller, Pace};
use slope::Samples;
use tally::Tally;
use target::{TENANTS, Target};

const KILL_EVERY: Duration = Duration::from_secs(5);
const RELOAD_EVERY: Duration = Duration::from_secs(20);
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// The time in which full load is measured, after a moment to warm up.
const WARM_UP: Duration = Duration::from_secs(2);
const FULL_LOAD: Duration = Duration::from_secs(4);
/// Memory is judged after this time: pools, caches and the allocator have their size by then.
const SETTLED_AFTER: Duration = Duration::from_secs(600);
const GROWTH_MAX_MIB_PER_HOUR: f64 = 1.0;
/// The time until connections, streams and cancelled calls of the last callers are gone.
const IDLE_WITHIN: Duration = Duration::from_secs(30);
const CALLERS: usize = 32;

/// Runs a gateway at half load for a long time
#[derive(Parser)]
struct Options {
    #[arg(long, default_value = "40")]
    minutes: f64,
}

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        // The gateway runs its own executable again for its guards and for the bundled server.
        Some("serve" | "std" | "guard" | "key") => return trunkline::cli::run(),
        _ => run(&Options::parse()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(options: &Options) -> Result<bool> {
    let mut target = Target::start().await?;
    let idle = target.idle().await?;
    let (tally, pace) = (Arc::new(Tally::default()), Arc::new(Pace::default()));
    let mut callers = JoinSet::new();
    for number in 0..CALLERS {
        let key = target.keys[number % TENANTS].clone();
        let caller = Caller::new(number, target.address, key, tally.clone(), pace.clone())?;
        callers.spawn(caller.run());
    }
    sleep(WARM_UP).await;
    let before = tally.answered();
    sleep(FULL_LOAD).await;
    let full_load = (tally.answered() - before) as f64 / FULL_LOAD.as_secs_f64();
    println!("{full_load:.0} calls/s at full load; half of that from here on");
    pace.set(Duration::from_secs_f64(2.0 * CALLERS as f64 / full_load));

    let began = Instant::now();
    let samples = disturb(&mut target, began, options, &tally).await?;
    // The callers finish what they have begun: a call that is cut off here proves nothing.
    pace.stop();
    while callers.join_next().await.transpose()?.is_some() {}

    let mut good = tally.print();
    good &= print_growth(&samples, began.elapsed());
    let left = target.wait_until_idle(idle, IDLE_WITHIN).await?;
    println!("left at the end: {left}");
    good &= left.is_nothing();
    target.stop().await;
    Ok(good)
}

/// Kills and changes servers until the time is over, and samples the gateway's memory.
async fn disturb(
    target: &mut Target,
    began: Instant,
    options: &Options,
    tally: &Tally,
) -> Result<Samples> {
    let end = began + Duration::from_secs_f64(options.minutes * 60.0);
    let every = |period| {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    };
    let (mut kills, mut reloads) = (every(KILL_EVERY), every(RELOAD_EVERY));
    let (mut looks, mut reports) = (every(SAMPLE_EVERY), every(REPORT_EVERY));
    let mut samples = Samples::default();
    loop {
        tokio::select! {
            () = sleep_until(end) => return Ok(samples),
            _ = kills.tick() => tally.note_kill(target.kill_server()),
            _ = reloads.tick() => {
                target.change_configuration()?;
                tally.note_reload();
            }
            _ = looks.tick() => {
                let memory = target.memory()?;
                if began.elapsed() >= SETTLED_AFTER {
                    samples.add(began.elapsed(), memory);
                }
            }
            _ = reports.tick() => {
                let (minutes, memory) = (began.elapsed().as_secs() / 60, target.memory()? >> 10);
                println!("{minutes} min: {} calls, {memory} KiB", tally.answered());
            }
        }
    }
}

fn print_growth(samples: &Samples, ran: Duration) -> bool {
    let Some(growth) = samples.mib_per_hour() else {
        println!("memory: not judged, {} minutes are too short", ran.as_secs() / 60);
        return true;
    };
    let good = growth <= GROWTH_MAX_MIB_PER_HOUR;
    let verdict = if good { "pass" } else { "FAIL" };
    println!(
        "memory after the first ten minutes: {growth:+.2} MiB an hour \
         (aim: ≤ {GROWTH_MAX_MIB_PER_HOUR}), {verdict}; {samples}"
    );
    good
}
