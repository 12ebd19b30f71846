//! `resources/subscribe`: many sessions, one subscription at the server.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::mcp_legacy::{Session, Stream};
use crate::support::{Fake, Gateway, Setup, eventually, kill};

const SUBSCRIBE: &str = "resources/subscribe";
const UNSUBSCRIBE: &str = "resources/unsubscribe";
const CAN: &str = r#"capabilities={"tools":{"listChanged":true},"resources":{"subscribe":true}}"#;

async fn start(options: &[&str]) -> Gateway {
    Setup::new().fake_with("fake", options, "").start().await
}

async fn watch(session: &Session, uri: &str) {
    assert_eq!(session.result(SUBSCRIBE, json!({"uri": uri})).await, json!({}));
}

async fn unwatch(session: &Session, uri: &str) {
    assert_eq!(session.result(UNSUBSCRIBE, json!({"uri": uri})).await, json!({}));
}

/// Has the server say that resources are others now.
async fn update(gateway: &Gateway, uris: &[&str]) {
    let updated =
        |uri| json!({"method": "notifications/resources/updated", "params": {"uri": uri}});
    let messages: Vec<Value> = uris.iter().map(updated).collect();
    gateway.call("fake", "say", json!({"messages": messages})).await.tool_text();
}

/// The URIs that a server was asked about, in order.
fn uris(fake: &Fake, method: &str) -> Vec<String> {
    let of = |message: Value| message["params"]["uri"].as_str().unwrap().to_owned();
    fake.received_of(method).into_iter().map(of).collect()
}

async fn asked(fake: &Fake, method: &str, expected: &[&str]) {
    eventually(method, async || (uris(fake, method) == expected).then_some(())).await;
}

async fn hears(stream: &mut Stream, uri: &str) {
    let told = stream.message().await;
    assert_eq!(told, json!({"method": "notifications/resources/updated", "params": {"uri": uri}}));
}

#[tokio::test]
async fn the_first_subscribes_and_the_last_to_leave_unsubscribes() {
    let gateway = start(&[CAN]).await;
    let fake = gateway.fake("fake");
    let one = Session::open(&gateway, "/mcp/fake").await;
    let two = Session::open(&gateway, "/mcp").await;
    let three = Session::open(&gateway, "/mcp/fake").await;
    watch(&one, "test://x").await;
    watch(&one, "test://x").await;
    watch(&two, "trunkline:fake/test://x").await;
    watch(&three, "test://x").await;
    watch(&three, "test://y").await;
    assert_eq!(uris(&fake, SUBSCRIBE), ["test://x", "test://y"]);
    unwatch(&one, "test://x").await;
    unwatch(&one, "test://x").await;
    unwatch(&one, "test://never").await;
    assert_eq!(two.delete().await.status, 204);
    // The server learns of the last one; had it learned of others, it would have before.
    unwatch(&three, "test://y").await;
    asked(&fake, UNSUBSCRIBE, &["test://y"]).await;
    assert_eq!(three.delete().await.status, 204);
    asked(&fake, UNSUBSCRIBE, &["test://y", "test://x"]).await;
    // And anew.
    watch(&one, "test://x").await;
    assert_eq!(uris(&fake, SUBSCRIBE), ["test://x", "test://y", "test://x"]);
    gateway.stop().await;
}

#[tokio::test]
async fn only_those_who_subscribed_are_told_and_in_their_own_terms() {
    let gateway = start(&[CAN]).await;
    let one = Session::open(&gateway, "/mcp/fake").await;
    let all = Session::open(&gateway, "/mcp").await;
    let (mut of_one, mut of_all) = (one.listen().await, all.listen().await);
    watch(&one, "test://x").await;
    watch(&one, "test://y").await;
    watch(&all, "trunkline:fake/test://y").await;
    // The last of them shows that the others did not come.
    update(&gateway, &["test://nobodys", "test://x"]).await;
    hears(&mut of_one, "test://x").await;
    update(&gateway, &["test://x", "test://y"]).await;
    hears(&mut of_one, "test://x").await;
    hears(&mut of_one, "test://y").await;
    hears(&mut of_all, "trunkline:fake/test://y").await;
    unwatch(&one, "test://y").await;
    update(&gateway, &["test://y"]).await;
    hears(&mut of_all, "trunkline:fake/test://y").await;
    update(&gateway, &["test://x"]).await;
    hears(&mut of_one, "test://x").await;
    gateway.stop().await;
}

