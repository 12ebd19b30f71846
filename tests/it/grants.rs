//! A tenant sees only the servers and tools that it may use.

use serde_json::json;

use crate::support::mcp_legacy::Session;
use crate::support::{Api, Gateway, Setup, refused};

/// Two tenants: one with two tools of `std` alone, one with all that `talk` has.
async fn gateway() -> (Gateway, [Api; 2]) {
    let gateway = Setup::new()
        .without_anonymous()
        .std()
        .talker("talk", "modern")
        .with_tenant("tools", "servers = [\"std/echo\", \"std/f*\"]")
        .with_tenant("talks", "servers = [\"talk\"]")
        .start()
        .await;
    let tools = gateway.as_tenant("tools").await;
    let talks = gateway.as_tenant("talks").await;
    (gateway, [tools, talks])
}

#[tokio::test]
async fn only_what_is_granted_is_listed_and_called_over_rest() {
    let (gateway, [tools, talks]) = gateway().await;
    let servers = |list: serde_json::Value| list["servers"].clone();
    let listed = servers(tools.servers().await.json());
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!((&listed[0]["id"], &listed[0]["tools"]), (&json!("std"), &json!(2)));
    let names = tools.tools("std").await.json();
    assert_eq!(
        (&names["tools"][0]["name"], &names["tools"][1]["name"]),
        (&json!("echo"), &json!("fail"))
    );
    assert_eq!(servers(talks.servers().await.json())[0]["id"], "talk");

    assert_eq!(tools.call("std", "echo", r#"{"text":"x"}"#).await.status, 200);
    // What is not granted answers as what does not exist, word for word.
    let hidden = tools.call("std", "uuid", "").await;
    assert_eq!(hidden.problem(), refused(404, "tool_not_found"));
    let absent = tools.call("std", "nope", "").await;
    assert_eq!(hidden.text().replace("uuid", "nope"), absent.text());
    let absent = tools.call("gone", "echo", "").await;
    for hidden in [
        tools.call("talk", "echo", "").await,
        tools.server("talk").await,
        tools.tools("talk").await,
    ] {
        assert_eq!(hidden.problem(), refused(404, "server_not_found"));
        assert_eq!(hidden.text().replace("talk", "gone"), absent.text());
    }
    gateway.stop().await;
}

#[tokio::test]
async fn only_what_is_granted_is_listed_and_called_over_mcp() {
    let (gateway, [tools, talks]) = gateway().await;
    let mcp = tools.mcp("/mcp");
    assert_eq!(mcp.tool_names().await, ["std__echo", "std__fail"]);
    assert_eq!(mcp.names("resources/list", "resources", "uri").await, [] as [&str; 0]);
    let hidden = mcp.call("std__uuid", json!({})).send().await.error();
    let absent = mcp.call("std__nope", json!({})).send().await.error();
    assert_eq!(hidden.to_string().replace("uuid", "nope"), absent.to_string());
    let hidden = mcp.call("talk__echo", json!({})).send().await.error();
    let absent = mcp.call("gone__echo", json!({})).send().await.error();
    assert_eq!(hidden.to_string().replace("talk", "gone"), absent.to_string());
    let uri = |server| mcp.ask("resources/read", json!({"uri": format!("trunkline:{server}/x:y")}));
    let (hidden, absent) = (uri("talk").send().await.error(), uri("gone").send().await.error());
    assert_eq!(hidden.to_string().replace("talk", "gone"), absent.to_string());

    let one = tools.mcp("/mcp/std");
    assert_eq!(one.tool_names().await, ["echo", "fail"]);
    assert_eq!(
        one.call("echo", json!({"text": "x"})).send().await.result()["content"][0]["text"],
        "x"
    );
    assert_eq!(one.call("uuid", json!({})).send().await.error()["data"]["code"], "tool_not_found");
    let hidden = tools.mcp("/mcp/talk").ask("tools/list", json!({})).send().await;
    assert_eq!(hidden.status, 404);
    assert!(!talks.mcp("/mcp/talk").names("resources/list", "resources", "uri").await.is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn who_may_use_tools_alone_sees_neither_resources_nor_prompts() {
    let gateway = Setup::new()
        .without_anonymous()
        .talker("talk", "legacy")
        .with_tenant("some", "servers = [\"talk/*\"]")
        .start()
        .await;
    let some = gateway.as_tenant("some").await;
    let session = Session::open(&some, "/mcp/talk").await;
    let tools = session.result("tools/list", json!({})).await["tools"].clone();
    assert!(!tools.as_array().unwrap().is_empty());
    for (method, params) in [
        ("resources/list", json!({})),
        ("resources/read", json!({"uri": "mem:///a"})),
        ("resources/subscribe", json!({"uri": "mem:///a"})),
        ("prompts/list", json!({})),
        ("prompts/get", json!({"name": "greet"})),
    ] {
        let error = session.error(method, params).await;
        assert_eq!(error["code"], -32601, "{method}: {error}");
    }
    gateway.stop().await;
}
