//! What a server may be asked in a time, over all tenants (`rate`).

use std::time::Duration;

use tokio::time::Instant;

use crate::support::{Api, Setup};

/// Makes so many calls at once for each; how long all of them took.
async fn all_take(callers: &[Api], calls: usize) -> Duration {
    let began = Instant::now();
    let calls =
        callers.iter().flat_map(|api| (0..calls).map(|_| api.spawn_call("fake", "raw", "{}")));
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap().tool_text(), "{}");
    }
    began.elapsed()
}

#[tokio::test]
async fn a_server_is_asked_no_more_often_than_its_rate_says() {
    let gateway = Setup::new().fake_with("fake", &[], "rate = \"5/s\"").start().await;
    let took = all_take(&[(*gateway).clone()], 6).await;
    // The first at once, and each of the others a fifth of a second after the one before.
    assert!(took >= Duration::from_millis(990), "{took:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn processes_of_several_tenants_keep_the_rate_of_their_server_together() {
    let setup = Setup::new().with_tenant("acme", "servers = [\"*\"]");
    let setup = setup.with_tenant("globex", "servers = [\"*\"]");
    let settings = "sharing = \"tenant\"\nrate = \"4/s\"";
    let gateway = setup.fake_with("fake", &[], settings).start().await;
    let tenants = [gateway.as_tenant("acme").await, gateway.as_tenant("globex").await];
    // Their processes run from here on.
    all_take(&tenants, 1).await;
    let took = all_take(&tenants, 4).await;
    assert!(took >= Duration::from_millis(1700), "{took:?}");
    gateway.stop().await;
}