#[tokio::test]
async fn what_is_watched_is_subscribed_again_when_the_server_is_back() {
    let gateway = start(&[CAN]).await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    let mut stream = session.listen().await;
    watch(&session, "test://x").await;
    let fake = gateway.fake("fake");
    kill(fake.pids()[0], Signal::KILL);
    for list in ["tools", "resources"] {
        assert_eq!(stream.method().await, format!("notifications/{list}/list_changed"));
    }
    // Nobody knows what it missed.
    hears(&mut stream, "test://x").await;
    asked(&fake, SUBSCRIBE, &["test://x", "test://x"]).await;
    update(&gateway, &["test://x"]).await;
    hears(&mut stream, "test://x").await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_refusal_reaches_the_client_and_leaves_nothing_behind() {
    let gateway = start(&[CAN, "subscribe=refuse"]).await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    let fake = gateway.fake("fake");
    for n in 1..=2 {
        let error = session.error(SUBSCRIBE, json!({"uri": "test://x"})).await;
        assert_eq!(
            error,
            json!({"code": -32002, "message": "no such resource", "data": {"why": "refused"}})
        );
        assert_eq!(uris(&fake, SUBSCRIBE).len(), n, "each asks anew");
    }
    let mut stream = session.listen().await;
    update(&gateway, &["test://x"]).await;
    gateway
        .call(
            "fake",
            "say",
            json!({"messages": [{"method": "notifications/prompts/list_changed"}]}),
        )
        .await;
    assert_eq!(stream.method().await, "notifications/prompts/list_changed");
    kill(fake.pids()[0], Signal::KILL);
    eventually("back", async || (fake.pids().len() == 2).then_some(())).await;
    assert_eq!(stream.method().await, "notifications/tools/list_changed");
    session.tool_text("raw", json!({})).await;
    assert_eq!(uris(&fake, SUBSCRIBE).len(), 2);
    assert!(uris(&fake, UNSUBSCRIBE).is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_cannot_tell_is_not_asked() {
    let gateway = start(&[]).await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    let error = session.error(SUBSCRIBE, json!({"uri": "test://x"})).await;
    assert_eq!(error["code"], -32601);
    assert!(gateway.fake("fake").received_of(SUBSCRIBE).is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn a_subscription_is_taken_from_the_tenants_limits() {
    let gateway = Setup::new()
        .without_anonymous()
        .fake_with("fake", &[CAN], "")
        .with_tenant("slow", "servers = [\"*\"]\nrate = \"2/h\"")
        .with_tenant("one", "servers = [\"*\"]\nmax_in_flight = 1")
        .start()
        .await;
    let slow = gateway.as_tenant("slow").await;
    let session = Session::open(&slow, "/mcp").await;
    watch(&session, "trunkline:fake/test://x").await;
    watch(&session, "trunkline:fake/test://y").await;
    let uri = json!({"uri": "trunkline:fake/test://z"});
    let refusal = session.ask(SUBSCRIBE, uri).await;
    assert_eq!(refusal.json()["error"]["data"]["code"], "rate_limited", "{refusal:?}");
    assert!(refusal.header("ratelimit").starts_with("\"tenant\";r=0"), "{refusal:?}");
    // What it has it may leave all the same.
    unwatch(&session, "trunkline:fake/test://x").await;
    assert_eq!(uris(&gateway.fake("fake"), SUBSCRIBE), ["test://x", "test://y"]);

    // It counts as in flight until the server has answered.
    let one = gateway.as_tenant("one").await;
    let session = Session::open(&one, "/mcp/fake").await;
    let hanging = tokio::spawn({
        let session = session.clone();
        async move { session.error(SUBSCRIBE, json!({"uri": "test://hang"})).await }
    });
    let fake = gateway.fake("fake");
    asked(&fake, SUBSCRIBE, &["test://x", "test://y", "test://hang"]).await;
    let error = session.error(SUBSCRIBE, json!({"uri": "test://x"})).await;
    assert_eq!(error["data"]["code"], "tenant_busy", "{error}");
    assert_eq!(hanging.await.unwrap()["code"], -32603);
    watch(&session, "test://x").await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_tenant_that_watches_what_is_never_answered_holds_up_no_other() {
    let gateway = Setup::new()
        .without_anonymous()
        .fake_with("fake", &[CAN], "")
        .with_tenant("hog", "servers = [\"*\"]")
        .with_tenant("other", "servers = [\"*\"]")
        .start()
        .await;
    let (hog, other) = (gateway.as_tenant("hog").await, gateway.as_tenant("other").await);
    let uris: Vec<_> = (0..1000).map(|n| format!("test://{n}-hang")).collect();
    let filter = json!({"resourceSubscriptions": uris});
    let (_stream, _) = hog.mcp("/mcp/fake").listen("1", filter).await;
    // All its places are taken, and nothing of the rest.
    let session = Session::open(&other, "/mcp/fake").await;
    let began = Instant::now();
    for n in 0..5 {
        watch(&session, &format!("test://{n}")).await;
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_is_not_running_is_started_or_said_to_be_down() {
    let gateway = Setup::new()
        .fake_with("fake", &[CAN], r#"start = "lazy""#)
        .fake_with("broken", &["start=fail"], "")
        .start()
        .await;
    let session = Session::open(&gateway, "/mcp").await;
    watch(&session, "trunkline:fake/test://x").await;
    let error = session.error(SUBSCRIBE, json!({"uri": "trunkline:broken/test://x"})).await;
    assert_eq!(error["data"]["code"], "server_unavailable", "{error}");
    let error = session.error(SUBSCRIBE, json!({"uri": "trunkline:nobody/test://x"})).await;
    assert_eq!(error["data"]["code"], "server_not_found", "{error}");
    gateway.stop().await;
}

#[tokio::test]
async fn at_a_modern_server_each_request_says_the_resources_that_were_added() {
    let gateway = start(&["discover=modern", CAN]).await;
    let fake = gateway.fake("fake");
    let listens = || -> Vec<Value> {
        let of = |message: Value| message["params"]["notifications"].clone();
        fake.received_of("subscriptions/listen").into_iter().map(of).collect()
    };
    let listened = async |last: Value| {
        eventually("listened", async || (listens().last() == Some(&last)).then_some(())).await;
    };
    listened(json!({"toolsListChanged": true})).await;
    let (one, two) =
        (Session::open(&gateway, "/mcp/fake").await, Session::open(&gateway, "/mcp/fake").await);
    let mut stream = one.listen().await;
    watch(&one, "test://x").await;
    listened(json!({"resourceSubscriptions": ["test://x"]})).await;
    watch(&two, "test://y").await;
    watch(&two, "test://x").await;
    listened(json!({"resourceSubscriptions": ["test://y"]})).await;
    // The lists have a request of their own, and a resource that is watched already needs none.
    assert_eq!(listens().len(), 3);
    update(&gateway, &["test://y", "test://x"]).await;
    hears(&mut stream, "test://x").await;
    assert_eq!(two.delete().await.status, 204);
    let listening = fake.received_of("subscriptions/listen").into_iter();
    let ids: Vec<Value> = listening.map(|it| it["id"].clone()).collect();
    let cancelled = async |expected: &[&Value]| {
        eventually("cancelled", async || {
            let cancelled = fake.received_of("notifications/cancelled").into_iter();
            let ids: Vec<Value> = cancelled.map(|it| it["params"]["requestId"].clone()).collect();
            ids.iter().eq(expected.iter().copied()).then_some(())
        })
        .await;
    };
    // Nobody watches `y` any more.
    cancelled(&[&ids[2]]).await;
    unwatch(&one, "test://x").await;
    cancelled(&[&ids[2], &ids[1]]).await;
    assert_eq!(listens().len(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn parts_of_a_watched_resource_are_told_of_with_all_that_the_server_says() {
    let gateway = start(&[CAN]).await;
    let one = Session::open(&gateway, "/mcp/fake").await;
    let all = Session::open(&gateway, "/mcp").await;
    let other = Session::open(&gateway, "/mcp/fake").await;
    let (mut of_one, mut of_all, mut of_other) =
        (one.listen().await, all.listen().await, other.listen().await);
    watch(&one, "test://dir").await;
    watch(&all, "trunkline:fake/test://dir").await;
    watch(&other, "test://di").await;
    let told = |uri: &str| {
        json!({"method": "notifications/resources/updated",
            "params": {"uri": uri, "title": "Child", "_meta": {"x/y": [1]}}})
    };
    let messages = json!({"messages": [told("test://dir/child")]});
    gateway.call("fake", "say", messages).await.tool_text();
    assert_eq!(of_one.message().await, told("test://dir/child"));
    assert_eq!(of_all.message().await, told("trunkline:fake/test://dir/child"));
    // No other heard of it.
    update(&gateway, &["test://di"]).await;
    hears(&mut of_other, "test://di").await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_session_hears_of_every_update_at_its_own_process() {
    let setup = Setup::new().fake_with("fake", &[CAN], "sharing = \"session\"");
    let gateway = setup.start().await;
    let one = Session::open(&gateway, "/mcp/fake").await;
    let all = Session::open(&gateway, "/mcp").await;
    let method = "notifications/resources/updated";
    let told = |uri: &str| json!({"method": method, "params": {"uri": uri, "x": 1}});
    let messages = json!({"messages": [told("test://unasked")]});
    let updated = async |stream: &mut Stream| loop {
        let message = stream.message().await;
        if message["method"] == method {
            return message;
        }
    };
    let mut stream = one.listen().await;
    one.tool_text("say", messages.clone()).await;
    assert_eq!(updated(&mut stream).await, told("test://unasked"));
    let mut stream = all.listen().await;
    all.tool_text("fake__say", messages).await;
    assert_eq!(updated(&mut stream).await, told("trunkline:fake/test://unasked"));
    gateway.stop().await;
}
