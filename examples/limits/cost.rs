//! The time that one check of the limits takes.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use trunkline::common::ids::{TenantGeneration, TenantName};
use trunkline::common::policy::{Limit, Pattern, Policy};
use trunkline::tenants::limits::{Cost, Limits, SharedLimits};

use crate::load::policy;

/// Checks per measurement in memory.
const LOOKS: u32 = 1_000_000;
/// Concurrent callers of shared limits, and how long they call.
const CALLERS: u32 = 64;
const SHARED_TIME: Duration = Duration::from_secs(2);

/// Prints the nanoseconds of `admit` and `admit_to` together. With shared limits, prints the
/// checks per second, too.
pub async fn print(shared: Option<&Arc<SharedLimits>>) {
    let scoped = ["std/echo", "std/*", "std"].map(|text| {
        let pattern = Pattern::parse(text).expect("it is a pattern");
        (pattern, Limit { max_in_flight: Some(10), ..with_rate().limit })
    });
    let scoped = Policy { limits: scoped.into_iter().collect(), ..with_rate() };
    println!("look, no limit      {:>8.1}ns", look(&Policy::unlimited(), None).await);
    println!("look, in flight     {:>8.1}ns", look(&in_flight(), None).await);
    println!("look, one rate      {:>8.1}ns", look(&with_rate(), None).await);
    println!("look, 4 rates       {:>8.1}ns", look(&scoped, None).await);
    println!("headers, 4 rates    {:>8.1}ns", headers(&scoped).await);
    if let Some(shared) = shared {
        println!("look, leased        {:>8.1}ns", look(&in_flight(), Some(shared)).await);
        println!("shared looks        {:>8.0}/s", shared_looks(shared).await);
    }
}

/// A rate that is hardly used up here.
fn with_rate() -> Policy {
    policy("1000000/s", 1_000_000)
}

/// A limit that is hardly used.
fn in_flight() -> Policy {
    let limit = Limit { max_in_flight: Some(256), ..Limit::default() };
    Policy { limit, ..Policy::unlimited() }
}

fn limits(policy: &Policy, shared: Option<&Arc<SharedLimits>>) -> Limits {
    Limits::new(
        &TenantName::parse("cost").expect("it is a name").of(TenantGeneration::BUILT_IN),
        policy,
        shared.cloned(),
    )
}

async fn look(policy: &Policy, shared: Option<&Arc<SharedLimits>>) -> f64 {
    let limits = limits(policy, shared);
    let started = Instant::now();
    for _ in 0..LOOKS {
        look_once(&limits).await;
    }
    nanos_each(started)
}

async fn headers(policy: &Policy) -> f64 {
    let limits = limits(policy, None);
    let mut admission = limits.admit(Cost::Call).await.expect("there is a place");
    limits.admit_to(&mut admission, "std", Some("echo")).await.expect("there is one");
    let rate_status = admission.take_rate_status();
    let started = Instant::now();
    for _ in 0..LOOKS {
        std::hint::black_box((rate_status.policy(), rate_status.remaining()));
    }
    nanos_each(started)
}

async fn look_once(limits: &Limits) {
    let Ok(mut admission) = limits.admit(Cost::Call).await else { return };
    // A refusal costs about the same.
    let _ = std::hint::black_box(limits.admit_to(&mut admission, "std", Some("echo")).await);
}

fn nanos_each(started: Instant) -> f64 {
    started.elapsed().as_nanos() as f64 / f64::from(LOOKS)
}

async fn shared_looks(shared: &Arc<SharedLimits>) -> f64 {
    let limits = Arc::new(limits(&with_rate(), Some(shared)));
    let started = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let limits = limits.clone();
        callers.spawn(async move {
            let mut looks = 0_u32;
            while started.elapsed() < SHARED_TIME {
                look_once(&limits).await;
                looks += 1;
            }
            looks
        });
    }
    let looks: u32 = callers.join_all().await.into_iter().sum();
    f64::from(looks) / started.elapsed().as_secs_f64()
}
