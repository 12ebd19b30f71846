//! Measures what tenants of one server can do to each other: quiet tenants' latency alone and next
//! to one that floods, is slow, asks for more than its rate, hangs, or cancels; and how the server
//! is divided among tenants that all want more.
//!
//! ```text
//! cargo run --release --example fairness                 five rounds of ten seconds for each row
//! cargo run --release --example fairness -- --seconds 60
//! cargo run --release --example fairness -- --only slots   hostile rows whose names contain this,
//!                                                          as a Markdown table
//! ```
//!
//! Exit code 1 if a criterion is missed. Driver, gateway and the bundled server are one executable,
//! run several times. Each round of a row has a gateway of its own, with a server of 16 slots and
//! 100 tenants.
//!
//! - `target`: the gateway that is measured, its tenants and its servers
//! - `process`: the process it is
//! - `load`: what the tenants do
//! - `rows`: the rows, and what is expected of them
//! - `bare`: a server without a gateway, for what a load does to any server
//! - `hostile`: the rows of hostile tenants, at default settings, and what is expected of them

mod bare;
#[path = "../load/client.rs"]
mod client;
mod hostile;
mod load;
mod process;
mod rows;
mod target;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use trunkline::common::time_slice::use_short_time_slices;

/// Measures what tenants of one server can do to each other
#[derive(Parser)]
struct Options {
    /// How long to measure for each row
    #[arg(long, default_value = "10")]
    seconds: u32,
    /// How often to measure each row, alone and beside in turns
    #[arg(long, default_value = "5")]
    rounds: u32,
    /// Measure only rows of hostile tenants whose names contain this
    #[arg(long)]
    only: Option<String>,
}

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        // The gateway runs its own executable again for its guards and for the bundled server.
        Some("serve" | "std" | "guard") => return trunkline::cli::run(),
        Some(bare::COMMAND) => bare::serve().map(|()| true),
        _ => measure(&Options::parse()),
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
async fn measure(options: &Options) -> Result<bool> {
    // As the gateway does: a task that floods does not keep the neighbour's from its processor.
    let _ = use_short_time_slices();
    let (time, rounds) = (Duration::from_secs(options.seconds.into()), options.rounds);
    let Some(only) = &options.only else {
        // All of them, whatever the first ones say.
        let good = rows::all(time, rounds).await?;
        return Ok(good & hostile::all("", time, rounds).await?);
    };
    hostile::all(only, time, rounds).await
}
