//! `trunkline call`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use reqwest::{Method, StatusCode};

use super::arguments;
use super::client::GatewayArgs;
use super::times::duration;
use super::tools::TOOLSET;
use crate::cli::output::print;
use crate::telemetry::logging::print_line;

/// Exit code: the tool ran and reported an error.
const TOOL_ERROR: u8 = 1;
/// Exit code: the call failed; standard error has the reason.
const CALL_FAILED: u8 = 3;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Server id, or `toolset:NAME`
    server: String,
    /// Tool name
    tool: String,
    /// Arguments of the tool: KEY=VALUE pairs, one JSON object, `@FILE`, or `-` for standard input
    #[arg(value_name = "ARGUMENT")]
    arguments: Vec<String>,
    /// Time in which the call must end, such as 500ms or 2min [default: the server's `timeout`]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    gateway: GatewayArgs,
}

#[tokio::main(flavor = "current_thread")]
pub(in crate::cli) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let body = arguments::object(&args.arguments)?;
    let gateway = args.gateway.open()?;
    let path = match args.server.strip_prefix(TOOLSET) {
        Some(toolset) => ["v1", "toolsets", toolset, "tools", &args.tool],
        None => ["v1", "servers", &args.server, "tools", &args.tool],
    };
    let mut request = gateway.request(Method::POST, &path, &[]).body(body);
    if let Some(timeout) = args.timeout {
        request = request.header("Trunkline-Timeout-Ms", timeout.as_millis().to_string());
    }
    let response = gateway.send(request).await?;
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
