//! Shared rates over a Valkey that stalls again and again, or whose clock steps.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use trunkline::common::policy::{Limit, Policy};
use trunkline::tenants::limits::shared::ANSWER_TIMEOUT;
use trunkline::tenants::limits::{Cost, Limits};

use crate::limits_away::{BURST, Load, RATE, policy};
use crate::support::{Redis, Replica, eventually};

/// Valkey stalls once in each.
const PERIOD: Duration = Duration::from_secs(1);

#[tokio::test]
async fn stalls_of_60_ms_each_second_give_no_rate_for_nothing() {
    stall_each_second(Duration::from_millis(60)).await;
}

#[tokio::test]
async fn stalls_of_150_ms_each_second_give_no_rate_for_nothing() {
    stall_each_second(Duration::from_millis(150)).await;
}

#[tokio::test]
async fn stalls_of_300_ms_each_second_give_no_rate_for_nothing() {
    stall_each_second(Duration::from_millis(300)).await;
}

/// Compares the calls that two busy replicas admit with the bound that `docs/operate/replicas.md`
/// states: in any window, the rate, two bursts, and half the rate while one replica is away alone.
async fn stall_each_second(stall: Duration) {
    let Some(redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, ANSWER_TIMEOUT).await;
    let load = Load::start(&replicas, BURST);
    load.part_of(PERIOD).await;
    let seconds = std::env::var("TRUNKLINE_STALLS").map_or(10, |text| text.parse().unwrap());
    let (before, started) = (load.admitted.load(Ordering::Relaxed), Instant::now());
    for _ in 0..seconds {
        redis.pause();
        sleep(stall).await;
        redis.resume();
        sleep(PERIOD - stall).await;
    }
    let admitted = (load.admitted.load(Ordering::Relaxed) - before) as f64;
    let earned = RATE * started.elapsed().as_secs_f64();
    let fallbacks = replicas[0].metric("trunkline_shared_limits_fallbacks_total");
    println!("stalls of {stall:?}: {:.3} of the rate", admitted / earned);
    assert!(fallbacks > 0.0, "no stall was noticed");
    // A busy machine may keep one replica away for a second longer than the other.
    let alone = 0.5 * RATE;
    let at_most = earned + f64::from(2 * BURST) + alone;
    assert!(admitted <= at_most, "{admitted} of {earned}");
    assert!(admitted >= 0.7 * earned, "{admitted} of {earned}");
    load.end().await;
}

/// Returns whether a call is admitted.
async fn call(limits: &Limits) -> bool {
    limits.admit(Cost::Call).await.is_ok()
}

#[tokio::test]
async fn a_caller_that_goes_away_takes_no_report_with_it() {
    let mut redis = Redis::new();
    let replica = Replica::start(&redis);
    let limits = replica.limits("acme", &policy("1/h", 2));
    assert!(call(&limits).await && call(&limits).await, "while Valkey is away");
    if !redis.begin().await {
        return;
    }
    replica.up().await;
    redis.pause();
    // This caller has the report of both calls, and Valkey never reads it.
    assert!(timeout(Duration::from_millis(50), call(&limits)).await.is_err());
    redis.kill();
    eventually("it is noticed", async || (!replica.shared.is_up()).then_some(())).await;
    assert!(redis.begin().await);
    replica.up().await;
    assert!(!call(&limits).await, "the calls of the outage were forgotten");
}

/// Makes the stored time of a rate look as if the clock had gone back since, or on if `micros` is
/// negative. The key then lasts: the clock by which it ends has gone back too.
async fn step_back(redis: &Redis, key: &str, micros: i64) {
    let stored: String = redis.ask(&["GET", key]).await;
    let (at, rest) = stored.split_once(' ').unwrap();
    let at = at.parse::<i64>().unwrap() + micros;
    let _: () = redis.ask(&["SET", key, &format!("{at} {rest}")]).await;
}

#[tokio::test]
async fn a_clock_that_steps_back_and_on_again_earns_nothing() {
    let Some(redis) = Redis::start().await else { return };
    let replica = Replica::start(&redis);
    replica.up().await;
    let (key, started) = ("trunkline:{acme@0000000000000000}:1000000000ns:3", Instant::now());
    let limits = replica.limits("acme", &policy("1/s", 3));
    let mut admitted = 0;
    for (calls, micros) in [(1, 4_000_000), (3, -4_000_000), (4, 0)] {
        for _ in 0..calls {
            admitted += u64::from(call(&limits).await);
        }
        step_back(&redis, key, micros).await;
    }
    let at_most = 3 + started.elapsed().as_secs();
    assert!(admitted <= at_most, "{admitted} calls were admitted, and {at_most} may be");
}

#[tokio::test]
async fn a_clock_that_is_set_back_by_an_hour_does_not_stop_a_rate() {
    let Some(redis) = Redis::start().await else { return };
    let replica = Replica::start(&redis);
    replica.up().await;
    let limits = replica.limits("acme", &policy("2/s", 1));
    assert!(call(&limits).await);
    step_back(&redis, "trunkline:{acme@0000000000000000}:500000000ns:1", 3_600_000_000).await;
    assert!(!call(&limits).await);
    eventually("a call is earned", async || call(&limits).await.then_some(())).await;
}

#[tokio::test]
async fn a_clock_that_is_set_back_frees_no_permit_and_keeps_no_dead_replica() {
    let Some(redis) = Redis::start().await else { return };
    let [one, other] = Replica::two(&redis, ANSWER_TIMEOUT).await;
    let limit = Limit { max_in_flight: Some(1), ..Limit::default() };
    let policy = Policy { limit, ..Policy::unlimited() };
    let (here, there) = (one.limits("acme", &policy), other.limits("acme", &policy));
    let held = here.admit(Cost::Call).await.unwrap();
    one.vanish().await;

    // An hour ahead, as all times are when the clock is set back by an hour.
    let key = "trunkline:{acme@0000000000000000}:in-flight";
    let leases: Vec<(String, String)> = redis.ask(&["HGETALL", key]).await;
    let (lease, value) = &leases[0];
    let [number, at, rest] = value.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
    let ahead = at.parse::<f64>().unwrap() + 3600.0;
    let value = format!("{number} {ahead:.3} {rest}");
    let _: u32 = redis.ask(&["HSET", key, lease, &value]).await;
    let gone: Vec<String> = redis.ask(&["ZRANGE", "trunkline:replicas", "0", "-1"]).await;
    for replica in gone {
        let ahead = format!("{ahead:.3}");
        let _: u32 = redis.ask(&["ZADD", "trunkline:replicas", &ahead, &replica]).await;
    }

    assert!(there.admit(Cost::Call).await.is_err(), "a held permit was given again");
    // Nothing renews the lease and the heartbeat of the first replica, so both end soon.
    other.sees(1).await;
    let freed = async || there.admit(Cost::Call).await.ok().map(drop);
    eventually("the permit is free", freed).await;
    drop(held);
}
