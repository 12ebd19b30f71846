//! Streams that are open while servers come, change and go.

use serde_json::json;

use crate::support::mcp_legacy::{Session, request};
use crate::support::mcp_modern::Stream;
use crate::support::{Setup, eventually};

const TOOLS: &str = "notifications/tools/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";
const UPDATED: &str = "notifications/resources/updated";

async fn hears_of_tools(stream: &mut Stream) {
    assert_eq!(stream.next().await["method"], TOOLS);
}

#[tokio::test]
async fn a_stream_of_all_servers_hears_of_those_that_come_and_go() {
    let std = Setup::new().std();
    let gateway = std.clone().start().await;
    let mcp = gateway.mcp("/mcp");
    let (mut modern, _) = mcp.listen("1", json!({"toolsListChanged": true})).await;
    let session = Session::open(&gateway, "/mcp").await;
    let mut legacy = session.listen().await;
    let has = async |tool: &str| mcp.tool_names().await.iter().any(|name| name == tool);

    for (what, setup) in [
        ("added", std.clone().fake("fake")),
        ("changed", std.clone().fake_with("fake", &["pages=2"], "")),
        ("removed", std.clone()),
        ("added again", std.clone().fake("fake")),
    ] {
        assert!(gateway.apply(&setup).await);
        eventually(what, async || {
            hears_of_tools(&mut modern).await;
            (has("fake__raw").await == (what != "removed")).then_some(())
        })
        .await;
        eventually(what, async || (legacy.method().await == TOOLS).then_some(())).await;
    }
    // And what it says itself is heard, too.
    gateway.fake("fake").set_extra_tools("new");
    let say = json!({"messages": [{"method": TOOLS}]});
    gateway.call("fake", "say", say).await.tool_text();
    eventually("the new tool", async || {
        hears_of_tools(&mut modern).await;
        has("fake__new").await.then_some(())
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_stream_hears_that_the_next_server_has_no_such_list() {
    let none = Setup::new();
    let gateway = none.clone().talker("changing", "legacy").start().await;
    let mcp = gateway.mcp("/mcp/changing");
    let (mut stream, first) = mcp.listen("1", json!({"promptsListChanged": true})).await;
    assert_eq!(first["notifications"], json!({"promptsListChanged": true}));
    assert!(gateway.apply(&none.fake("changing")).await);
    assert_eq!(stream.next().await["method"], PROMPTS);
    gateway.stop().await;
}

#[tokio::test]
async fn a_resource_is_still_watched_when_its_server_was_replaced() {
    for era in ["legacy", "modern"] {
        let none = Setup::new();
        let gateway = none.clone().talker("talker", era).start().await;
        let mcp = gateway.mcp("/mcp/talker");
        let filter = json!({"resourceSubscriptions": ["mem:///a"]});
        let (mut stream, first) = mcp.listen("1", filter.clone()).await;
        assert_eq!(first["notifications"], filter, "{era}");
        let session = Session::open(&gateway, "/mcp/talker").await;
        let subscribe = request(7, "resources/subscribe", json!({"uri": "mem:///a"}));
        assert_eq!(session.send(subscribe).await.status, 200);
        let mut standing = session.listen().await;
        let changed = none.talker_with("talker", era, &[], "timeout = \"31s\"");
        assert!(gateway.apply(&changed).await);
        // It may have changed while nobody listened.
        assert_eq!(stream.next().await["method"], UPDATED, "{era}");
        let fake = gateway.fake("talker");
        eventually("subscribed again", async || {
            let method =
                if era == "modern" { "subscriptions/listen" } else { "resources/subscribe" };
            let asked = fake.received_of(method);
            let all = asked.iter().filter(|asked| asked.to_string().contains("mem:///a"));
            (fake.pids().len() == 2 && all.count() >= 2).then_some(())
        })
        .await;
        eventually("told", async || {
            mcp.call("touch", json!({"uri": "mem:///a"})).send().await.tool_text();
            (standing.method().await == UPDATED).then_some(())
        })
        .await;
        assert_eq!(stream.next().await["method"], UPDATED, "{era}");
        gateway.stop().await;
    }
}
