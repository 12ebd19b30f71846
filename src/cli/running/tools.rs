//! `trunkline tools`: the tools of one server or toolset, or of all.

use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{Gateway, GatewayArgs, Viewer};
use super::servers::read;
use crate::cli::output::{print_json, print_table, table};
use crate::pins::printable;
use crate::telemetry::logging::print_line;

/// Tells the name of a toolset from that of a server.
pub(super) const TOOLSET: &str = "toolset:";

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Only the tools of this server, or of `toolset:NAME`
    server: Option<String>,
    /// Print JSON, with the tools' whole definitions
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: GatewayArgs,
}

#[derive(Deserialize)]
struct Tool {
    name: String,
    title: Option<String>,
    description: Option<String>,
}

#[tokio::main(flavor = "current_thread")]
pub(in crate::cli) async fn run(args: Args) -> anyhow::Result<()> {
    let gateway = args.gateway.open()?;
    let (mut reports, mut rows) = (vec![], vec![]);
    for (server, tools) in tools(&gateway, args.server).await? {
        for tool in Vec::<Tool>::deserialize(&tools)? {
            let about = tool.description.or(tool.title).unwrap_or_default();
            let about = printable(about.lines().next().unwrap_or_default());
            rows.push([server.clone(), printable(&tool.name), about]);
        }
        reports.push(json!({"id": server, "tools": tools}));
    }
    match args.json {
        true => print_json(&json!({"servers": reports})),
        false => print_table(&table(["SERVER", "TOOL", "DESCRIPTION"], rows)),
    }
}

/// Reads the tools of one server, or of each that is running. Standard error names the others.
async fn tools(gateway: &Gateway, server: Option<String>) -> anyhow::Result<Vec<(String, Value)>> {
    if let Some(server) = server {
        let (_, report) = tools_of(gateway, &server).await?;
        return Ok(vec![(server, report["tools"].clone())]);
    }
    let (_, servers) = read(gateway).await?;
    let mut found = vec![];
    for server in servers {
        // Not asked for its tools, a server that is idle is not started, and none is waited for.
        if ["ready", "per_tenant", "per_session"].contains(&server.state.name()) {
            match tools_of(gateway, &server.id).await {
                Ok((_, report)) => found.push((server.id, report["tools"].clone())),
                Err(error) => print_line(format_args!("{}: {error:#}", server.id)),
            }
        } else {
            print_line(format_args!("{}: {}, no tools", server.id, server.state.name()));
        }
    }
    let of_operators = ["admin", "v1", "toolsets"];
    let (_, report) = gateway.view(&of_operators, &["v1", "toolsets"], &[]).await?;
    for toolset in report["toolsets"].as_array().into_iter().flatten() {
        let name = format!("{TOOLSET}{}", toolset["id"].as_str().unwrap_or_default());
        let (_, report) = tools_of(gateway, &name).await?;
        found.push((name, report["tools"].clone()));
    }
    Ok(found)
}

async fn tools_of(gateway: &Gateway, server: &str) -> anyhow::Result<(Viewer, Value)> {
    let [kind, id] = match server.strip_prefix(TOOLSET) {
        Some(toolset) => ["toolsets", toolset],
        None => ["servers", server],
    };
    let of_operators = ["admin", "v1", kind, id, "tools"];
    gateway.view(&of_operators, &["v1", kind, id, "tools"], &[]).await
}
