//! `trunkline calls`: the calls that run now, for administrators; a tenant's kept calls.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::client::{GatewayArgs, Viewer};
use super::times::{age, moment_of};
use crate::cli::output::{print_json, print_table, table};
use crate::pins::printable;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// How many calls: 1 to 1000
    #[arg(long, default_value_t = 100)]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: GatewayArgs,
}

/// A call that runs now.
#[derive(Deserialize)]
struct LiveCall {
    id: String,
    tenant: String,
    server: String,
    state: String,
    since: Timestamp,
}

#[derive(Deserialize)]
struct KeptCall {
    id: String,
    server: String,
    tool: String,
    state: String,
    created: Value,
    outcome: Option<String>,
    code: Option<String>,
}

#[tokio::main(flavor = "current_thread")]
pub(in crate::cli) async fn run(args: Args) -> anyhow::Result<()> {
    let query = [("limit", args.limit.to_string())];
    let gateway = args.gateway.open()?;
    let (viewer, report) =
        gateway.view(&["admin", "v1", "calls"], &["v1", "calls"], &query).await?;
    if args.json {
        return print_json(&report);
    }
    let now = Timestamp::now();
    let calls = &report["calls"];
    print_table(&match viewer {
        Viewer::Operator => live(&Vec::deserialize(calls)?, now),
        Viewer::Caller => kept(&Vec::deserialize(calls)?, now),
    })
}

fn live(calls: &[LiveCall], now: Timestamp) -> String {
    let rows = calls.iter().map(|call| {
        let LiveCall { id, tenant, server, state, since } = call;
        [id.clone(), tenant.clone(), server.clone(), state.clone(), age(*since, now)]
    });
    table(["CALL", "TENANT", "SERVER", "STATE", "FOR"], rows)
}

fn kept(calls: &[KeptCall], now: Timestamp) -> String {
    let rows = calls.iter().map(|call| {
        let created = moment_of(&call.created).map(|created| format!("{} ago", age(created, now)));
        [
            call.id.clone(),
            call.server.clone(),
            printable(&call.tool),
            call.state.clone(),
            created.unwrap_or_else(|| "-".to_owned()),
            call.code.clone().or_else(|| call.outcome.clone()).unwrap_or_else(|| "-".to_owned()),
        ]
    });
    table(["CALL", "SERVER", "TOOL", "STATE", "CREATED", "OUTCOME"], rows)
}
