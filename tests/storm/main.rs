//! The identity storm: many tenants, all numbering their calls 1, 2, 3…, share a few servers that
//! answer late, twice, out of order, not at all, to nobody, and that die; every answer must reach
//! its own call.
//!
//! Calls take the real path, down to child processes under their guards: from
//! [`trunkline::gateway::Gateway::call`] (`--front gateway`), or from MCP clients that come over
//! HTTP, each tenant to a front of its own (`--front mcp`). Each call carries a mark in its
//! arguments, the server echoes it, and an answer with another mark is a mismatch; over MCP also
//! progress with another mark or token, an answer with another id, whatever comes after the answer,
//! and updates and log lines that name another tenant. Two runs make the test, of either front:
//!
//! 1. `honest`: the gateway as it is. One mismatch, hanging call, leaked slot or left-over process
//!    fails it.
//! 2. `planted`: the gateway made to use its callers' ids. It fails if **no** mismatch is seen: a
//!    storm that cannot see the bug proves nothing.
//!
//! A third run, `killing`, kills every server each 250 ms at half of the load that the machine can
//! take, and looks how soon the calls on them are answered, and whether a neighbour notices
//! (`--kill SECONDS`).
//!
//! Everything that is decided by chance comes from the seed: what each call of each worker is like,
//! what the server does with it, when which server is killed. The same seed decides the same; how
//! the operating system schedules it all differs from run to run, so a rare race may take several
//! replays to show again.
//!
//! The executable plays three parts: the driver, the server (`child`), and the guard that the
//! gateway puts before each server (`guard`).

mod checks;
mod child;
mod direct;
mod driver;
mod input;
mod killing;
mod mcp;
mod misbehaviour;
mod options;
mod outcome;
mod plan;
mod planted;
mod processes;
mod report;
mod round;
mod stalls;
mod watchdog;
mod worker;

use std::process::ExitCode;

use options::Options;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("guard" | "std") => trunkline::cli::run(),
        Some("child") => child::run(&args[1..]),
        _ => match Options::parse(&args) {
            Ok(Some(options)) => driver::run(&options),
            Ok(None) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::from(2)
            }
        },
    }
}
