//! `trunkline audit`: changes and their authors.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::client::GatewayArgs;
use crate::cli::output::{print_json, print_table, table};
use crate::pins::printable;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// How many entries, the latest first: 1 to 1000
    #[arg(long, default_value_t = 100)]
    limit: u32,
    /// Id of an entry, to read on from there
    #[arg(long, value_name = "ID")]
    before: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: GatewayArgs,
}

#[derive(Deserialize)]
struct Entry {
    at: Option<Timestamp>,
    actor: String,
    action: String,
    target: String,
    detail: Value,
}

#[tokio::main(flavor = "current_thread")]
pub(in crate::cli) async fn run(args: Args) -> anyhow::Result<()> {
    let mut query = vec![("limit", args.limit.to_string())];
    query.extend(args.before.map(|before| ("before", before)));
    let report = args.gateway.open()?.view_as_operator(&["admin", "v1", "audit"], &query).await?;
    if args.json {
        return print_json(&report);
    }
    let entries = Vec::<Entry>::deserialize(&report["entries"])?;
    let rows = entries.iter().map(|entry| {
        [
            entry.at.map_or_else(|| "-".to_owned(), |at| format!("{at:.0}")),
            printable(&entry.actor),
            entry.action.clone(),
            printable(&entry.target),
            printable(&detail(&entry.detail)),
        ]
    });
    print_table(&table(["AT", "ACTOR", "ACTION", "TARGET", "DETAIL"], rows))
}

/// Shows the members that are set: `name=laptop servers=["std"]`.
fn detail(detail: &Value) -> String {
    let Some(members) = detail.as_object() else { return String::new() };
    let set = members.iter().filter(|(_, value)| !value.is_null());
    let shown = set.map(|(name, value)| match value {
        Value::String(text) => format!("{name}={text}"),
        value => format!("{name}={value}"),
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_detail_is_short() {
        assert_eq!(detail(&json!({"a": "x", "b": null, "c": [1]})), "a=x c=[1]");
        assert_eq!(detail(&Value::Null), "");
    }
}
