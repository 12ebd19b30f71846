//! Tenants with different rates, each of which calls as often as it can.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use trunkline::common::ids::TenantId;
use trunkline::common::policy::{Limit, Policy};
use trunkline::tenants::limits::{Limits, Refusal, SharedLimits};

/// What each tenant may do at once: as much as it earns in a second or more, so that nothing is lost to it by waking up
/// late.
const BURST: u32 = 30;
/// The fewest and the most calls that a tenant earns beside that. Of so many, one in a hundred is more than one.
const EARNED_MIN: u32 = 300;
const EARNED_MAX: u32 = 600;
/// The time in which all tenants begin.
const STAGGER: Duration = Duration::from_secs(1);

/// What all of them got.
#[derive(Default)]
pub struct Load {
    /// Calls that might begin.
    pub admitted: u64,
    /// Calls that might not.
    pub refused: u64,
    /// By how much the worst tenant was off burst + rate × time, in hundredths.
    pub deviation_worst: f64,
    /// The longest that a call was held up.
    pub slowest: Duration,
}

/// Has so many tenants call at all replicas for a while; without shared limits there is one replica.
pub async fn run(replicas: &[Option<Arc<SharedLimits>>], tenants: u32, seconds: u32) -> Load {
    // One run, one set of tenants: what a run before it has used must not count.
    let run = std::process::id();
    let mut tasks = JoinSet::new();
    for n in 0..tenants {
        let id = TenantId::parse(&format!("load-{run}-{n}")).expect("it is a name");
        // Each another rate.
        let calls = EARNED_MIN + (EARNED_MAX - EARNED_MIN) * n / tenants;
        let rate = (calls * 60).div_ceil(seconds);
        let policy = policy(&format!("{rate}/min"), BURST);
        let limits = replicas.iter().map(|shared| Limits::new(&id, &policy, shared.clone()));
        let limits: Vec<_> = limits.collect();
        tasks.spawn(async move {
            // One after the other: what all may do at once is more than one Valkey can.
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

/// A rate for everything.
pub fn policy(rate: &str, burst: u32) -> Policy {
    let rate = rate.parse().expect("it is a rate");
    let limit = Limit { rate: Some(rate), burst: Some(burst), max_in_flight: None };
    Policy { limit, ..Policy::unlimited() }
}

/// One tenant with so many calls a second, at each replica in turn.
async fn tenant(limits: Vec<Limits>, rate: f64, time: Duration) -> Load {
    let mut load = Load::default();
    let started = Instant::now();
    let mut turn = limits.iter().cycle();
    let empty_at = loop {
        let limits = turn.next().expect("there is a replica");
        let called = Instant::now();
        let mut admission = limits.admit_tenant().await.expect("calls in flight are not limited");
        let outcome = limits.admit(&mut admission, "std", Some("echo")).await;
        load.slowest = load.slowest.max(called.elapsed());
        match outcome {
            Ok(_) => load.admitted += 1,
            // All that was earned until now is used.
            Err(_) if started.elapsed() > time => break called,
            Err(Refusal::RateLimited { retry_after, .. }) => {
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
