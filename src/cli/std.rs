//! `trunkline std`

use std::num::NonZeroUsize;
use std::process::ExitCode;

use crate::std_server;
use crate::telemetry::logging;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Calls that may run at once; the others wait
    #[arg(long, value_name = "N", default_value = "10")]
    max_concurrent: NonZeroUsize,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Standard output is for the protocol alone; logs go to standard error.
    logging::init();
    std_server::run_on_stdio(args.max_concurrent).await?;
    Ok(ExitCode::SUCCESS)
}
