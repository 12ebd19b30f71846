//! `pin` that is set, and taken back, while the gateway runs.

use serde_json::json;

use crate::pins::{QUERY, change, is_called, open_approved, other_query};
use crate::support::mcp_legacy::{Session, messages};
use crate::support::{Fake, Gateway, Setup, eventually, refused};

/// A gateway before the server `fake`, of which nothing is pinned yet, and its configuration
/// without any server.
async fn start(settings: &str) -> (Gateway, Setup) {
    let none = Setup::new();
    Fake::new(none.dir.path(), "fake").set_extra_tools(QUERY);
    (none.clone().fake_with("fake", &[], settings).start().await, none)
}

/// Changes the settings of the server, and waits until it is replaced.
async fn replace(gateway: &Gateway, none: &Setup, settings: &str) {
    let pid = async || gateway.call("fake", "pid", "").await.text();
    let before = pid().await;
    assert!(gateway.apply(&none.clone().fake_with("fake", &[], settings)).await);
    eventually("replaced", async || (pid().await != before).then_some(())).await;
}

#[tokio::test]
async fn a_server_that_is_pinned_while_the_gateway_runs_is_pinned() {
    let (gateway, none) = start("").await;
    let fake = gateway.fake("fake");
    replace(&gateway, &none, "pin = true").await;
    assert_eq!(gateway.call("fake", "query", "").await.tool_text(), "query");
    change(&gateway, &fake, &format!("{}\nfresh", other_query())).await;
    is_called(&gateway, "query", 409).await;
    assert_eq!(gateway.call("fake", "fresh", "").await.problem(), refused(409, "tool_held"));
    // Written down, so that it can be approved.
    let store = gateway.setup().store().await;
    eventually("held", async || (store.pins(None).await.unwrap().1.len() == 2).then_some(())).await;

    replace(&gateway, &none, "").await;
    assert_eq!(gateway.call("fake", "query", "").await.tool_text(), "query");
    assert_eq!(gateway.call("fake", "fresh", "").await.tool_text(), "fresh");

    // What was approved then is what counts when it is pinned again.
    replace(&gateway, &none, "pin = true").await;
    assert_eq!(gateway.call("fake", "query", "").await.problem(), refused(409, "tool_held"));
    gateway.stop().await;
}

#[tokio::test]
async fn a_session_that_began_pinned_stays_so() {
    let (gateway, none) = start("sharing = \"session\"\npin = true").await;
    let fake = gateway.fake("fake");
    let before = open_approved(&gateway).await;
    assert_eq!(before.tool_text("query", json!({})).await, "query");
    assert!(gateway.apply(&none.fake_with("fake", &[], "sharing = \"session\"")).await);
    let after = Session::open(&gateway, "/mcp/fake").await;
    fake.set_extra_tools(&other_query());
    for session in [&before, &after] {
        session.tool_text("change", json!({})).await;
    }
    eventually("held", async || {
        let call = json!({"name": "query", "arguments": {}});
        let said = messages(&before.ask("tools/call", call).await).pop().unwrap();
        (said["error"]["data"]["code"] == "tool_held").then_some(())
    })
    .await;
    assert_eq!(before.tool_text("raw", json!({})).await, "{}");
    assert_eq!(after.tool_text("query", json!({})).await, "query");
    gateway.stop().await;
}
