//! MCP clients that do not read their answers.

use serde_json::{Value, json};

use crate::support::mcp_legacy::{Session, request};
use crate::support::mcp_modern::Ask;
use crate::support::{Answer, Api, Gateway, in_time};
use crate::unsent::{holds, setup};

/// Sends requests over connections that read nothing, until the tenant's budget is nearly full.
async fn fill(
    gateway: &Gateway,
    api: &Api,
    ask: impl AsyncFn(&Api, usize) -> reqwest::Response,
) -> Vec<reqwest::Response> {
    let mut unread = vec![];
    loop {
        // A connection has 200 streams at most.
        let deaf = api.with_window(0);
        for _ in 0..15 {
            for _ in 0..10 {
                unread.push(in_time("the head", ask(&deaf, unread.len())).await);
            }
            let held = gateway.metrics().await.value("trunkline_held_bytes{budget=\"unsent\"}");
            if held > Some(920_000.0) {
                return unread;
            }
        }
    }
}

fn is_refused(error: &Value) {
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(429), &json!("tenant_busy")));
    assert_eq!(error["data"]["executed"], "no");
    assert!(error["message"].as_str().unwrap().contains("unsent bytes"), "{error}");
}

async fn is_free_again(gateway: &Gateway, unread: Vec<reqwest::Response>) {
    holds(gateway, "unsent", |held| held > 9e5 && held < 1.2e6).await;
    drop(unread);
    holds(gateway, "unsent", |held| held == 0.0).await;
}

async fn neighbour_lists(gateway: &Gateway) {
    let b = gateway.as_tenant("b").await;
    assert!(b.mcp("/mcp").tool_names().await.len() > 3);
}

#[tokio::test]
async fn a_modern_client_that_reads_no_list_is_refused_more() {
    let gateway = setup().start().await;
    let a = gateway.as_tenant("a").await;
    let list = |api: &Api| api.mcp("/mcp").ask("tools/list", json!({}));
    let unread = fill(&gateway, &a, async |deaf, _| list(deaf).response().await).await;
    is_refused(&list(&a).send().await.error());
    is_refused(&a.mcp("/mcp").call("std__uuid", json!({})).send().await.error());
    neighbour_lists(&gateway).await;
    is_free_again(&gateway, unread).await;
    assert!(a.mcp("/mcp").tool_names().await.len() > 3);
    gateway.stop().await;
}

#[tokio::test]
async fn a_legacy_client_that_reads_nothing_is_refused_more() {
    let gateway = setup().start().await;
    let a = gateway.as_tenant("a").await;
    let session = Session::open(&a, "/mcp").await;
    let unread = fill(&gateway, &a, async |deaf, id| {
        session.at(deaf, "/mcp").post(request(id, "tools/list", json!({}))).send().await.unwrap()
    })
    .await;
    is_refused(&session.error("tools/list", json!({})).await);
    let call = session.call(1, "std__uuid", json!({}));
    is_refused(&Answer::of(call).await.json()["error"]);
    // A client can still end what it has.
    assert_eq!(
        session.notify("notifications/cancelled", json!({"requestId": 5})).await.status,
        202
    );
    neighbour_lists(&gateway).await;
    is_free_again(&gateway, unread).await;
    session.result("tools/list", json!({})).await;
    assert_eq!(session.delete().await.status, 204);
    gateway.stop().await;
}

#[tokio::test]
async fn streams_of_events_count_with_what_waits_for_them() {
    let gateway = setup().start().await;
    let a = gateway.as_tenant("a").await;
    let call = |api: &Api| -> Ask {
        let call = api.mcp("/mcp/fake").call("chatter", json!({"lines": 20, "bytes": 13_000}));
        call.meta("progressToken", 7)
    };
    let deaf = a.with_window(0);
    let mut unread = vec![];
    for _ in 0..4 {
        let response = call(&deaf).response().await;
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        unread.push(response);
    }
    holds(&gateway, "unsent", |held| held > 9e5 && held < 1.2e6).await;
    is_refused(&call(&a).send().await.error());
    neighbour_lists(&gateway).await;
    is_free_again(&gateway, unread).await;
    gateway.stop().await;
}
