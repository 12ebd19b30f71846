//! Gateways that share the limits of a tenant.

use std::time::Duration;

use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::{Api, Database, Fake, Redis, Setup, eventually, in_time, within};

/// A gateway at which `acme` may have so many calls in flight, and callers without a key as many as
/// they like. Gateways of one store know the same tenants.
fn setup(redis: &Redis, store: &Database, max: u32) -> Setup {
    Setup::new()
        .with_store(&store.url)
        .set(&format!("[limits]\nshared = {:?}", redis.url().expose()))
        .with_tenant("acme", &format!("max_in_flight = {max}\nservers = [\"fake\"]"))
        .fake("fake")
}

async fn is_shared(gateway: &Api) {
    eventually("limits are shared", async || {
        (gateway.metrics().await.value("trunkline_shared_limits_up") == Some(1.0)).then_some(())
    })
    .await;
}

fn held(fake: &Fake) -> usize {
    fake.calls_of("hold").len()
}

/// Calls that are tried until they are admitted, and may be lost.
fn hold(gateway: &Api, count: usize) -> JoinSet<()> {
    let call = async |gateway: Api| {
        let post = async || gateway.post("fake", "hold", "{}").send().await;
        while post().await.is_ok_and(|answer| answer.status() == 429) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    (0..count).map(|_| call(gateway.clone())).collect()
}

#[tokio::test]
async fn two_gateways_have_ten_calls_of_a_tenant_in_flight_and_not_more() {
    let Some(redis) = Redis::start().await else { return };
    let store = Database::sqlite();
    let setup = || setup(&redis, &store, 10);
    let (one, other) = tokio::join!(setup().start(), setup().start());
    let fakes = [one.fake("fake"), other.fake("fake")];
    let tenant = [one.as_tenant("acme").await, other.as_tenant("acme").await];
    for gateway in &tenant {
        is_shared(gateway).await;
    }
    let mut calls = JoinSet::new();
    for n in 0..30 {
        let gateway = tenant[n % 2].clone();
        calls.spawn(async move { gateway.call("fake", "hold", "{}").await.status });
    }
    for _ in 0..20 {
        let refused = in_time("refused", calls.join_next()).await.unwrap().unwrap();
        assert_eq!(refused, 429);
    }
    eventually("ten are there", async || (held(&fakes[0]) + held(&fakes[1]) == 10).then_some(()))
        .await;
    for gateway in [&one, &other] {
        assert_eq!(gateway.call("fake", "release", "{}").await.status, 200);
    }
    while let Some(answered) = in_time("answered", calls.join_next()).await {
        assert_eq!(answered.unwrap(), 200);
    }
    // All of them by one, when the others are over.
    let before = held(&fakes[1]);
    let mut calls = hold(&tenant[1], 10);
    eventually("ten are there", async || (held(&fakes[1]) == before + 10).then_some(())).await;
    assert_eq!(tenant[0].call("fake", "hold", "{}").await.status, 429);
    assert_eq!(other.call("fake", "release", "{}").await.status, 200);
    while let Some(answered) = in_time("answered", calls.join_next()).await {
        answered.unwrap();
    }
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn the_calls_of_a_gateway_that_was_killed_are_soon_there_for_the_other() {
    let Some(redis) = Redis::start().await else { return };
    let store = Database::sqlite();
    let (one, other) = (setup(&redis, &store, 10), setup(&redis, &store, 10).start().await);
    let key = one.new_key("acme").await;
    let mut one = one.serve().await;
    let doomed = Api::new(one.addr, Some(key));
    is_shared(&doomed).await;
    is_shared(&other).await;
    let lost = hold(&doomed, 10);
    let fakes = [one.fake("fake"), other.fake("fake")];
    eventually("ten are there", async || (held(&fakes[0]) == 10).then_some(())).await;
    let tenant = other.as_tenant("acme").await;
    assert_eq!(tenant.call("fake", "hold", "{}").await.status, 429);

    one.signal(Signal::KILL);
    let killed = Instant::now();
    let mut calls = hold(&tenant, 10);
    let ten = async || (held(&fakes[1]) == 10).then_some(());
    within(Duration::from_secs(6), "ten are there", ten).await;
    println!("all are there again after {:?}", killed.elapsed());
    one.ended().await;
    drop(lost);
    assert_eq!(other.call("fake", "release", "{}").await.status, 200);
    while let Some(answered) = in_time("answered", calls.join_next()).await {
        answered.unwrap();
    }
    other.stop().await;
}

#[tokio::test]
async fn an_executor_of_exactly_the_limit_is_never_refused() {
    const CALLERS: usize = 4;
    const CALLS: usize = 250;
    let Some(redis) = Redis::start().await else { return };
    let store = Database::sqlite();
    let setups = [CALLERS as u32; 2].map(|max| setup(&redis, &store, max));
    let keys = [setups[0].new_key("acme").await, setups[1].new_key("acme").await];
    let [one, other] = setups;
    let (mut one, mut other) = tokio::join!(one.serve(), other.serve());
    let [of_one, of_other] = keys;
    let tenant = [Api::new(one.addr, Some(of_one)), Api::new(other.addr, Some(of_other))];
    for gateway in &tenant {
        is_shared(gateway).await;
    }
    let call = async |tenant: [Api; 2], caller: usize| {
        let mut refused = 0;
        for n in 0..CALLS {
            let answer = tenant[(caller + n) % 2].call("fake", "raw", "{}").await;
            refused += u32::from(answer.status != 200);
        }
        refused
    };
    let callers: JoinSet<_> = (0..CALLERS).map(|caller| call(tenant.clone(), caller)).collect();
    let refused: u32 = callers.join_all().await.into_iter().sum();
    let mut was_away = false;
    for gateway in [&mut one, &mut other] {
        gateway.signal(Signal::TERM);
        gateway.ended().await;
        was_away |= gateway.log().iter().any(|line| line.contains("shared limits are away"));
    }
    // On a machine that stalls for longer than Valkey may take to answer, each goes by its part.
    assert!(refused == 0 || was_away, "{refused} of {} were refused", CALLERS * CALLS);
}
