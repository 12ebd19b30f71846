//! `trunkline status`: a gateway at a glance.

use jiff::Timestamp;
use reqwest::Method;
use serde_json::json;

use super::client::{Gateway, GatewayArgs};
use super::servers::{Server, read};
use crate::cli::output::{print, print_json, print_table, table};
use crate::pins::printable;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: GatewayArgs,
}

#[tokio::main(flavor = "current_thread")]
pub(in crate::cli) async fn run(args: Args) -> anyhow::Result<()> {
    let gateway = args.gateway.open()?;
    let (report, servers) = read(&gateway).await?;
    let readiness = readiness(&gateway).await?;
    if args.json {
        return print_json(&json!({"readiness": readiness, "servers": report["servers"]}));
    }
    let (readiness, down) = (printable(&readiness), count_down(&servers));
    print(&format!("{}: {readiness}; {down}\n\n", gateway.url))?;
    print_table(&overview(&servers, Timestamp::now()))
}

/// Returns the first line of `/readyz`: `ready`, or why not.
async fn readiness(gateway: &Gateway) -> anyhow::Result<String> {
    let response = gateway.send(gateway.request(Method::GET, &["readyz"], &[])).await?;
    let text = response.text().await?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn count_down(servers: &[Server]) -> String {
    let all = servers.len();
    match servers.iter().filter(|server| server.state.is_down()).count() {
        0 => "no server is down".to_owned(),
        1 => format!("1 of {all} servers is down"),
        down => format!("{down} of {all} servers are down"),
    }
}

fn overview(servers: &[Server], now: Timestamp) -> String {
    let rows = servers.iter().map(|server| {
        [
            server.id.clone(),
            server.state.name().to_owned(),
            server.state.age(now),
            server.ready(),
            server.calls(),
            server.last_failure(now),
        ]
    });
    table(["SERVER", "STATE", "SINCE", "READY", "CALLS", "LAST FAILURE"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    #[test]
    fn the_overview_says_what_is_down_since_when_and_why() {
        let servers: Vec<Server> = from_value(json!([
            {"id": "std", "state": "ready", "since": "2026-11-18T10:00:00Z", "ready": 2,
             "instance_count": 2, "instances": [
                {"state": "ready", "starts": 1, "in_flight": 3, "limit": 64},
                {"state": "ready", "starts": 2, "in_flight": 1, "limit": 64, "last_failure":
                    {"at": "2026-11-18T11:00:00Z", "detail": "it ended with exit code 3"}}]},
            {"id": "broken", "state": "quarantined", "since": "2026-11-18T11:59:00Z", "ready": 0,
             "down_since": "2026-11-18T11:30:00Z", "instance_count": 1,
             "reason": "no\u{1b}[2K luck"},
            {"id": "own", "state": "per_tenant", "process_count": 1, "processes": [
                {"tenant": "acme", "state": "ready", "instances": [
                    {"state": "ready", "starts": 1, "in_flight": 0, "limit": 8}]}]},
        ]))
        .unwrap();
        assert_eq!(count_down(&servers), "1 of 3 servers is down");
        assert_eq!(count_down(&servers[..1]), "no server is down");
        let now = "2026-11-18T12:00:00Z".parse().unwrap();
        assert_eq!(
            overview(&servers, now),
            "SERVER  STATE        SINCE   READY      CALLS  LAST FAILURE\n\
             std     ready        2 h     2/2        4/128  1 h ago: it ended with exit code 3\n\
             broken  quarantined  30 min  0/1        -      no\\u{1b}[2K luck\n\
             own     per_tenant   -       1 process  0/8    -\n"
        );
    }
}
