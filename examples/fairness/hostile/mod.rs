//! Rows in which one tenant is hostile, and a neighbour's calls must not notice.
//!
//! To add a row: write a [`Row`] in the file of its point (or a new file), and name it in [`ROWS`].
//!
//! Each round of a row has two gateways, one after the other: the neighbour's calls alone, and
//! beside the hostile tenant, which begins [`HEAD_START`] earlier. Settings are the defaults,
//! except those that the row is about. Where the load alone keeps the processors busy, a round also
//! has a [`bare`](crate::bare) server in the gateway's place.

mod adaptive;
pub mod apart;
mod connections;
mod frames;
mod gateway;
mod lone;
mod mcp;
mod neighbour;
mod poison;
mod serial;
mod servers;
mod sessions;
mod slots;
mod stuck;
mod unread;
mod upstream;
mod watch;
mod work;
mod worst;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;
use tokio::time::sleep;

use self::gateway::Gateway;
use self::neighbour::{Neighbour, Outcome};
use crate::rows::verdict;

/// The rows, in the order of the table.
const ROWS: &[&[Row]] = &[
    slots::ROWS,
    stuck::ROWS,
    sessions::ROWS,
    upstream::ROWS,
    work::ROWS,
    serial::ROWS,
    poison::ROWS,
    watch::ROWS,
    unread::ROWS,
    connections::ROWS,
    worst::ROWS,
];

/// The time that the hostile tenant has for itself first: it has taken all that it can get by then.
const HEAD_START: Duration = Duration::from_secs(1);

/// One hostile behaviour, and what it may do to a neighbour at most.
pub struct Row {
    /// The name for `--only`: the point, and the case.
    pub name: &'static str,
    /// The hostile tenant's behaviour, in the words of the table.
    pub does: &'static str,
    /// Writes the files that the servers need into the gateway's directory, and returns the
    /// configuration. Each tenant in it gets a key. Tenants `hostile` and `neighbour` are added,
    /// with all servers, unless they are there.
    pub settings: fn(&Path) -> Result<String>,
    /// Starts the hostile tenant's tasks. They are aborted at the end.
    pub hostile: fn(&Gateway) -> JoinSet<()>,
    pub neighbour: Neighbour,
    pub aim: Aim,
}

/// The bounds of a row. None of the neighbour's calls may hang, and none may be refused.
pub struct Aim {
    /// The neighbour's p99 may be so many times the allowed one: its calls run in rounds if there
    /// are more of them than its kept share.
    pub rounds: u32,
    /// The time of the running call that the neighbour may have to wait for, at a serial server, or
    /// of whatever else nothing can interrupt.
    pub running_call: Duration,
    /// Whether the p99 may be as long as it is allowed to be beside the same load at a bare server.
    pub as_at_bare: bool,
    /// The calls that a crash may take: those in flight there. [`Gateway::crashes`] counts crashes.
    pub lost_per_crash: u64,
    pub peak_mib_max: u64,
    /// Looks at the gateway beside the hostile tenant, when the neighbour has called.
    pub check: fn(&Gateway) -> Result<()>,
}

impl Aim {
    /// Nothing is noticed.
    pub const USUAL: Self = Self {
        rounds: 1,
        running_call: Duration::ZERO,
        as_at_bare: false,
        lost_per_crash: 0,
        peak_mib_max: 256,
        check: |_| Ok(()),
    };

    /// Returns the longest p99 that is allowed beside, for this one alone and perhaps this one
    /// beside the same load at a bare server.
    fn p99_max(&self, alone: Duration, at_bare: Option<Duration>) -> Duration {
        let allowed = |p99: Duration| p99.mul_f64(1.2).max(p99 + Duration::from_millis(2));
        let allowed_alone = allowed(alone) * self.rounds + self.running_call;
        at_bare.map_or(allowed_alone, |it| allowed(it).max(allowed_alone))
    }
}

/// Outcome of one round's half.
struct Measured {
    outcome: Outcome,
    crashes: u64,
    peak_mib: u64,
}

/// Measures and prints the rows whose names contain `only`. Tells whether all aims are met.
pub async fn all(only: &str, time: Duration, rounds: u32) -> Result<bool> {
    let mut good = true;
    let mut is_first = true;
    for row in ROWS.iter().copied().flatten().filter(|row| row.name.contains(only)) {
        if is_first {
            print_head();
        }
        is_first = false;
        good &= measure(row, time, rounds).await.unwrap_or_else(|error| {
            println!(
                "| `{}` | {} | {error:#} | | | | | | {} |",
                row.name,
                row.does,
                verdict(false)
            );
            false
        });
    }
    if lone::NAME.contains(only) {
        good &= lone::measure(time, rounds).await?;
    }
    if only == adaptive::NAME {
        good &= adaptive::measure(time, rounds).await?;
    }
    Ok(good)
}

