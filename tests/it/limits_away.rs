//! Shared rates while Valkey is away: nobody notices, and the rates are kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use trunkline::common::policy::{Limit, Policy};
use trunkline::tenants::limits::{Cost, LimitRefusal, Limits};

use crate::replicas;
use crate::support::{Database, LIMIT, Redis, Replica, eventually};

pub const RATE: f64 = 200.0;
pub const BURST: u32 = 20;
/// Callers at each of the two replicas.
const CALLERS: u64 = 4;
/// A Valkey that is slower counts as away. Longer than in a gateway: a Valkey on a busy machine is
/// slow, and not away.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(400);
/// The time that a busy machine adds to any wait.
const MARGIN: Duration = Duration::from_secs(2);

pub fn policy(rate: &str, burst: u32) -> Policy {
    let limit =
        Limit { rate: Some(rate.parse().unwrap()), burst: Some(burst), max_in_flight: None };
    Policy { limit, ..Policy::unlimited() }
}

/// Callers at two replicas, that go on until they are told to stop.
pub struct Load {
    pub admitted: Arc<AtomicU64>,
    /// Calls that waited for Valkey in vain.
    slow: Arc<AtomicU64>,
    /// The longest call, in microseconds.
    longest: Arc<AtomicU64>,
    stop: CancellationToken,
    callers: JoinSet<()>,
}

impl Load {
    pub fn start(replicas: &[Replica; 2], burst: u32) -> Self {
        let [admitted, slow, longest] = Default::default();
        let (stop, callers) = (CancellationToken::new(), JoinSet::new());
        let mut load = Self { admitted, slow, longest, stop, callers };
        for replica in replicas {
            let limits = Arc::new(replica.limits("acme", &policy("200/s", burst)));
            for _ in 0..CALLERS {
                load.callers.spawn(caller(
                    limits.clone(),
                    load.admitted.clone(),
                    load.slow.clone(),
                    load.longest.clone(),
                    load.stop.clone(),
                ));
            }
        }
        load
    }

    /// How many calls of those that may come in a time were admitted in it.
    pub async fn part_of(&self, time: Duration) -> f64 {
        let (before, started) = (self.admitted.load(Ordering::Relaxed), Instant::now());
        sleep(time).await;
        let admitted = self.admitted.load(Ordering::Relaxed) - before;
        admitted as f64 / (RATE * started.elapsed().as_secs_f64())
    }

    /// Waits until the callers get their rate for a second: on a busy machine they do not always
    /// call that often. They must never get more than a part of it.
    async fn gets_its_rate(&self, at_most: f64) {
        eventually("the callers get their rate", async || {
            let part = self.part_of(Duration::from_secs(1)).await;
            assert!(part <= at_most, "{part} of the rate");
            (part >= 0.9).then_some(())
        })
        .await;
    }

    /// Fails if a call took longer than a Valkey that does not answer is waited for.
    fn was_prompt(&self) {
        let longest = Duration::from_micros(self.longest.load(Ordering::Relaxed));
        assert!(longest < ANSWER_TIMEOUT + MARGIN, "a call was held up for {longest:?}");
    }

    /// Ends it; how many calls were slow.
    pub async fn end(mut self) -> u64 {
        self.stop.cancel();
        while let Some(caller) = self.callers.join_next().await {
            caller.unwrap();
        }
        self.slow.load(Ordering::Relaxed)
    }
}

