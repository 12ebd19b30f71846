//! `trunkline std`

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use rustix::process::setpriority_process;

use crate::std_server;
use crate::telemetry::logging;

/// The priority of threads that compute.
const NICE: i32 = 5;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Calls that run at once; further calls wait. Keep it at the server's `max_in_flight` or above
    #[arg(long, value_name = "N", default_value = "64")]
    max_concurrent: NonZeroUsize,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    // Standard output carries the protocol; logs go to standard error.
    logging::init()?;
    // Computation has as many threads as there are processors, beside two for a terminal.
    let threads = available_parallelism().map_or(1, NonZeroUsize::get) + 2;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // The loop that answers all callers goes first where they share a processor.
    let runtime = runtime.max_blocking_threads(threads).on_thread_start(|| {
        let _ = setpriority_process(None, NICE);
    });
    let runtime = runtime.enable_all().build()?;
    let outcome = runtime.block_on(std_server::run_on_stdio(args.max_concurrent));
    // A thread that still waits for terminal input must not delay the exit.
    runtime.shutdown_background();
    Ok(outcome?)
}