async fn measure(row: &Row, time: Duration, rounds: u32) -> Result<bool> {
    let (mut alone, mut beside, mut at_bare) = (vec![], vec![], vec![]);
    // In turns: whatever else the machine does, it does to all.
    for _ in 0..rounds {
        alone.push(round(row, false, time).await?);
        beside.push(round(row, true, time).await?);
        if row.aim.as_at_bare {
            at_bare.push(round_at_bare(row, time).await?);
        }
    }
    let p99_alone = median(&alone, 0.99);
    let p99 = median(&beside, 0.99);
    let p99_at_bare = row.aim.as_at_bare.then(|| median(&at_bare, 0.99));
    let p99_max = row.aim.p99_max(p99_alone, p99_at_bare);
    let peak_mib = beside.iter().map(|it| it.peak_mib).max().unwrap_or_default();
    let refused = beside.iter().map(|it| it.outcome.refused).sum::<u64>();
    let hung = beside.iter().map(|it| it.outcome.hung).sum::<u64>();
    let refused_max = row.aim.lost_per_crash * beside.iter().map(|it| it.crashes).sum::<u64>();
    // A row whose neighbour fails alone measures nothing.
    let is_sound = alone.iter().chain(&at_bare).all(|it| it.outcome.refused + it.outcome.hung == 0);
    let has_calls = alone.iter().chain(&beside).all(|it| !it.outcome.latencies.is_empty());
    let good = is_sound
        && has_calls
        && p99 <= p99_max
        && refused <= refused_max
        && hung == 0
        && peak_mib <= row.aim.peak_mib_max;
    let calls = refused + beside.iter().map(|it| it.outcome.latencies.len() as u64).sum::<u64>();
    println!(
        "| `{}` | {} | {:.3?}, {p99_alone:.3?} | {:.3?}, {p99:.3?} | {p99_max:.3?} | {refused} of \
         {calls} | {hung} | {peak_mib} MiB | {} |",
        row.name,
        row.does,
        median(&alone, 0.5),
        median(&beside, 0.5),
        verdict(good),
    );
    let failures = |of: &'static str, them: &[Measured]| {
        if let Some(answer) = them.iter().find_map(|it| it.outcome.first_refusal.as_ref()) {
            eprintln!("{}: the first refusal {of}: {answer}", row.name);
        }
    };
    failures("alone", &alone);
    failures("beside", &beside);
    failures("at a bare server", &at_bare);
    if let Some(p99) = p99_at_bare {
        let p50 = median(&at_bare, 0.5);
        println!("| | the same load at a bare server | | {p50:.3?}, {p99:.3?} | | | | | |");
    }
    Ok(good)
}

/// Prints the head of a Markdown table.
fn print_head() {
    println!(
        "| row | the hostile tenant | p50, p99 alone | p50, p99 beside | p99 aim | refused | hung \
         | memory | |\n|---|---|---|---|---|---|---|---|---|"
    );
}

async fn round(row: &Row, is_beside: bool, time: Duration) -> Result<Measured> {
    let gateway = Gateway::start(row.settings).await?;
    let mut hostile = JoinSet::new();
    if is_beside {
        hostile = (row.hostile)(&gateway);
        sleep(HEAD_START).await;
    }
    let outcome = row.neighbour.call(gateway.tenant("neighbour"), time).await;
    if is_beside {
        (row.aim.check)(&gateway)?;
    }
    let crashes = gateway.crashes.load(Ordering::Relaxed);
    let peak_mib = gateway.peak_mib()?;
    drop(hostile);
    gateway.stop().await;
    Ok(Measured { outcome, crashes, peak_mib })
}

/// Measures the neighbour beside the hostile load, both at a bare server.
async fn round_at_bare(row: &Row, time: Duration) -> Result<Measured> {
    let bare = Gateway::bare().await?;
    let hostile = (row.hostile)(&bare);
    sleep(HEAD_START).await;
    let outcome = row.neighbour.call(bare.tenant("neighbour"), time).await;
    drop(hostile);
    bare.stop().await;
    Ok(Measured { outcome, crashes: 0, peak_mib: 0 })
}

/// The median of the rounds' quantiles: a pause of the machine's spoils a round, not the figure.
fn median(rounds: &[Measured], part: f64) -> Duration {
    let mut quantiles: Vec<_> = rounds.iter().map(|it| it.outcome.quantile(part)).collect();
    quantiles.sort();
    quantiles[quantiles.len() / 2]
}
