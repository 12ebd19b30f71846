//! Sessions: who may use which, where, and for how long.

use reqwest::RequestBuilder;
use serde_json::json;

use crate::support::mcp_legacy::{Session, post, request};
use crate::support::{Answer, Database, Gateway, Setup};

const KEY: &str = "0123456789abcdef0123456789abcdef";
const OLD_KEY: &str = "an-old-key-that-is-long-enough-to-be-one";

/// Returns whether the session can be used.
async fn is_good(session: &Session) -> bool {
    let answer = session.ask("ping", json!({})).await;
    assert!([200, 404].contains(&answer.status), "{answer:?}");
    answer.status == 200
}

/// Replicas of one store know the same tenants.
async fn replica(store: &Database, keys: &[&str], tenant: &str) -> Gateway {
    let own = r#"sharing = "session""#;
    let subscribable = r#"capabilities={"tools":{},"resources":{"subscribe":true}}"#;
    let setup = Setup::new()
        .with_store(&store.url)
        .set(&format!("session_keys = {keys:?}"))
        .tenant(tenant)
        .with_tenant(tenant, "servers = [\"*\"]");
    setup.fake_with("fake", &[subscribable], "").fake_with("own", &[], own).start().await
}

#[tokio::test]
async fn a_session_id_is_visible_ascii_and_never_the_same() {
    let gateway = Setup::new().std().start().await;
    let ids = [Session::open(&gateway, "/mcp").await.id, Session::open(&gateway, "/mcp").await.id];
    for id in &ids {
        assert!(id.len() > 40 && id.bytes().all(|byte| byte.is_ascii_graphic()), "{id}");
    }
    assert_ne!(ids[0], ids[1]);
    gateway.stop().await;
}

#[tokio::test]
async fn without_a_session_a_request_is_400_and_a_stream_405() {
    let gateway = Setup::new().std().start().await;
    for message in [
        request(1, "ping", json!({})),
        request(1, "tools/list", json!({})),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
    ] {
        let answer = Answer::of(post(&gateway, "/mcp", &message)).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!(-32600)));
    }
    let url = gateway.url("/mcp");
    for request in [gateway.client.get(&url), gateway.client.delete(&url)] {
        let answer = Answer::of(request).await;
        assert_eq!((answer.status, answer.header("allow")), (405, "POST"));
    }
    gateway.stop().await;
}

#[tokio::test]
async fn in_the_modern_era_there_are_no_streams_to_open_and_no_sessions_to_end() {
    let gateway = Setup::new().std().start().await;
    let session = Session::open(&gateway, "/mcp").await;
    let modern = |request: RequestBuilder| {
        let request = request.header("mcp-session-id", &session.id);
        Answer::of(request.header("mcp-protocol-version", "2026-07-28"))
    };
    assert_eq!(modern(gateway.client.get(gateway.url("/mcp"))).await.status, 405);
    assert_eq!(modern(gateway.client.delete(gateway.url("/mcp"))).await.status, 405);
    assert!(is_good(&session).await);
    gateway.stop().await;
}

#[tokio::test]
async fn only_the_very_token_at_its_own_endpoint_opens_a_session() {
    let gateway = Setup::new().std().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    assert!(is_good(&session).await);
    for path in ["/mcp", "/mcp/std"] {
        assert!(!is_good(&session.at(&gateway, path)).await, "{path}");
    }
    let all = Session::open(&gateway, "/mcp").await;
    assert!(!is_good(&all.at(&gateway, "/mcp/fake")).await);
    let (first, rest) = session.id.split_at(1);
    let other = if first == "A" { "B" } else { "A" };
    for id in ["x", "00000000-0000-0000-0000-000000000000", rest, &format!("{other}{rest}")] {
        assert!(!is_good(&session.with_id(id)).await, "{id}");
    }
    let garbage = session.with_id("x");
    assert_eq!(garbage.notify("notifications/initialized", json!({})).await.status, 404);
    assert_eq!(garbage.send(json!({"jsonrpc": "2.0", "id": 1, "result": {}})).await.status, 404);
    assert_eq!(Answer::of(garbage.get()).await.status, 404);
    assert_eq!(garbage.delete().await.status, 404);
    gateway.stop().await;
}

