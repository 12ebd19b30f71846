//! Calls in flight that replicas count together, when one of them or Valkey goes away.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep};
use trunkline::tenants::limits::{Cost, Limits};

use crate::limits_in_flight::{at_most, fill, fill_both, held, of_both};
use crate::support::{LIMIT, Redis, Replica, eventually, within};

#[tokio::test]
async fn the_places_of_a_replica_that_died_are_there_again_soon() {
    let Some(redis) = Redis::start().await else { return };
    let [one, other] = Replica::two(&redis, LIMIT).await;
    let (dying, staying) = (one.limits("acme", &at_most(10)), other.limits("acme", &at_most(10)));
    let calls = fill(&dying).await;
    assert_eq!(calls.len(), 10);
    // As long as it lives its calls count, however long they take.
    sleep(Duration::from_secs(6)).await;
    assert!(staying.admit(Cost::Call).await.is_err());
    one.vanish().await;
    let mut taken = vec![];
    within(Duration::from_secs(6), "all are there", async || {
        taken.extend(staying.admit(Cost::Call).await.ok());
        (taken.len() == 10).then_some(())
    })
    .await;
    assert!(staying.admit(Cost::Call).await.is_err());
}

#[tokio::test]
async fn while_valkey_is_away_each_replica_has_its_part() {
    let Some(mut redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, LIMIT).await;
    let limits = of_both(&replicas, &at_most(9));
    let [one, other] = &limits;
    let mut of_one = vec![];
    for _ in 0..6 {
        of_one.push(one.admit(Cost::Call).await.unwrap());
    }
    let mut of_other = vec![other.admit(Cost::Call).await.unwrap()];
    redis.kill();
    for replica in &replicas {
        let noticed = async || (!replica.shared.is_up()).then_some(());
        eventually("it is noticed", noticed).await;
    }
    // Nobody waits, and what is in flight stays counted.
    let now =
        |limits: &Limits| limits.admit(Cost::Call).now_or_never().expect("nothing is waited for");
    assert!(now(one).is_err());
    of_other.extend((0..4).map(|_| now(other).unwrap()));
    assert!(now(other).is_err());
    of_one.truncate(4);
    of_one.push(now(one).unwrap());
    assert!(now(one).is_err());

    // Ten are in flight when it is back, and all of them are known.
    assert!(redis.begin().await);
    for replica in &replicas {
        replica.up().await;
    }
    eventually("all are told", async || (held(&redis).await == 10).then_some(())).await;
    assert!(fill_both(&limits).await.is_empty());
    of_one.clear();
    let calls = fill_both(&limits).await;
    assert_eq!(calls.len(), 4);
    drop((calls, of_other));
    assert_eq!(fill(one).await.len(), 9);
    assert_eq!(fill(other).await.len(), 9);
}

#[tokio::test]
async fn a_valkey_that_hangs_holds_nobody_up_for_long() {
    let Some(redis) = Redis::start().await else { return };
    let timeout = Duration::from_millis(200);
    let replicas = Replica::two(&redis, timeout).await;
    let limits = of_both(&replicas, &at_most(10));
    let calls = fill(&limits[0]).await;
    redis.pause();
    let begun = Instant::now();
    assert!(limits[1].admit(Cost::Call).await.is_ok(), "its part is free");
    let took = begun.elapsed();
    assert!(took < 5 * timeout, "a call was held up for {took:?}");
    assert!(!replicas[1].shared.is_up());
    redis.resume();
    for replica in &replicas {
        replica.up().await;
    }
    drop(calls);
    eventually("all are there", async || (fill(&limits[1]).await.len() == 10).then_some(())).await;
}

#[tokio::test]
async fn a_valkey_that_forgets_is_told_again() {
    let Some(redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, LIMIT).await;
    let limits = of_both(&replicas, &at_most(10));
    let _calls = fill(&limits[0]).await;
    redis.ask::<()>(&["DEL", "trunkline:{acme@0000000000000000}:in-flight"]).await;
    eventually("it is told", async || (held(&redis).await == 10).then_some(())).await;
    assert!(limits[1].admit(Cost::Call).await.is_err());
}