async fn caller(
    limits: Arc<Limits>,
    admitted: Arc<AtomicU64>,
    slow: Arc<AtomicU64>,
    longest: Arc<AtomicU64>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let called = Instant::now();
        let outcome = limits.admit(Cost::Call).await;
        let took = called.elapsed();
        longest.fetch_max(took.as_micros().try_into().unwrap(), Ordering::Relaxed);
        slow.fetch_add(u64::from(took >= ANSWER_TIMEOUT), Ordering::Relaxed);
        match outcome {
            Ok(_) => drop(admitted.fetch_add(1, Ordering::Relaxed)),
            // On a busy machine the next turn may come late: all that is left is taken in one.
            Err(LimitRefusal::RateLimited { .. }) => sleep(Duration::from_millis(2)).await,
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn valkey_may_be_killed_and_come_back() {
    let Some(mut redis) = Redis::start().await else { return };
    without_valkey(&mut redis, Redis::kill, async |redis| assert!(redis.begin().await)).await;
}

#[tokio::test]
async fn valkey_may_hang_and_go_on() {
    let Some(mut redis) = Redis::start().await else { return };
    without_valkey(&mut redis, |redis| redis.pause(), async |redis| redis.resume()).await;
}

/// Takes Valkey away under load for three seconds, and brings it back.
async fn without_valkey(
    redis: &mut Redis,
    away: impl FnOnce(&mut Redis),
    back: impl AsyncFnOnce(&mut Redis),
) {
    let replicas = Replica::two(redis, ANSWER_TIMEOUT).await;
    let load = Load::start(&replicas, BURST);
    load.part_of(Duration::from_millis(500)).await;
    // Callers that were kept from calling have saved a burst, and a few answers may be late.
    let at_most = 1.05 + f64::from(BURST) / RATE;
    load.gets_its_rate(at_most).await;

    away(redis);
    // What may come at once may do so once more: nobody knows what was left.
    let once_more = f64::from(BURST) / RATE;
    load.gets_its_rate(at_most + once_more).await;
    load.gets_its_rate(at_most).await;
    for replica in &replicas {
        assert_eq!(replica.metric("trunkline_shared_limits_up"), 0.0);
        assert!(replica.metric("trunkline_shared_limits_fallbacks_total") > 0.0);
        assert_eq!(replica.shared.replicas(), 2);
    }

    back(redis).await;
    for replica in &replicas {
        replica.up().await;
    }
    load.part_of(Duration::from_millis(500)).await;
    load.gets_its_rate(at_most).await;
    assert_eq!(replicas[0].metric("trunkline_shared_limits_up"), 1.0);
    // Each caller may have been waiting for an answer when Valkey went away, and that is all; as
    // many again for a machine that stalls.
    load.was_prompt();
    let slow = load.end().await;
    assert!(slow <= 4 * CALLERS, "{slow} calls have waited in vain");
}

#[tokio::test]
async fn a_valkey_that_comes_and_goes_does_not_let_more_through() {
    let Some(redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, ANSWER_TIMEOUT).await;
    // What is saved while one side is not asked would be worth a second each time.
    let load = Load::start(&replicas, 200);
    load.part_of(Duration::from_millis(1500)).await;
    let (before, started) = (load.admitted.load(Ordering::Relaxed), Instant::now());
    for _ in 0..4 {
        redis.pause();
        load.part_of(Duration::from_millis(700)).await;
        redis.resume();
        for replica in &replicas {
            replica.up().await;
        }
        load.part_of(Duration::from_millis(300)).await;
    }
    let admitted = (load.admitted.load(Ordering::Relaxed) - before) as f64;
    let part = admitted / (RATE * started.elapsed().as_secs_f64());
    // While one replica is back and the other is not, there is half as much again.
    assert!((0.85..=1.35).contains(&part), "{part} of the rate");
    load.was_prompt();
    load.end().await;
}

#[tokio::test]
async fn valkey_need_not_be_there_at_the_start() {
    let mut redis = Redis::new();
    let replica = Replica::start(&redis);
    let limits = replica.limits("acme", &policy("1/h", 2));
    for expected in [true, true, false] {
        assert_eq!(limits.admit(Cost::Call).await.is_ok(), expected);
    }
    assert_eq!(replica.metric("trunkline_shared_limits_fallbacks_total"), 3.0);
    if redis.begin().await {
        replica.up().await;
        // It is told of the calls that came before it, and does not count them again.
        assert!(limits.admit(Cost::Call).await.is_err());
        assert_eq!(replica.metric("trunkline_shared_limits_fallbacks_total"), 3.0);
        let key: String =
            redis.ask(&["GET", "trunkline:{acme@0000000000000000}:3600000000000ns:2"]).await;
        let owed: u64 = key.split(' ').nth(1).unwrap().parse().unwrap();
        assert!((7190..=7200).contains(&(owed / 1_000_000_000)), "{key}");
    }
}

#[tokio::test]
async fn each_replica_has_its_part_while_valkey_is_away() {
    let Some(mut redis) = Redis::start().await else { return };
    let replicas = Replica::two(&redis, LIMIT).await;
    redis.kill();
    for replica in &replicas {
        let limits = replica.limits("acme", &policy("1/h", 5));
        let first = limits.admit(Cost::Call).await.unwrap().take_rate_status();
        assert_eq!(first.policy(), r#""tenant";q=5;w=18000"#);
        assert_eq!(first.remaining(), r#""tenant";r=1;t=7200"#);
        limits.admit(Cost::Call).await.unwrap();
        let refused = limits.admit(Cost::Call).await;
        let Err(LimitRefusal::RateLimited { retry_after, .. }) = refused else {
            panic!("{refused:?}")
        };
        // One call of two in two hours.
        assert!(retry_after > Duration::from_secs(7190), "{retry_after:?}");
    }
}

#[tokio::test]
async fn a_valkey_that_starts_anew_does_not_make_a_replica_believe_to_be_alone() {
    let Some(mut redis) = Redis::start().await else { return };
    let [one, other] = Replica::two(&redis, LIMIT).await;
    other.vanish().await;
    redis.kill();
    eventually("it is noticed", async || (!one.shared.is_up()).then_some(())).await;
    assert!(redis.begin().await);
    one.up().await;
    assert_eq!(one.shared.replicas(), 2);
    one.sees(1).await;
}

#[tokio::test]
async fn replicas_that_have_never_seen_valkey_know_each_other_by_the_store() {
    let database = Database::sqlite();
    let policy = "servers = [\"*\"]\nmax_in_flight = 4";
    let start = || {
        let setup = replicas::setup(&database).without_anonymous().with_tenant("acme", policy);
        setup.set("limits.shared = \"redis://127.0.0.1:1\"").start()
    };
    let (one, other) = tokio::join!(start(), start());
    let key = one.new_key("acme").await;
    let mut held = JoinSet::new();
    for gateway in [&one, &other] {
        let api = gateway.with_key(&key);
        let status = async |wanted: u16| {
            let look = async || (api.call("fake", "raw", "").await.status == wanted).then_some(());
            eventually("answered so", look).await;
        };
        status(200).await;
        for _ in 0..2 {
            let api = api.clone();
            held.spawn(async move { api.call("fake", "hold", "").await });
        }
        let fake = gateway.fake("fake");
        eventually("held", async || (fake.calls_of("hold").len() == 2).then_some(())).await;
        // Half of the limit is in use: there is no more here. Replicas hear of each other within
        // two seconds.
        status(429).await;
    }
    held.shutdown().await;
    for gateway in [one, other] {
        gateway.stop().await;
    }
}
