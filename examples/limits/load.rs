//! Tenants with different rates, each of which calls as often as it can.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use trunkline::common::ids::{TenantGeneration, TenantName};
use trunkline::common::policy::{Limit, Policy};
use trunkline::tenants::limits::{Cost, LimitRefusal, Limits, SharedLimits};

/// As many calls as are earned in a second or more, so that waking up late loses nothing.
const BURST: u32 = 30;
/// The fewest and the most calls that a tenant earns beside the burst. One percent of so many is
/// more than one call.
const EARNED_MIN: u32 = 300;
const EARNED_MAX: u32 = 600;
/// The time in which all tenants begin.
const STAGGER: Duration = Duration::from_secs(1);

/// The results of all tenants.
#[derive(Default)]
pub struct Load {
    pub admitted: u64,
    pub refused: u64,
    /// The worst tenant's deviation from burst + rate × time, in percent.
    pub deviation_worst: f64,
    /// The longest time that a call was delayed.
    pub slowest: Duration,
}

/// Runs so many tenants against all replicas. Without shared limits there is one replica.
pub async fn run(replicas: &[Option<Arc<SharedLimits>>], tenants: u32, seconds: u32) -> Load {
    // A set of tenants for each run: earlier usage must not count.
    let run = std::process::id();
    let mut tasks = JoinSet::new();
    for n in 0..tenants {
        let id = TenantName::parse(&format!("load-{run}-{n}")).expect("it is a name");
        let id = id.of(TenantGeneration::BUILT_IN);
        let calls = EARNED_MIN + (EARNED_MAX - EARNED_MIN) * n / tenants;
        let rate = (calls * 60).div_ceil(seconds);
        let policy = policy(&format!("{rate}/min"), BURST);
        let limits = replicas.iter().map(|shared| Limits::new(&id, &policy, shared.clone()));
        let limits: Vec<_> = limits.collect();
        tasks.spawn(async move {
            // Staggered: all bursts at once would be too much for one Valkey.
            sleep(STAGGER * n / tenants).await;
            tenant(limits, f64::from(rate) / 60.0, Duration::from_secs(seconds.into())).await
        });
    }
    let mut all = Load::default();
    while let Some(one) = tasks.join_next().await {
        let one = one.expect("no tenant panics");
        all.admitted += one.admitted;
        all.refused += one.refused;
        all.deviation_worst = all.deviation_worst.max(one.deviation_worst);
        all.slowest = all.slowest.max(one.slowest);
    }
    all
}

pub fn policy(rate: &str, burst: u32) -> Policy {
    let rate = rate.parse().expect("it is a rate");
    let limit = Limit { rate: Some(rate), burst: Some(burst), max_in_flight: None };
    Policy { limit, ..Policy::unlimited() }
}

/// Runs one tenant with so many calls per second, at each replica in turn.
async fn tenant(limits: Vec<Limits>, rate: f64, time: Duration) -> Load {
    let mut load = Load::default();
    let started = Instant::now();
    let mut turn = limits.iter().cycle();
    let empty_at = loop {
        let limits = turn.next().expect("there is a replica");
        let called = Instant::now();
        let outcome = limits.admit(Cost::Call).await;
        load.slowest = load.slowest.max(called.elapsed());
        match outcome {
            Ok(_) => load.admitted += 1,
            // Everything earned so far is used.
            Err(_) if started.elapsed() > time => break called,
            Err(LimitRefusal::RateLimited { retry_after, .. }) => {
                load.refused += 1;
                sleep(retry_after).await;
            }
            Err(busy) => panic!("{busy}"),
        }
    };
    let earned = f64::from(BURST) + rate * (empty_at - started).as_secs_f64();
    load.deviation_worst = 100.0 * (load.admitted as f64 - earned).abs() / earned;
    load
}
