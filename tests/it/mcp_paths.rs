//! The paths at which MCP is served, and bodies that some clients send.

use serde_json::json;

use crate::support::mcp_legacy::{Session, post, request};
use crate::support::{Answer, Setup};

#[tokio::test]
async fn slashes_at_the_end_and_paths_that_end_in_mcp_answer() {
    let gateway = Setup::new().std().start().await;
    for path in ["/mcp/std", "/mcp/std/", "/servers/std/mcp", "/servers/std/mcp/"] {
        let session = Session::open(&gateway, path).await;
        assert!(session.tool_text("uuid", json!({})).await.len() >= 36, "{path}");
        // The same endpoint, whatever its path.
        let elsewhere = session.at(&gateway, "/mcp/std");
        assert_eq!(elsewhere.result("ping", json!({})).await, json!({}));
        assert_eq!(session.delete().await.status, 204);
    }
    let session = Session::open(&gateway, "/mcp/").await;
    session.tool_text("std__uuid", json!({})).await;
    for path in ["/v1/servers/", "/v1/servers/std/tools/?x=1"] {
        assert_eq!(Answer::of(gateway.client.get(gateway.url(path))).await.status, 200, "{path}");
    }
    let nobody = Answer::of(post(&gateway, "/servers/nobody/mcp", "{}")).await;
    assert_eq!(nobody.status, 404);
    gateway.stop().await;
}

#[tokio::test]
async fn a_compressed_body_is_refused_in_plain_words() {
    let gateway = Setup::new().std().start().await;
    let ping = request(1, "ping", json!({}));
    let mcp = post(&gateway, "/mcp", ping).header("content-encoding", "gzip");
    let mcp = Answer::of(mcp).await;
    assert_eq!(mcp.status, 415);
    assert!(mcp.json()["error"]["message"].as_str().unwrap().contains("compress"), "{mcp:?}");
    let rest = gateway.client.post(gateway.url("/v1/servers/std/tools/uuid"));
    let rest = Answer::of(rest.header("content-encoding", "br").body("x")).await;
    assert_eq!(rest.status, 415);
    assert_eq!(rest.json()["code"], "invalid_request");
    assert!(rest.detail().contains("compress"), "{rest:?}");
    let plain = gateway.client.post(gateway.url("/v1/servers/std/tools/uuid"));
    let plain = Answer::of(plain.header("content-encoding", "identity").body("{}")).await;
    assert_eq!(plain.status, 200);
    gateway.stop().await;
}

#[tokio::test]
async fn no_arguments_may_be_written_as_null() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    assert_eq!(session.tool_text("raw", json!(null)).await, "{}");
    let modern = gateway.mcp("/mcp/fake").call("raw", json!(null));
    assert_eq!(modern.send().await.tool_text(), "{}");
    let batch = json!({"calls": [{"id": "a", "server": "fake", "tool": "raw", "arguments": null}]});
    let batch = gateway.client.post(gateway.url("/v1/batch")).body(batch.to_string());
    let batch = Answer::of(batch).await;
    assert_eq!(batch.status, 200, "{batch:?}");
    gateway.stop().await;
}
