//! Rates that replicas share.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use trunkline::common::policy::{Limit, Pattern, Policy};
use trunkline::tenants::limits::{Cost, LimitRefusal, Limits, RateStatus};

use crate::support::{LIMIT, Redis, Replica, eventually, in_time};

const FALLBACKS: &str = "trunkline_shared_limits_fallbacks_total";

fn rate(rate: &str, burst: Option<u32>) -> Limit {
    Limit { rate: Some(rate.parse().unwrap()), burst, max_in_flight: None }
}

fn policy(all: Limit, scoped: &[(&str, Limit)]) -> Policy {
    let limits = scoped.iter().map(|(text, limit)| (Pattern::parse(text).unwrap(), limit.clone()));
    Policy { limit: all, limits: limits.collect(), ..Policy::unlimited() }
}

async fn call(limits: &Limits) -> Result<RateStatus, LimitRefusal> {
    let mut admission = limits.admit(Cost::Call).await?;
    limits.admit_to(&mut admission, "search", Some("query")).await?;
    Ok(admission.take_rate_status())
}

/// The scope and the wait of a call that is refused.
async fn refused(limits: &Limits) -> (String, Duration) {
    match call(limits).await {
        Err(LimitRefusal::RateLimited { scope, retry_after, .. }) => (scope, retry_after),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn two_replicas_admit_together_what_each_tenant_may() {
    let Some(redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, LIMIT).await;
    let tenants = (0..12).map(|n| {
        let rate = ["7/s", "600/min", "50/s", "200/s"][n % 4];
        together(&replicas, format!("tenant-{n}"), rate)
    });
    in_time("the calls", futures_util::future::join_all(tenants)).await;
    assert!(replicas.iter().all(|replica| replica.metric(FALLBACKS) == 0.0));
}

/// Has a tenant call at both replicas as often as it can for a while, and compares what was
/// admitted with what may be.
async fn together(replicas: &[Replica; 2], tenant: String, text: &str) {
    let policy = policy(rate(text, None), &[]);
    let limits = replicas.each_ref().map(|replica| replica.limits(&tenant, &policy));
    let started = Instant::now();
    let rate: trunkline::common::policy::Rate = text.parse().unwrap();
    let admitted = Cell::new(0);
    // When the rate was last full, and the calls until then: on a busy machine callers may be too
    // slow to use it up.
    let full = Cell::new((Duration::ZERO, 0));
    let note = |status: &RateStatus| {
        admitted.set(admitted.get() + 1);
        if status.remaining().contains(&format!(";r={};", rate.count() - 1)) {
            full.set((started.elapsed(), admitted.get()));
        }
    };
    let hammer = async |limits: &Limits| {
        while started.elapsed() < Duration::from_secs(2) {
            match call(limits).await {
                Ok(status) => note(&status),
                Err(_) => sleep(Duration::from_millis(2)).await,
            }
        }
    };
    tokio::join!(hammer(&limits[0]), hammer(&limits[1]));
    // What was saved meanwhile; the last moment at which nothing was left is known then.
    let at_least = loop {
        let now = started.elapsed();
        match call(&limits[0]).await {
            Ok(status) => note(&status),
            Err(_) => break now,
        }
    };
    let may = |time: Duration| {
        f64::from(rate.count()) * (1.0 + time.as_secs_f64() / rate.period().as_secs_f64())
    };
    let ((full, before), admitted) = (full.get(), admitted.get());
    assert!(f64::from(admitted) <= may(started.elapsed()) + 1.0, "{text}: {admitted} are too many");
    // The answers of two replicas may have come in another order.
    let least = may(at_least - full) - 4.0;
    let since = admitted - before;
    assert!(f64::from(since) >= least, "{text}: {since} since {full:?}, at least {least}");
}

#[tokio::test]
async fn a_call_that_one_rate_refuses_uses_nothing_of_other_narrow_ones() {
    let Some(redis) = Redis::start().await else { return };
    let replica = Replica::start(&redis);
    replica.up().await;
    let scoped = [("search/query", rate("1/h", Some(5))), ("search", rate("2/h", Some(2)))];
    let limits = replica.limits("acme", &policy(rate("3/h", Some(9)), &scoped));
    call(&limits).await.unwrap();
    let rate_status = call(&limits).await.unwrap();
    let policy = r#""search/query";q=5;w=18000, "search";q=2;w=3600, "tenant";q=9;w=10800"#;
    assert_eq!(rate_status.policy(), policy);
    for refusals in 1..=3 {
        let Err(LimitRefusal::RateLimited { scope, retry_after, rate_status }) =
            call(&limits).await
        else {
            panic!("it was admitted");
        };
        assert_eq!(scope, "search");
        assert!(retry_after > Duration::from_secs(1780) && retry_after < Duration::from_secs(1800));
        let left = rate_status.remaining();
        assert!(left.starts_with(r#""search/query";r=3;t=7"#), "{left}");
        assert!(left.contains(r#""search";r=0;t=1"#), "{left}");
        // The tenant's own rate was charged before.
        let tenant = format!(r#""tenant";r={};t="#, 7 - refusals);
        assert!(left.contains(&tenant), "{left}");
    }
    assert_eq!(replica.metric(FALLBACKS), 0.0);
}

#[tokio::test]
async fn the_longest_wait_is_the_one_that_is_told() {
    let Some(redis) = Redis::start().await else { return };
    let replica = Replica::start(&redis);
    replica.up().await;
    let scoped = [("search/query", rate("60/h", Some(1))), ("search", rate("1/h", Some(1)))];
    let limits = replica.limits("acme", &policy(rate("30/h", Some(2)), &scoped));
    call(&limits).await.unwrap();
    let (scope, wait) = refused(&limits).await;
    assert_eq!(scope, "search");
    assert!(wait > Duration::from_secs(3500) && wait <= Duration::from_secs(3600), "{wait:?}");
}

#[tokio::test]
async fn the_fastest_and_the_slowest_rate_are_counted_exactly() {
    let Some(redis) = Redis::start().await else { return };
    let replica = Replica::start(&redis);
    replica.up().await;
    for (text, interval, owed, precision) in [
        ("1000000/s", 1_000, 987_654_321_u64, 0),
        ("999999/s", 1_000, 876_543_211, 0),
        ("1/h", 3_600_000_000_000, 5_000_000_000_000, 0),
        // A century is owed: more than 2^53 nanoseconds.
        ("1/h", 3_600_000_000_000, 3_500_000_000_000_000_000, 512),
    ] {
        let limits = replica.limits("acme", &policy(rate(text, Some(1_000_000)), &[]));
        let key = format!("trunkline:{{acme@0000000000000000}}:{interval}ns:1000000");
        let (seconds, micros): (u64, u64) = redis.ask(&["TIME"]).await;
        let at = seconds * 1_000_000 + micros;
        redis.ask::<()>(&["SET", &key, &format!("{at} {owed} 0 0")]).await;
        call(&limits).await.unwrap_or_else(|refusal| panic!("{text}: {refusal}"));
        let stored: String = redis.ask(&["GET", &key]).await;
        let mut numbers = stored.split(' ').map(|number| number.parse::<u64>().unwrap());
        let (then, owes) = (numbers.next().unwrap(), numbers.next().unwrap());
        assert!(then > at, "{text}: {stored}");
        let expected = owed.saturating_sub((then - at) * 1_000) + interval;
        assert!(owes.abs_diff(expected) <= precision, "{text}: {owes}, not {expected}");
        redis.ask::<()>(&["DEL", &key]).await;
    }
}

#[tokio::test]
async fn all_keys_of_a_tenant_are_in_one_place_and_go_when_nothing_is_owed() {
    let Some(redis) = Redis::start().await else { return };
    let replica = Replica::start(&redis);
    replica.up().await;
    let scoped = [("search/query", rate("1/s", Some(10)))];
    let limits = replica.limits("acme", &policy(rate("2/s", Some(1)), &scoped));
    call(&limits).await.unwrap();
    let mut keys: Vec<String> = redis.ask(&["KEYS", "trunkline:{acme@0000000000000000}:*"]).await;
    keys.sort();
    let expected = [
        "trunkline:{acme@0000000000000000}:1000000000ns:10:search/query",
        "trunkline:{acme@0000000000000000}:500000000ns:1",
    ];
    assert_eq!(keys, expected);
    eventually("the keys are gone", async || {
        let keys: Vec<String> = redis.ask(&["KEYS", "trunkline:{acme@0000000000000000}:*"]).await;
        keys.is_empty().then_some(())
    })
    .await;
    call(&limits).await.unwrap();
}

#[tokio::test]
async fn a_server_that_has_forgotten_the_script_is_given_it_again() {
    let Some(redis) = Redis::start().await else { return };
    let replica = Replica::start(&redis);
    replica.up().await;
    let limits = replica.limits("acme", &policy(rate("1/h", Some(2)), &[]));
    call(&limits).await.unwrap();
    redis.ask::<()>(&["SCRIPT", "FLUSH"]).await;
    call(&limits).await.unwrap();
    assert_eq!(refused(&limits).await.0, "tenant");
    assert_eq!(replica.metric(FALLBACKS), 0.0);
    assert_eq!(replica.metric("trunkline_shared_limits_up"), 1.0);
}

#[tokio::test]
async fn a_rate_that_changes_begins_anew_and_one_that_stays_goes_on() {
    let Some(redis) = Redis::start().await else { return };
    let replica = Replica::start(&redis);
    replica.up().await;
    let limits = replica.limits("acme", &policy(rate("1/h", Some(1)), &[]));
    call(&limits).await.unwrap();
    assert!(call(&limits.with_policy(&policy(rate("1/h", Some(1)), &[]))).await.is_err());
    call(&limits.with_policy(&policy(rate("2/h", Some(1)), &[]))).await.unwrap();
    // Another gateway, or this one after a restart.
    assert!(call(&replica.limits("acme", &policy(rate("1/h", Some(1)), &[]))).await.is_err());
    call(&replica.limits("other", &policy(rate("1/h", Some(1)), &[]))).await.unwrap();
}

#[tokio::test]
async fn replicas_know_how_many_they_are() {
    let Some(redis) = Redis::start().await else { return };
    let [one, other] = Replica::two(&redis, LIMIT).await;
    other.leave().await;
    let left: u32 = redis.ask(&["ZCARD", "trunkline:replicas"]).await;
    assert_eq!(left, 1, "who leaves says so");
    one.sees(1).await;
    let third = Replica::start(&redis);
    one.sees(2).await;
    third.vanish().await;
    one.sees(1).await;
}

#[test]
fn an_address_that_is_none_is_not_repeated() {
    let url = trunkline::config::Secret::new("redis://:hunter2@host:port".to_owned());
    let metrics = trunkline::telemetry::metrics::Metrics::new();
    let error = trunkline::tenants::limits::SharedLimits::connect(&url, LIMIT, &metrics)
        .unwrap_err()
        .to_string();
    assert!(!error.contains("hunter2") && error.contains("redis://"), "{error}");
}
