//! `trunkline serve`

use std::process::ExitCode;

use super::{ConfigArgs, load_config};
use crate::app::App;
use crate::shutdown::Signals;
use crate::telemetry::logging;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Where to listen, instead of what the configuration says
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
}

#[tokio::main]
pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let signals = Signals::listen()?;
    logging::init();
    let (config, own_program) = load_config(args.config, args.listen)?;
    tracing::info!(configuration = %config.origin, servers = config.servers.len(), "starting");
    let app = App::build(config, own_program).await?;
    tracing::info!(address = %app.addr()?, "listening on http://{}", app.addr()?);
    if let Some(address) = app.ops_addr() {
        tracing::info!(%address, "metrics on http://{address}/metrics");
    }
    app.run(signals.first()).await;
    Ok(ExitCode::SUCCESS)
}
