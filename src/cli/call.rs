//! `trunkline call`

use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{StatusCode, Url};

use super::output::print;
use crate::telemetry::logging::print_line;

/// The default address of `trunkline serve`.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";
/// Exit code: the tool ran and reported an error.
const TOOL_ERROR: u8 = 1;
/// Exit code: the call failed; standard error has the reason.
const CALL_FAILED: u8 = 3;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Server id
    server: String,
    /// Tool name
    tool: String,
    /// Arguments of the tool, a JSON object
    #[arg(value_name = "JSON", default_value = "{}")]
    arguments: String,
    /// Address of the gateway
    #[arg(long, env = "TRUNKLINE_URL", default_value = DEFAULT_URL)]
    url: Url,
    /// API key, or a token of the identity provider
    #[arg(long, env = "TRUNKLINE_KEY", hide_env_values = true)]
    key: Option<String>,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let is_http = ["http", "https"].contains(&args.url.scheme());
    let mut url = args.url.clone();
    let (true, Ok(mut path)) = (is_http, url.path_segments_mut()) else {
        bail!("`{}` is not the address of a gateway: it begins with http:// or https://", args.url)
    };
    path.pop_if_empty().extend(["v1", "servers", &args.server, "tools", &args.tool]);
    drop(path);
    // The key is for the gateway, not for a proxy of the environment.
    let client = reqwest::Client::builder().no_proxy().build()?;
    let mut request = client.post(url).body(args.arguments);
    if let Some(key) = args.key.filter(|key| !key.is_empty()) {
        request = request.header(AUTHORIZATION, bearer(&key)?);
    }
    let response = request.send().await;
    let response = response.with_context(|| {
        format!(
            "no gateway answers at {}; `trunkline serve` starts one, --url names another",
            args.url
        )
    })?;
    let status = response.status();
    let tool_failed =
        response.headers().get("trunkline-outcome").is_some_and(|outcome| outcome == "tool_error");
    let body = response.text().await.context("the answer was cut off")?;
    if status != StatusCode::OK {
        print_line(body);
        return Ok(ExitCode::from(CALL_FAILED));
    }
    print(&format!("{body}\n"))?;
    Ok(if tool_failed { ExitCode::from(TOOL_ERROR) } else { ExitCode::SUCCESS })
}

/// Parses the key. No error contains the key itself.
fn bearer(key: &str) -> anyhow::Result<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| {
        anyhow!("the key has characters in it that no key has, such as a line break")
    })?;
    value.set_sensitive(true);
    Ok(value)
}
