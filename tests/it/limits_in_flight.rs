//! Calls in flight that replicas count together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use rand::RngExt;
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;
use trunkline::common::policy::{Limit, Pattern, Policy};
use trunkline::tenants::limits::{Admission, Cost, LimitRefusal, Limits};

use crate::support::{LIMIT, Redis, Replica, eventually, in_time};

const GRANTED: &str = "trunkline_shared_limits_leases_total{outcome=\"granted\"}";
const REFUSED: &str = "trunkline_shared_limits_leases_total{outcome=\"refused\"}";
const KEY: &str = "trunkline:{acme@0000000000000000}:in-flight";

pub fn at_most(max: u32) -> Policy {
    let limit = Limit { max_in_flight: Some(max), ..Limit::default() };
    Policy { limit, ..Policy::unlimited() }
}

pub fn of_both(replicas: &[Replica; 2], policy: &Policy) -> [Limits; 2] {
    replicas.each_ref().map(|replica| replica.limits("acme", policy))
}

/// Calls until one is refused.
pub async fn fill(limits: &Limits) -> Vec<Admission> {
    let mut calls = vec![];
    while let Ok(call) = limits.admit(Cost::Call).await {
        calls.push(call);
    }
    calls
}

/// Calls at both in turn until each has refused one.
pub async fn fill_both(limits: &[Limits; 2]) -> Vec<Admission> {
    let mut calls = vec![];
    loop {
        let before = calls.len();
        for limits in limits {
            calls.extend(limits.admit(Cost::Call).await.ok());
        }
        if calls.len() == before {
            return calls;
        }
    }
}

