//! `trunkline serve`

use std::sync::Arc;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::{ConfigArgs, Loaded, load, sources};
use crate::app::config_watch::ConfigWatch;
use crate::app::service_manager::ServiceManager;
use crate::app::{App, descriptors, signals};
use crate::common::time_slice::use_short_time_slices;
use crate::telemetry::logging;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Address and port to listen on; wins over the configuration
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    // Before other threads start, since they inherit it. Older kernels ignore it.
    let _ = use_short_time_slices();
    logging::init().context("cannot start the thread that writes the log")?;
    serve(args)
}

#[tokio::main]
async fn serve(args: Args) -> anyhow::Result<()> {
    let stop = signals::first()?;
    let mut hang_up = signal(SignalKind::hangup())?;
    #[cfg(target_os = "linux")]
    crate::backend::stdio::sandbox::make_undumpable()
        .context("other processes cannot be kept from reading this one")?;
    #[cfg(not(target_os = "linux"))]
    tracing::warn!(
        "this system is not Linux: servers run without a sandbox, and if this gateway is killed, \
         servers that do not end with their input run on"
    );
    descriptors::raise_limit();
    let watch = ConfigWatch::new(sources(args.config, args.listen)?);
    let Loaded { config, origin, own_program } = load(watch.sources())?;
    tracing::info!(configuration = origin, servers = config.servers.len(), "starting");
    let app = App::build(config, own_program).await?;
    tracing::info!(address = %app.addr()?, "listening on http://{}", app.addr()?);
    if let Some(address) = app.ops_addr() {
        tracing::info!(%address, "metrics on http://{address}/metrics");
    }
    if let Some(address) = app.replicas_addr() {
        tracing::info!(%address, "listening for other replicas on {address}");
    }
    let (asked, lines) = (Arc::new(Notify::new()), app.line_log());
    let app = app
        .with_config_watch(watch, asked.clone())
        .with_service_manager(ServiceManager::of_environment());
    tokio::spawn(async move {
        while hang_up.recv().await.is_some() {
            lines.reopen();
            asked.notify_one();
        }
    });
    app.run(stop).await;
    Ok(())
}
