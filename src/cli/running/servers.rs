//! `trunkline servers`: all servers, or one with its instances.

use anyhow::bail;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{Gateway, GatewayArgs};
use super::times::age;
use crate::cli::output::{print, print_json, print_table, table};
use crate::pins::printable;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Only this server, with each of its instances
    server: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: GatewayArgs,
}

/// A server as the gateway reports it. Callers get less than operators.
#[derive(Deserialize)]
pub(super) struct Server {
    pub(super) id: String,
    #[serde(flatten)]
    pub(super) state: State,
    era: Option<String>,
    protocol_version: Option<String>,
    tools: Option<usize>,
    held: Option<usize>,
    ready: Option<usize>,
    instance_count: Option<usize>,
    #[serde(default)]
    instances: Vec<Instance>,
    process_count: Option<usize>,
    #[serde(default)]
    processes: Vec<Process>,
}

#[derive(Deserialize)]
pub(super) struct State {
    state: String,
    reason: Option<String>,
    since: Option<Timestamp>,
    down_since: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Instance {
    #[serde(flatten)]
    state: State,
    starts: u64,
    in_flight: Option<u32>,
    limit: Option<u32>,
    #[serde(default)]
    stderr: Vec<String>,
    last_failure: Option<Failure>,
}

#[derive(Clone, Deserialize)]
struct Failure {
    at: Timestamp,
    detail: String,
    #[serde(default)]
    stderr: Vec<String>,
}

/// The process of one tenant, or of one session.
#[derive(Deserialize)]
struct Process {
    tenant: String,
    session: Option<String>,
    #[serde(default)]
    instances: Vec<Instance>,
}

#[tokio::main(flavor = "current_thread")]
pub(in crate::cli) async fn run(args: Args) -> anyhow::Result<()> {
    let (report, servers) = read(&args.gateway.open()?).await?;
    let Some(wanted) = args.server else {
        if args.json {
            return print_json(&report);
        }
        return print_table(&overview(&servers, Timestamp::now()));
    };
    let Some(place) = servers.iter().position(|server| server.id == wanted) else {
        let known: Vec<_> = servers.iter().map(|server| server.id.as_str()).collect();
        bail!("there is no server `{}`; there are: {}", printable(&wanted), known.join(", "));
    };
    match args.json {
        true => print_json(&report["servers"][place]),
        false => describe(&servers[place], Timestamp::now()),
    }
}

/// Reads all servers, as JSON and typed.
pub(super) async fn read(gateway: &Gateway) -> anyhow::Result<(Value, Vec<Server>)> {
    let (_, report) = gateway.view(&["admin", "v1", "servers"], &["v1", "servers"], &[]).await?;
    let servers = Vec::deserialize(&report["servers"])?;
    Ok((json!({"servers": report["servers"]}), servers))
}

fn overview(servers: &[Server], now: Timestamp) -> String {
    let header = ["SERVER", "STATE", "SINCE", "ERA", "PROTOCOL", "TOOLS", "HELD", "READY", "CALLS"];
    let none = || "-".to_owned();
    let rows = servers.iter().map(|server| {
        let count = |number: Option<usize>| number.map_or_else(none, |number| number.to_string());
        [
            server.id.clone(),
            server.state.state.clone(),
            server.state.age(now),
            server.era.clone().unwrap_or_else(none),
            server.protocol_version.clone().unwrap_or_else(none),
            count(server.tools),
            count(server.held),
            server.ready(),
            server.calls(),
        ]
    });
    table(header, rows)
}

fn describe(server: &Server, now: Timestamp) -> anyhow::Result<()> {
    let Server { id, state, instances, processes, .. } = server;
    let reason = state.reason.as_deref().map(|reason| format!(": {}", printable(reason)));
    print(&format!("{id}: {}{}\n\n", state.state, reason.unwrap_or_default()))?;
    let header = ["OF", "STATE", "SINCE", "STARTS", "CALLS", "LAST FAILURE"];
    let shared = instances.iter().enumerate().map(|(number, it)| (format!("#{number}"), it));
    let owned = processes.iter().flat_map(|process| {
        let session = process.session.as_deref().map(|session| format!(" {session}"));
        let owner = format!("{}{}", process.tenant, session.unwrap_or_default());
        process.instances.iter().map(move |instance| (owner.clone(), instance))
    });
    let all: Vec<_> = shared.chain(owned).collect();
    let rows = all.iter().map(|(of, instance)| {
        [
            of.clone(),
            instance.state.state.clone(),
            instance.state.age(now),
            instance.starts.to_string(),
            calls([*instance]),
            failure(instance.last_failure.as_ref(), now),
        ]
    });
    print_table(&table(header, rows))?;
    for (of, instance) in &all {
        let lines = instance.last_words();
        if lines.is_empty() {
            continue;
        }
        print(&format!("\nstandard error of {of}:\n"))?;
        for line in lines {
            print(&format!("  {}\n", printable(line)))?;
        }
    }
    Ok(())
}

impl Instance {
    /// Returns the last lines of standard error; those of the failed run while the next has none.
    fn last_words(&self) -> &[String] {
        match &self.last_failure {
            Some(failure) if self.stderr.is_empty() => &failure.stderr,
            _ => &self.stderr,
        }
    }
}

impl State {
    /// Returns how long it has been so; of a server that is down, how long it has been down.
    pub(super) fn age(&self, now: Timestamp) -> String {
        let since = self.down_since.or(self.since);
        since.map_or_else(|| "-".to_owned(), |since| age(since, now))
    }

    pub(super) fn is_down(&self) -> bool {
        self.down_since.is_some()
    }

    pub(super) fn name(&self) -> &str {
        &self.state
    }
}

impl Server {
    /// Returns the instances that are ready, of all; or the number of processes.
    pub(super) fn ready(&self) -> String {
        match (self.ready, self.instance_count, self.process_count) {
            (Some(ready), Some(all), _) => format!("{ready}/{all}"),
            (_, _, Some(1)) => "1 process".to_owned(),
            (_, _, Some(processes)) => format!("{processes} processes"),
            _ => "-".to_owned(),
        }
    }

    /// Returns the calls in flight, of as many as there may be.
    pub(super) fn calls(&self) -> String {
        calls(self.all_instances())
    }

    /// Returns the last failure of any instance, or why the server is down.
    pub(super) fn last_failure(&self, now: Timestamp) -> String {
        let failures = self.all_instances().filter_map(|instance| instance.last_failure.as_ref());
        match (failures.max_by_key(|failure| failure.at), &self.state.reason) {
            (None, Some(reason)) => printable(reason),
            (last, _) => failure(last, now),
        }
    }

    fn all_instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances.iter().chain(self.processes.iter().flat_map(|process| &process.instances))
    }
}

fn calls<'a>(instances: impl IntoIterator<Item = &'a Instance>) -> String {
    let (mut now, mut most) = (None, 0);
    for instance in instances {
        let Some(in_flight) = instance.in_flight else { continue };
        now = Some(now.unwrap_or(0) + in_flight);
        most += instance.limit.unwrap_or(0);
    }
    now.map_or_else(|| "-".to_owned(), |now| format!("{now}/{most}"))
}

fn failure(failure: Option<&Failure>, now: Timestamp) -> String {
    failure.map_or_else(
        || "-".to_owned(),
        |failure| format!("{} ago: {}", age(failure.at, now), printable(&failure.detail)),
    )
}
