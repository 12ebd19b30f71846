//! `trunkline healthcheck`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};

use super::running::gateway_url;
use super::{ConfigArgs, load_config};
use crate::app::announce::on_this_machine;
use crate::telemetry::logging::print_line;

/// Shorter than the interval at which container engines ask.
const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
pub(super) struct Args {
    /// Address of the gateway [default: `listen` of the configuration]
    #[arg(long, env = "TRUNKLINE_URL")]
    url: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Not as a command's error: that would exit with 2, which container engines reserve.
    Ok(match ask(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_line(format_args!("not ready: {error:#}"));
            ExitCode::FAILURE
        }
    })
}

async fn ask(args: Args) -> anyhow::Result<()> {
    let mut url = match args.url {
        Some(text) => gateway_url(&text).map_err(|mistake| anyhow!(mistake))?,
        None => own_url(args.config)?,
    };
    let gateway = url.to_string();
    url.path_segments_mut().expect("an HTTP address").pop_if_empty().push("readyz");
    // Asks this gateway only: no proxy of the environment, no redirect.
    let client = Client::builder().timeout(TIMEOUT).no_proxy().redirect(Policy::none()).build()?;
    let response = client.get(url).send().await;
    let response = response.with_context(|| format!("no gateway answers at {gateway}"))?;
    let status = response.status();
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::SERVICE_UNAVAILABLE => {
            let reason = response.text().await.context("the answer was cut off")?;
            bail!("{}", reason.lines().next().unwrap_or("it does not say why"))
        }
        _ => bail!("what answers at {gateway} is not a gateway: it has {status} for /readyz"),
    }
}

/// Returns the address of this machine's gateway.
fn own_url(config: ConfigArgs) -> anyhow::Result<Url> {
    // The variable wins over the file, so it is read first: a mistake in the file, with which a
    // running gateway goes on, must not make that gateway look ill.
    let variable = std::env::var("TRUNKLINE_LISTEN").ok().and_then(|text| text.parse().ok());
    let listen = match variable {
        Some(listen) => listen,
        None => load_config(config)?.config.listen,
    };
    Ok(Url::parse(&format!("http://{}", on_this_machine(listen)))?)
}
