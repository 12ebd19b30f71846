//! Measures the limits of tenants: whether each tenant gets exactly its limit, and what a check
//! costs.
//!
//! ```text
//! cargo run --release --example limits                    in memory
//! cargo run --release --example limits -- --tenants 1000 --seconds 20
//! cargo run --release --example limits -- --shared redis://127.0.0.1:6379
//!                                                         two replicas and one Valkey
//! ```
//!
//! Exits with 1 if a tenant was admitted over one percent more or less than its limit.
//!
//! - `load`: many tenants that call as often as they can
//! - `cost`: the time of one check

mod cost;
mod load;

use std::num::NonZeroU32;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use trunkline::config::Secret;
use trunkline::telemetry::metrics::Metrics;
use trunkline::tenants::limits::SharedLimits;
use trunkline::tenants::limits::shared::ANSWER_TIMEOUT;

/// In percent.
const DEVIATION_MAX: f64 = 1.0;
/// How long the replicas may take to find Valkey and each other.
const START_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Parser)]
struct Options {
    /// Tenants that call [default: 1000, with shared limits 200]
    #[arg(long)]
    tenants: Option<NonZeroU32>,
    /// Seconds to run. The longer, the lower are the rates: each tenant earns 300 to 600 calls.
    #[arg(long, default_value = "20")]
    seconds: NonZeroU32,
    /// A Valkey or Redis in which two replicas share the limits.
    #[arg(long, value_name = "URL")]
    shared: Option<String>,
}

fn main() -> ExitCode {
    run(&Options::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}

#[tokio::main]
async fn run(options: &Options) -> Result<ExitCode> {
    let replicas = match &options.shared {
        Some(url) => replicas(url).await?.map(Some).to_vec(),
        None => vec![None],
    };
    // As many as two replicas and a Valkey on one machine serve in time.
    let tenants_default = if options.shared.is_some() { 200 } else { 1000 };
    let tenants = options.tenants.map_or(tenants_default, NonZeroU32::get);
    let load = load::run(&replicas, tenants, options.seconds.get()).await;
    println!("tenants             {tenants:>10}");
    println!("replicas            {:>10}", replicas.len());
    println!("admitted            {:>10}", load.admitted);
    println!("refused             {:>10}", load.refused);
    println!("worst deviation     {:>9.2}%", load.deviation_worst);
    println!("slowest look        {:>8.1}ms", load.slowest.as_secs_f64() * 1000.0);
    cost::print(replicas[0].as_ref()).await;
    let is_exact = load.deviation_worst <= DEVIATION_MAX;
    println!("{}", if is_exact { "pass" } else { "FAIL" });
    Ok(if is_exact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns two replicas that share limits and know of each other.
async fn replicas(url: &str) -> Result<[Arc<SharedLimits>; 2]> {
    let url = Secret::new(url.to_owned());
    let replica = || SharedLimits::connect(&url, ANSWER_TIMEOUT, &Metrics::new());
    let replicas = [replica()?, replica()?];
    for replica in &replicas {
        tokio::spawn(replica.clone().run(CancellationToken::new()));
    }
    let give_up = Instant::now() + START_TIMEOUT;
    while replicas.iter().any(|replica| !replica.is_up() || replica.replicas() < 2) {
        ensure!(Instant::now() < give_up, "Valkey does not answer there");
        sleep(Duration::from_millis(10)).await;
    }
    Ok(replicas)
}
