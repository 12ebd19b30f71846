//! The conditions for `adaptive` by default: is a serial server found soon, does a concurrent one
//! keep its throughput, and can a tenant make one look like the other? Measured only by name: the
//! answers decide a default, and promise nothing.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::gateway::{Gateway, again};
use super::lone::throughput;
use super::neighbour::Neighbour;
use super::servers::{bundled, fake};
use crate::client::Client;
use crate::rows::verdict;

pub const NAME: &str = "adaptive-conditions";

/// Hostile calls at once: all open slots of 64.
const CALLS: usize = 48;
/// A limit that leaves a concurrent server no room, and suits a serial one.
const LOW: u64 = 4;
const FOUND_WITHIN: Duration = Duration::from_secs(10);
const LOOK_FOR: Duration = Duration::from_secs(60);
const KEPT_MIN: f64 = 0.97;

/// Measures and prints the three conditions. Tells whether all are met.
pub async fn measure(time: Duration, rounds: u32) -> Result<bool> {
    let mut good = true;
    for ms in [10, 30, 100, 500] {
        let found = found_within(ms).await?;
        let is_soon = found.is_some_and(|it| it <= FOUND_WITHIN);
        println!(
            "a serial server, calls of {ms} ms: found after {found:.1?}  {}",
            verdict(is_soon)
        );
        good &= is_soon;
    }
    for (name, neighbour) in MIXES {
        let (mut with, mut without) = (0, 0);
        for _ in 0..rounds {
            with += throughput(|dir| settings(dir, true), neighbour, time).await?;
            without += throughput(|dir| settings(dir, false), neighbour, time).await?;
        }
        let kept = with as f64 / without as f64;
        println!("a concurrent server, {name}: {kept:.3} kept  {}", verdict(kept >= KEPT_MIN));
        good &= kept >= KEPT_MIN;
    }
    for cycle in [
        // Slow calls for a sample under the usual limit, quick ones for a probe's.
        Cycle { server: "std", tool: "sleep", usual: (176, 200), probe: (32, 10) },
        Cycle { server: "std", tool: "sleep", usual: (176, 200), probe: (64, 10) },
        // The reverse, at a serial server.
        Cycle { server: "fake", tool: "serial", usual: (176, 10), probe: (32, 100) },
        Cycle { server: "fake", tool: "serial", usual: (176, 10), probe: (64, 100) },
        // The same mean without a turn: what the search finds if nobody misleads it.
        Cycle { server: "fake", tool: "serial", usual: (176, 24), probe: (32, 24) },
    ] {
        let least = cycle.least_slots().await?;
        let is_right = if cycle.server == "std" { least > CALLS as u64 } else { least <= LOW };
        println!("a tenant with {cycle:?}: least slots {least}  {}", verdict(is_right));
        good &= is_right;
    }
    Ok(good)
}

const MIXES: [(&str, Neighbour); 3] = [
    (
        "sleeps of 50 ms",
        Neighbour {
            callers: CALLS,
            request: |tenant| tenant.call("std", "sleep", "", r#"{"ms":50}"#),
            answer: "slept",
        },
    ),
    (
        "sleeps of 500 ms",
        Neighbour {
            callers: CALLS,
            request: |tenant| tenant.call("std", "sleep", "", r#"{"ms":500}"#),
            answer: "slept",
        },
    ),
    (
        "echoes",
        Neighbour {
            callers: CALLS,
            request: |tenant| tenant.call("std", "echo", "", r#"{"text":"here"}"#),
            answer: "here",
        },
    ),
];

fn settings(dir: &Path, is_adaptive: bool) -> Result<String> {
    let adaptive = format!("adaptive = {is_adaptive}");
    Ok(bundled(&adaptive) + &fake(dir, &[], &adaptive))
}

/// Returns the time until the limit of a serial server is low.
async fn found_within(ms: u64) -> Result<Option<Duration>> {
    let gateway = Gateway::start(|dir| settings(dir, true)).await?;
    let tenant = gateway.tenant("hostile");
    let body = format!("{{\"ms\":{ms}}}");
    let header = "trunkline-timeout-ms: 60000\r\n";
    let _calls = again(tenant, CALLS, &tenant.call("fake", "serial", header, &body));
    let since = Instant::now();
    let mut found = None;
    while since.elapsed() < LOOK_FOR && found.is_none() {
        sleep(Duration::from_millis(50)).await;
        found = (slots(&gateway, "fake").await? <= LOW).then(|| since.elapsed());
    }
    gateway.stop().await;
    Ok(found)
}

/// One tenant's calls: so many of so many milliseconds for a sample, and then for a probe.
#[derive(Debug)]
struct Cycle {
    server: &'static str,
    tool: &'static str,
    usual: (u64, u64),
    probe: (u64, u64),
}

impl Cycle {
    async fn least_slots(&self) -> Result<u64> {
        let gateway = Gateway::start(|dir| settings(dir, true)).await?;
        let (count, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        for _ in 0..CALLS {
            let (tenant, count) = (gateway.tenant("hostile").clone(), count.clone());
            let Self { server, tool, usual, probe } = *self;
            tasks.spawn(async move {
                let mut client = Client::connect(tenant.address).await?;
                loop {
                    let nth = count.fetch_add(1, Ordering::Relaxed) % (usual.0 + probe.0);
                    let ms = if nth < usual.0 { usual.1 } else { probe.1 };
                    let body = format!("{{\"ms\":{ms}}}");
                    client.call(&tenant.call(server, tool, "", &body)).await?;
                }
                #[allow(unreachable_code, reason = "the type of the errors above")]
                anyhow::Ok(())
            });
        }
        let (since, mut least) = (Instant::now(), u64::MAX);
        while since.elapsed() < LOOK_FOR {
            sleep(Duration::from_millis(50)).await;
            least = least.min(slots(&gateway, self.server).await?);
        }
        drop(tasks);
        gateway.stop().await;
        Ok(least)
    }
}

/// Returns the slots that a server has now.
async fn slots(gateway: &Gateway, server: &str) -> Result<u64> {
    let address = gateway.tenant("neighbour").address;
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\n\r\n");
    let mut client = Client::connect(address).await?;
    let answer = client.call(request.as_bytes()).await?;
    let start = format!("trunkline_server_slots{{server=\"{server}\"}} ");
    let text = String::from_utf8_lossy(answer.body);
    let line = text.lines().find_map(|line| line.strip_prefix(start.as_str()));
    Ok(line.context("no slots in the metrics")?.parse()?)
}
