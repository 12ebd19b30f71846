//! Shows how the gateway stands servers that misbehave, and faults of its surroundings: its log,
//! its databases, its disks and its limits. A quiet neighbour is measured, alone and beside the
//! fault in turns, and so is the gateway's memory.
//!
//! ```text
//! cargo run --release --example reliability            three rounds, a quarter of an hour
//! cargo run --release --example reliability -- --quick    a smoke test: one round
//! cargo run --release --example reliability -- --only stopped
//! ```
//!
//! Exit code 1 if an aim is missed. Driver, gateway and the bundled server are one executable, run
//! several times; the server that misbehaves is `tests/it/fake_server.py`. Each round of a row has
//! a gateway of its own. A row that needs something that is not here says NOT RUN, and why.
//!
//! - `target`: the gateway that is watched, and calls to it
//! - `neighbour`: the quiet neighbour
//! - `watch`: what is seen of the gateway meanwhile: its memory, and what it says of the server
//! - `trouble`: what the server does, and what became of its calls; `crash_loop`: how often one is
//!   started
//! - `surroundings`: faults of the gateway's surroundings, a file for each
//! - `rows`, `figure`: the rounds of each row, and what is expected of them

#[path = "../load/client.rs"]
mod client;
mod crash_loop;
mod figure;
mod neighbour;
#[path = "../fairness/process.rs"]
mod process;
mod rows;
mod support;
mod surroundings;
mod target;
mod trouble;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Shows how the gateway stands servers that misbehave, and faults of its surroundings
#[derive(Parser)]
struct Options {
    /// A smoke test: one round, less of it, and no latency is judged
    #[arg(long)]
    quick: bool,
    /// How often to show each row
    #[arg(long, default_value = "3")]
    rounds: u32,
    /// Only rows with this word in their name
    #[arg(long)]
    only: Option<String>,
}

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        // The gateway runs its own executable again for its guards and for the bundled server;
        // keys are made by commands.
        Some("serve" | "std" | "guard" | "key") => return trunkline::cli::run(),
        _ => show(&Options::parse()),
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
async fn show(options: &Options) -> Result<bool> {
    rows::all(options).await
}