#[tokio::test]
async fn a_deleted_session_is_gone() {
    let gateway = Setup::new().std().start().await;
    for path in ["/mcp", "/mcp/std"] {
        let (session, other) =
            (Session::open(&gateway, path).await, Session::open(&gateway, path).await);
        let deleted = session.delete().await;
        assert_eq!((deleted.status, deleted.body.len()), (204, 0));
        assert!(!is_good(&session).await);
        assert_eq!(session.delete().await.status, 404);
        assert_eq!(Answer::of(session.get()).await.status, 404);
        assert!(is_good(&other).await);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_tenant_cannot_use_the_session_of_another() {
    let stores = [Database::sqlite(), Database::sqlite()];
    let ours = replica(&stores[0], &[KEY], "acme").await;
    let theirs = replica(&stores[1], &[KEY], "other").await;
    let session = Session::open(&ours, "/mcp").await;
    assert!(is_good(&session).await);
    assert!(!is_good(&session.at(&theirs, "/mcp")).await);
    assert_eq!(session.at(&theirs, "/mcp").delete().await.status, 404);
    assert!(is_good(&session).await);
    ours.stop().await;
    theirs.stop().await;
}

#[tokio::test]
async fn a_replica_serves_all_of_a_session_but_what_another_one_keeps_for_it() {
    let store = Database::sqlite();
    let owner = replica(&store, &[KEY], "acme").await;
    let other = replica(&store, &[KEY], "acme").await;
    for (path, prefix, uri) in
        [("/mcp", "fake__", "trunkline:fake/test://x"), ("/mcp/fake", "", "test://x")]
    {
        let session = Session::open(&owner, path).await;
        let elsewhere = session.at(&other, path);
        for session in [&session, &elsewhere] {
            assert!(is_good(session).await);
            assert_eq!(session.tool_text(&format!("{prefix}raw"), json!({})).await, "{}");
            assert_eq!(
                session.result("logging/setLevel", json!({"level": "info"})).await,
                json!({})
            );
        }
        let watch = json!({"uri": uri});
        assert_eq!(session.result("resources/subscribe", watch.clone()).await, json!({}));
        assert_eq!(elsewhere.ask("resources/subscribe", watch.clone()).await.status, 404);
        assert_eq!(elsewhere.ask("resources/unsubscribe", watch).await.status, 404);
        assert_eq!(Answer::of(elsewhere.get()).await.status, 404);
    }
    // A process of its own is where it was started, and there alone.
    for (path, tool) in [("/mcp", "own__raw"), ("/mcp/own", "raw")] {
        let session = Session::open(&owner, path).await;
        assert_eq!(session.tool_text(tool, json!({})).await, "{}");
        let call = session.at(&other, path).call(1, tool, json!({}));
        assert_eq!(Answer::of(call).await.status, 404, "{path}");
    }
    let session = Session::open(&owner, "/mcp/own").await;
    assert_eq!(session.at(&other, "/mcp/own").ask("tools/list", json!({})).await.status, 404);
    assert!(other.fake("own").pids().is_empty());
    owner.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn keys_can_be_replaced_while_sessions_last() {
    let store = Database::sqlite();
    let old = replica(&store, &[OLD_KEY], "acme").await;
    let both = replica(&store, &[KEY, OLD_KEY], "acme").await;
    let new = replica(&store, &[KEY], "acme").await;
    let by_old = Session::open(&old, "/mcp").await;
    assert!(is_good(&by_old.at(&both, "/mcp")).await);
    assert!(!is_good(&by_old.at(&new, "/mcp")).await);
    let by_both = Session::open(&both, "/mcp").await;
    assert!(is_good(&by_both.at(&new, "/mcp")).await);
    assert!(!is_good(&by_both.at(&old, "/mcp")).await);
    for gateway in [old, both, new] {
        gateway.stop().await;
    }
}

#[tokio::test]
async fn without_keys_sessions_are_those_of_one_process() {
    let (one, other) = (Setup::new().std().start().await, Setup::new().std().start().await);
    let session = Session::open(&one, "/mcp").await;
    assert!(is_good(&session).await);
    assert!(!is_good(&session.at(&other, "/mcp")).await);
    one.stop().await;
    other.stop().await;
}
