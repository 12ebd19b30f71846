//! Sends generated HTTP/1.1 and HTTP/2 to a running gateway, byte by byte as no client would.
//!
//! ```text
//! cargo test --test http_fuzz -- --seconds 3600
//! cargo test --test http_fuzz -- --seed 7 --only 1234     one connection again
//! ```
//!
//! Each connection follows a script that is drawn from the seed and its number: whole and broken
//! requests, headers, bodies, chunks, frames, resets and windows. When the script is over, the
//! client closes its side. Meanwhile a well-behaved caller makes calls. The run fails if
//!
//! - the gateway has not closed a connection within [`hunt::CLOSED_WITHIN`] after its client did,
//! - a response has the status 500,
//! - a call of the well-behaved caller fails or waits for long,
//! - the gateway panics or ends, or calls are left in flight.
//!
//! - `http1`, `http2`: the scripts
//! - `gateway`: the gateway, in a process of its own
//! - `hunt`: the connections, and what is seen of each

#![allow(clippy::unwrap_used)]

#[path = "../../examples/load/client.rs"]
mod client;
mod gateway;
mod http1;
mod http2;
mod hunt;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

/// Sends generated HTTP to a gateway
#[derive(Parser)]
struct Options {
    /// How long to go on
    #[arg(long, default_value = "3")]
    seconds: u64,
    /// Decides what is sent
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Only the connection with this number
    #[arg(long)]
    only: Option<u64>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        // The gateway is this executable, and so are its guards and the bundled server.
        Some("serve" | "std" | "guard") => trunkline::cli::run(),
        // `cargo test -- --list` and test filters are for harnesses.
        Some("--list") => ExitCode::SUCCESS,
        _ => fuzz(&Options::parse()),
    }
}

#[tokio::main]
async fn fuzz(options: &Options) -> ExitCode {
    let gateway = gateway::Gateway::start().await;
    let time = Duration::from_secs(options.seconds);
    let (connections, mut faults) =
        hunt::run(gateway.address, options.seed, options.only, time).await;
    faults.extend(gateway.end().await);
    for fault in &faults {
        println!("{fault}");
    }
    println!("{connections} connections, seed {}: {} faults", options.seed, faults.len());
    let failed = u64::from(!faults.is_empty());
    println!("{} passed, {failed} failed", 1 - failed);
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
