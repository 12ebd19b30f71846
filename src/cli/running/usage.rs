//! `trunkline usage`: the calls of the last day, or of another period.

use clap::ValueEnum;
use jiff::Timestamp;
use serde::Deserialize;

use super::client::GatewayArgs;
use super::times::{moment, moment_of};
use crate::cli::output::{print, print_json, print_table, table_of_numbers};

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Only this tenant, for administrators
    #[arg(long)]
    tenant: Option<String>,
    /// Begin of the period, such as 2026-11-01T00:00:00Z [default: a day before its end]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Timestamp>,
    /// End of the period [default: now]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    to: Option<Timestamp>,
    /// Show each minute, or the sum
    #[arg(long, value_enum, default_value = "total")]
    by: By,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: GatewayArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Minute,
    Total,
}

#[derive(Deserialize)]
struct Row {
    minute: Option<Timestamp>,
    tenant: String,
    server: String,
    tool: String,
    calls: u64,
    errors: u64,
    tool_errors: u64,
    queue_ms: f64,
    backend_ms: f64,
    bytes_in: u64,
    bytes_out: u64,
}

#[tokio::main(flavor = "current_thread")]
pub(in crate::cli) async fn run(args: Args) -> anyhow::Result<()> {
    let mut query = vec![];
    query.extend(args.tenant.map(|tenant| ("tenant", tenant)));
    query.extend(args.from.map(|from| ("from", from.to_string())));
    query.extend(args.to.map(|to| ("to", to.to_string())));
    if args.by == By::Minute {
        query.push(("by", "minute".to_owned()));
    }
    let gateway = args.gateway.open()?;
    let (_, report) = gateway.view(&["admin", "v1", "usage"], &["v1", "usage"], &query).await?;
    if args.json {
        return print_json(&report);
    }
    let rows = Vec::<Row>::deserialize(&report["usage"])?;
    let end = |name: &str| moment_of(&report[name]).map(|end| format!("{end:.0}"));
    if let (Some(from), Some(to)) = (end("from"), end("to")) {
        print(&format!("from {from} to {to}\n\n"))?;
    }
    print_table(&overview(rows, args.by))
}

fn overview(mut rows: Vec<Row>, by: By) -> String {
    // The most used first; minutes in their order.
    match by {
        By::Total => rows.sort_by_key(|row| std::cmp::Reverse(row.calls)),
        By::Minute => rows.sort_by_key(|row| row.minute),
    }
    let header =
        ["TENANT", "SERVER", "TOOL", "CALLS", "ERRORS", "FAILED", "QUEUE", "BACKEND", "IN", "OUT"];
    match by {
        By::Total => table_of_numbers(header, 3, rows.iter().map(cells)),
        By::Minute => {
            let rows = rows.iter().map(|row| {
                let minute = row.minute.map_or_else(String::new, |minute| minute.to_string());
                with_first(minute, cells(row))
            });
            table_of_numbers(with_first("MINUTE", header), 4, rows)
        }
    }
}

/// Formats a row; queue and backend are the averages of one call.
fn cells(row: &Row) -> [String; 10] {
    let each = |ms: f64| format!("{:.1} ms", ms / row.calls.max(1) as f64);
    [
        row.tenant.clone(),
        row.server.clone(),
        row.tool.clone(),
        row.calls.to_string(),
        row.errors.to_string(),
        row.tool_errors.to_string(),
        each(row.queue_ms),
        each(row.backend_ms),
        bytes(row.bytes_in),
        bytes(row.bytes_out),
    ]
}

fn with_first<T>(first: T, others: [T; 10]) -> [T; 11] {
    let mut others = others.into_iter();
    let mut first = Some(first);
    std::array::from_fn(|_| first.take().or_else(|| others.next()).expect("eleven in all"))
}

/// Shows a size with three digits at least.
fn bytes(bytes: u64) -> String {
    match bytes {
        ..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{} kB", bytes / 1_000),
        10_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_used_tool_is_first_and_times_are_for_one_call() {
        let row = |tool: &str, calls| Row {
            minute: None,
            tenant: "acme".to_owned(),
            server: "std".to_owned(),
            tool: tool.to_owned(),
            calls,
            errors: 1,
            tool_errors: 0,
            queue_ms: 4.0,
            backend_ms: 20.0,
            bytes_in: 9_999,
            bytes_out: 12_345_678,
        };
        assert_eq!(
            overview(vec![row("time", 4), row("echo", 40)], By::Total),
            "TENANT  SERVER  TOOL  CALLS  ERRORS  FAILED   QUEUE  BACKEND      IN    OUT\n\
             acme    std     echo     40       1       0  0.1 ms   0.5 ms  9999 B  12 MB\n\
             acme    std     time      4       1       0  1.0 ms   5.0 ms  9999 B  12 MB\n"
        );
    }
}
