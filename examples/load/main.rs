//! Measures the gateway under load, and in the same run a bare HTTP server that only echoes: the
//! floor, below which nothing that speaks HTTP on this machine can get. Only the ratios of the two
//! mean anything on another machine.
//!
//! ```text
//! cargo run --release --example load                            64 connections, as fast as it goes
//! cargo run --release --example load -- --front both           REST and MCP, one against the other
//! cargo run --release --example load -- --front keys               what keys and limits cost
//! cargo run --release --example load -- --front keyed              what an `Idempotency-Key` costs
//! cargo run --release --example load -- --front batch --connections 16  batches of 100 calls
//! cargo run --release --example load -- --connections 1            the time one call takes
//! cargo run --release --example load -- --rate 2000            latency at a fixed rate of arrivals
//! cargo run --release --example load -- --concurrent-sleep 64      64 waiting calls at once
//! cargo run --release --example load -- --help
//! ```
//!
//! Client, gateway, floor and the gateway's own server are one executable, run several times: see
//! [`main`]. Exit code 1 if any call failed or got an answer that was not its own, or if keys,
//! limits, the queue and usage together cost more than they may.
//!
//! - `options`: the command line
//! - `target`: the processes that are measured; `floor` is the bare server
//! - `client`, `exchange`: one HTTP connection; a request, over REST or MCP, and the answer that
//!   must come back
//! - `drive`, `pace`: many connections for a while, at a fixed rate if asked
//! - `burst`: many calls at one moment
//! - `usage`, `report`: what it cost, and how it is shown; `apart`: what only can be measured for
//!   itself

mod apart;
mod burst;
mod client;
mod drive;
mod exchange;
mod floor;
mod options;
mod pace;
mod report;
mod target;
mod usage;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::options::Options;
use crate::report::{Measured, Report};
use crate::target::{Kind, Target};

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        // The gateway runs its own executable again for its guards and for the bundled server.
        Some("serve" | "std" | "guard" | "check" | "call" | "key") => {
            return trunkline::cli::run();
        }
        Some("floor") => floor::run().map(|()| ExitCode::SUCCESS),
        _ => measure(&Options::parse()),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}

#[tokio::main(flavor = "current_thread")]
async fn measure(options: &Options) -> Result<ExitCode> {
    if let Some(calls) = options.concurrent_sleep {
        return burst::run(options, calls.get()).await;
    }
    let mut report = Report::default();
    if !options.json {
        report::print_header();
    }
    // Taking turns, so that what else happens on the machine hits all alike.
    for round in 1..=options.rounds.get() {
        for kind in options.kinds() {
            let target = Target::open(kind, options).await?;
            let measured = measure_target(&target, options).await?;
            target.stop().await;
            if !options.json {
                report::print_row(&round.to_string(), &measured);
            }
            report.add(measured);
        }
    }
    if options.kinds().contains(&Kind::Limited) {
        report.note_apart(apart::queue_and_usage_us()?);
    }
    if options.json {
        println!("{}", report.to_json()?);
    } else {
        report.print_summary();
    }
    Ok(report.exit_code())
}

async fn measure_target(target: &Target, options: &Options) -> Result<Measured> {
    let idle = target.memory();
    let load = drive::start(target, options)?;
    tokio::time::sleep_until(load.begin).await;
    let before = target.cpu_times();
    tokio::time::sleep_until(load.end).await;
    let after = target.cpu_times();
    // Still with all connections open.
    let loaded = target.memory();
    let tally = load.finish()?;
    Ok(Measured::new(target.kind(), &tally, options.duration(), (before, after), (idle, loaded)))
}
