//! `trunkline explain`: how the gateway decided about one call, and what would have let it through.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use super::client::GatewayArgs;
use crate::cli::output::{print, print_json, table};
use crate::common::in_words;
use crate::pins::printable;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Id of the call, as in `Trunkline-Call-Id`
    call: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: GatewayArgs,
}

#[tokio::main(flavor = "current_thread")]
pub(in crate::cli) async fn run(args: Args) -> anyhow::Result<()> {
    let id = args.call.as_str();
    let (admin, caller) = (["admin", "v1", "calls", id, "explain"], ["v1", "calls", id, "explain"]);
    let (_, explanation) = args.gateway.open()?.view(&admin, &caller, &[]).await?;
    if args.json { print_json(&explanation) } else { print(&in_words(&explanation)) }
}

fn in_words(explanation: &Value) -> String {
    let call = &explanation["call"];
    let text = |value: &Value| printable(value.as_str().unwrap_or("-"));
    let of = call["tenant"].as_str().map(|tenant| format!(" of {tenant}")).unwrap_or_default();
    let mut words = format!(
        "call {}{of}: {}/{}\narrived {}, ended {}: {} {}, executed: {}\n",
        text(&call["id"]),
        text(&call["server"]),
        text(&call["tool"]),
        text(&call["created"]),
        text(&call["ended"]),
        text(&call["outcome"]),
        call["code"].as_str().unwrap_or_default(),
        text(&call["executed"]),
    );
    let limits = explanation["limits"].as_array().into_iter().flatten();
    let rows: Vec<_> = limits
        .map(|limit| {
            [
                text(&limit["rule"]),
                text(&limit["scope"]),
                format!("{} of {}", limit["used"], limit["max"]),
                time(&limit["frees_in_ms"]),
                text(&limit["verdict"]),
            ]
        })
        .collect();
    if !rows.is_empty() {
        words += "\n";
        words += &table(["LIMIT", "SCOPE", "USED", "FREES IN", "VERDICT"], rows);
    }
    let queue = &explanation["queue"];
    if queue.is_object() {
        let (ahead, slots) = (&queue["ahead"], &queue["slots"]);
        let _ = writeln!(
            words,
            "\nwaited {} for a slot; before it {} calls of its own tenant and {} of others; \
             {} of {} slots taken, {} by its own tenant",
            time(&queue["waited_ms"]),
            ahead["own"],
            ahead["others"],
            slots["taken"],
            slots["all"],
            slots["own"],
        );
    }
    for attempt in explanation["attempts"].as_array().into_iter().flatten() {
        let (instance, after) = (&attempt["instance"], time(&attempt["dispatched_after_ms"]));
        let _ = writeln!(words, "\ninstance {instance} after {after}: {}", text(&attempt["why"]));
    }
    let remedies = explanation["would_have_passed"].as_array().map_or(&[][..], Vec::as_slice);
    if !remedies.is_empty() {
        words += "\nwould have let it through, each alone:\n";
    }
    for remedy in remedies {
        let _ = writeln!(words, "- {}", text(&remedy["text"]));
    }
    words
}

/// Shows milliseconds; short times with their fraction.
fn time(value: &Value) -> String {
    match value.as_f64() {
        Some(ms) if ms >= 1000.0 => in_words::in_words(Duration::from_secs_f64(ms / 1000.0)),
        Some(ms) => format!("{ms} ms"),
        None => "-".to_owned(),
    }
}