#[tokio::test]
async fn a_tenant_has_its_limit_once_wherever_it_calls() {
    let Some(redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, LIMIT).await;
    let limits = of_both(&replicas, &at_most(10));
    for _ in 0..3 {
        assert_eq!(fill_both(&limits).await.len(), 10);
        for one in &limits {
            let calls = fill(one).await;
            assert_eq!(calls.len(), 10);
            assert!(fill_both(&limits).await.is_empty());
        }
    }
    assert!(replicas[1].metric(GRANTED) >= 10.0 && replicas[1].metric(REFUSED) >= 1.0);
    let Err(LimitRefusal::Busy { scope, limit, .. }) = async {
        let _calls = fill(&limits[0]).await;
        limits[1].admit(Cost::Call).await
    }
    .await
    else {
        panic!("there was a place");
    };
    assert_eq!((scope.as_str(), limit), ("tenant", 10));
    eventually("nothing is left", async || {
        (redis.ask::<u32>(&["EXISTS", KEY]).await == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn never_are_more_in_flight_than_may_be() {
    let Some(redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, LIMIT).await;
    for max in [3, 40] {
        let limits = of_both(&replicas, &at_most(max)).map(Arc::new);
        let load = Load::start(&limits, 3 * max, 40);
        let (most, refused) = load.end().await;
        assert_eq!(most, max, "{refused} were refused");
    }
}

#[tokio::test]
async fn whoever_keeps_exactly_the_limit_going_is_never_refused() {
    let Some(redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, LIMIT).await;
    for (max, calls) in [(4, 500), (64, 60), (256, 20)] {
        let limits = of_both(&replicas, &at_most(max)).map(Arc::new);
        let load = Load::start(&limits, max, calls);
        let (most, refused) = load.end().await;
        assert_eq!(refused, 0, "of a limit of {max}");
        assert!(most > max / 2, "{most} of {max} at once");
    }
}

/// Callers that each make calls at both replicas in turn, one after the other.
struct Load {
    running: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
    refused: Arc<AtomicU32>,
    callers: JoinSet<()>,
}

impl Load {
    fn start(limits: &[Arc<Limits>; 2], callers: u32, calls: u32) -> Self {
        let mut load = Self {
            running: Arc::default(),
            most: Arc::default(),
            refused: Arc::default(),
            callers: JoinSet::new(),
        };
        for caller in 0..callers {
            let (running, most) = (load.running.clone(), load.most.clone());
            let (limits, refused) = (limits.clone(), load.refused.clone());
            load.callers.spawn(async move {
                for call in 0..calls {
                    let Ok(admission) =
                        limits[((caller + call) % 2) as usize].admit(Cost::Call).await
                    else {
                        refused.fetch_add(1, Ordering::Relaxed);
                        continue;
                    };
                    most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    let time = rand::rng().random_range(0..3000);
                    sleep(Duration::from_micros(time)).await;
                    running.fetch_sub(1, Ordering::Relaxed);
                    drop(admission);
                }
            });
        }
        load
    }

    /// How many calls ran at once, and how many were refused.
    async fn end(mut self) -> (u32, u32) {
        while let Some(caller) = in_time("the calls", self.callers.join_next()).await {
            caller.unwrap();
        }
        (self.most.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }
}

#[tokio::test]
async fn far_from_the_limit_nothing_is_asked() {
    let Some(redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, LIMIT).await;
    let limits = of_both(&replicas, &at_most(256));
    let asked = || replicas[0].metric(GRANTED) + replicas[0].metric(REFUSED);
    eventually("nothing is asked", async || {
        drop(limits[0].admit(Cost::Call).await.unwrap());
        let before = asked();
        for _ in 0..100 {
            let call = limits[0].admit(Cost::Call).now_or_never()?;
            drop(call.unwrap());
        }
        (asked() == before).then_some(())
    })
    .await;
    // A few more at once fit as well.
    let calls: Vec<_> =
        (0..16).map(|_| limits[0].admit(Cost::Call).now_or_never().unwrap()).collect();
    assert!(calls.iter().all(Result::is_ok));
}

#[tokio::test]
async fn what_is_held_and_not_needed_is_there_for_others() {
    let Some(redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, LIMIT).await;
    let limits = of_both(&replicas, &at_most(64));
    let call = eventually("more is held than needed", async || {
        let call = limits[0].admit(Cost::Call).await.unwrap();
        (held(&redis).await > 1).then_some(call)
    })
    .await;
    let calls = fill(&limits[1]).await;
    assert_eq!(calls.len(), 63);
    assert!(limits[0].admit(Cost::Call).await.is_err());
    drop(call);
    assert_eq!(fill(&limits[1]).await.len(), 1);
}

/// How many places all replicas hold of the tenant's limit.
pub async fn held(redis: &Redis) -> u32 {
    let words: Vec<String> = redis.ask(&["HVALS", KEY]).await;
    words.iter().map(|word| word.split(' ').nth(2).unwrap().parse::<u32>().unwrap()).sum()
}

#[tokio::test]
async fn who_calls_nothing_holds_nothing() {
    let Some(redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, LIMIT).await;
    let limits = of_both(&replicas, &at_most(256));
    eventually("more is held than needed", async || {
        for limits in &limits {
            drop(limits.admit(Cost::Call).await.unwrap());
        }
        (redis.ask::<u32>(&["HLEN", KEY]).await == 2).then_some(())
    })
    .await;
    // One has left, the other is only idle.
    let [_idle, leaving] = replicas;
    leaving.leave().await;
    let left = redis.ask::<u32>(&["HLEN", KEY]).await;
    assert!(left <= 1, "who leaves gives all back");
    eventually("nothing is held", async || (held(&redis).await == 0).then_some(())).await;
}

#[tokio::test]
async fn limits_for_patterns_are_shared_each_for_itself() {
    let Some(redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, LIMIT).await;
    let scoped = [("search", 5), ("search/query", 2)]
        .map(|(text, max)| (Pattern::parse(text).unwrap(), at_most(max).limit));
    let limits =
        of_both(&replicas, &Policy { limits: scoped.into_iter().collect(), ..at_most(20) });
    let mut calls = vec![];
    let mut call = async |replica: usize, tool| {
        let mut call = limits[replica].admit(Cost::Call).await.unwrap();
        match limits[replica].admit_to(&mut call, "search", Some(tool)).await {
            Ok(_) => calls.push(call),
            Err(LimitRefusal::Busy { scope, .. }) => return scope,
            Err(other) => panic!("{other}"),
        }
        String::new()
    };
    assert_eq!(call(0, "query").await, "");
    assert_eq!(call(1, "query").await, "");
    for replica in [0, 1] {
        assert_eq!(call(replica, "query").await, "search/query");
    }
    for _ in 0..3 {
        assert_eq!(call(1, "index").await, "");
    }
    assert_eq!(call(0, "index").await, "search");
    calls.clear();
    for limits in &limits {
        assert_eq!(fill(limits).await.len(), 20);
    }
}

#[tokio::test]
async fn a_limit_that_changes_keeps_what_is_in_flight() {
    let Some(redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, LIMIT).await;
    let before = of_both(&replicas, &at_most(10));
    let mut calls = fill_both(&before).await;
    assert_eq!(calls.len(), 10);
    let lower = before.each_ref().map(|limits| limits.with_policy(&at_most(4)));
    calls.truncate(4);
    assert!(fill_both(&lower).await.is_empty());
    calls.pop();
    calls.extend(fill_both(&lower).await);
    assert_eq!(calls.len(), 4);
    let higher = lower.each_ref().map(|limits| limits.with_policy(&at_most(12)));
    assert_eq!(fill_both(&higher).await.len(), 8);
    // What comes while there is no limit counts when there is one.
    let unlimited = higher.each_ref().map(|limits| limits.with_policy(&Policy::unlimited()));
    calls.push(unlimited[0].admit(Cost::Call).now_or_never().unwrap().unwrap());
    let limited = unlimited.each_ref().map(|limits| limits.with_policy(&at_most(6)));
    eventually("it is told", async || (held(&redis).await == 5).then_some(())).await;
    assert_eq!(fill(&limited[1]).await.len(), 1);
}

#[tokio::test]
async fn a_caller_that_leaves_while_it_waits_keeps_no_place() {
    let Some(redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, LIMIT).await;
    let limits = of_both(&replicas, &at_most(10));
    for polls in 0..40 {
        // It has asked, and leaves before the answer, with it, or just after.
        tokio::select! {
            biased;
            _ = limits[0].admit(Cost::Call) => {}
            () = yield_times(polls) => {}
        }
    }
    eventually("all are there", async || (fill(&limits[1]).await.len() == 10).then_some(())).await;
}

async fn yield_times(times: u32) {
    for _ in 0..times {
        yield_now().await;
    }
}

#[tokio::test]
async fn a_tenant_that_is_made_again_has_its_old_calls_too() {
    let Some(redis) = Redis::start().await else { return };
    let replica = Replica::start(&redis);
    replica.up().await;
    let before = replica.limits("acme", &at_most(10));
    let mut calls: Vec<_> = fill(&before).await;
    calls.truncate(7);
    drop(before);
    let after = replica.limits("acme", &at_most(10));
    assert_eq!(fill(&after).await.len(), 3);
    drop(calls);
    assert_eq!(fill(&after).await.len(), 10);
}
