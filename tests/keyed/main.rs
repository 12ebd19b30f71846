//! A storm for calls with an idempotency key: gateways are killed with SIGKILL at random, and
//! callers retry until they have an outcome.
//!
//! ```text
//! cargo test --release --test keyed -- --calls 1000000
//! cargo test --release --test keyed -- --calls 1000000 --postgres     two replicas
//! ```
//!
//! The server behind the gateways writes down each execution, with its key. The run fails if
//!
//! - a key was executed twice,
//! - a key that was answered was not executed, or has no outcome in time,
//! - an outcome is `unknown` although no gateway was killed meanwhile,
//! - an outcome changes when it is asked for again.
//!
//! The storm then plants a bug: before a killed gateway starts again, its marks of calls that have
//! begun are removed from the store. The run fails if the storm does not notice.
//!
//! - `child`: the server
//! - `gateways`: the gateways, and who kills them
//! - `callers`: the callers
//! - `verdict`: compares outcomes with executions

#![allow(clippy::unwrap_used)]

mod callers;
mod child;
mod gateways;
mod support;
mod verdict;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use self::gateways::{Gateways, Plant};

/// Kills gateways under calls with idempotency keys
#[derive(Clone, Parser)]
struct Options {
    /// How many keys
    #[arg(long, default_value = "6000")]
    calls: u64,
    /// Callers at once
    #[arg(long, default_value = "32")]
    callers: usize,
    /// The pause between two kills, in milliseconds, on average
    #[arg(long, default_value = "300")]
    kill_every_ms: u64,
    /// Two replicas on PostgreSQL instead of one gateway on SQLite
    #[arg(long)]
    postgres: bool,
    /// Leaves out the run with the planted bug
    #[arg(long)]
    no_plant: bool,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        // The gateway is this executable, and so are its guards.
        Some("serve" | "std" | "guard") => trunkline::cli::run(),
        Some("child") => child::run(&args[1]),
        // `cargo test -- --list` and test filters are for harnesses.
        Some("--list") => ExitCode::SUCCESS,
        _ => storm(&Options::parse()),
    }
}

#[tokio::main]
async fn storm(options: &Options) -> ExitCode {
    let mut passed = run(options, Plant::Nothing).await == 0;
    if !options.no_plant {
        let planted = Options { calls: options.calls.min(6000), ..options.clone() };
        println!("with the mark of begun calls planted away:");
        let was_seen = run(&planted, Plant::NoMark).await > 0;
        println!("the planted bug was {}", if was_seen { "seen" } else { "NOT SEEN" });
        passed &= was_seen;
    }
    println!("{} passed, {} failed", u8::from(passed), u8::from(!passed));
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the storm once. Returns the number of faults.
async fn run(options: &Options, plant: Plant) -> usize {
    let replicas = if options.postgres { 2 } else { 1 };
    let Some(gateways) = Gateways::start(replicas, options.postgres, plant).await else {
        return 0;
    };
    let addresses = gateways.addresses();
    let every = Duration::from_millis(options.kill_every_ms);
    let (outcomes, kills) = tokio::select! {
        outcomes = callers::run(&addresses, options.calls, options.callers) => {
            (outcomes, gateways.kills())
        }
        never = gateways.kill_for_ever(every) => match never {},
    };
    let executions = gateways.end().await;
    verdict::judge(&outcomes, &executions, &kills)
}
