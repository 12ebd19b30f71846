//! Lists that leave something out, and changes of lists.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::support::mcp_legacy::{Session, Stream};
use crate::support::{Setup, eventually};

const LISTS: &str = concat!(
    r#"capabilities={"tools":{"listChanged":true},"prompts":{"listChanged":true}"#,
    r#","resources":{"listChanged":true}}"#
);

fn changed(list: &str) -> Value {
    json!({"method": format!("notifications/{list}/list_changed")})
}

/// The methods that come until one that must be the last.
async fn until(stream: &mut Stream, last: &str) -> Vec<String> {
    let mut methods = vec![];
    loop {
        let method = stream.method().await;
        if method == last {
            return methods;
        }
        methods.push(method);
    }
}

#[tokio::test]
async fn a_new_session_hears_of_no_list_that_it_has() {
    let setup = Setup::new().fake_with("own", &[LISTS], "sharing = \"session\"");
    let gateway = setup.start().await;
    for _ in 0..3 {
        let session = Session::open(&gateway, "/mcp/own").await;
        session.result("tools/list", json!({})).await;
        let mut stream = session.listen().await;
        session.tool_text("pid", json!({})).await;
        let silence = timeout(Duration::from_millis(600), stream.next()).await;
        assert!(silence.is_err(), "{silence:?}");
        assert_eq!(session.delete().await.status, 204);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_session_hears_of_lists_that_left_its_server_out() {
    let setup = Setup::new().fake_with("own", &[LISTS], "sharing = \"session\"\npin = false");
    let gateway = setup.start().await;
    let session = Session::open(&gateway, "/mcp").await;
    let list = session.result("tools/list", json!({})).await;
    assert_eq!(list["_meta"]["trunkline/notListed"], json!(["own"]));
    let mut stream = session.listen().await;
    session.tool_text("own__pid", json!({})).await;
    for list in ["tools", "prompts", "resources"] {
        assert_eq!(stream.method().await, format!("notifications/{list}/list_changed"));
    }
    // The next one is shown the tools of the first, and needs no word.
    let next = Session::open(&gateway, "/mcp").await;
    let list = next.result("tools/list", json!({})).await;
    assert!(list.get("_meta").is_none() && list["tools"].as_array().unwrap().len() > 5, "{list}");
    let mut stream = next.listen().await;
    next.tool_text("own__pid", json!({})).await;
    gateway.fake("own").set_extra_tools("another");
    next.tool_text("own__change", json!({})).await;
    assert_eq!(stream.method().await, "notifications/tools/list_changed");
    let silence = timeout(Duration::from_millis(600), stream.next()).await;
    assert!(silence.is_err(), "{silence:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_storm_of_changes_is_told_a_few_times() {
    let gateway = Setup::new().fake_with("fake", &[LISTS], "").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    let mut stream = session.listen().await;
    let storm: Vec<_> = (0..20).flat_map(|_| [changed("prompts"), changed("resources")]).collect();
    let began = Instant::now();
    for _ in 0..10 {
        let storm = json!({"messages": storm}).to_string();
        gateway.call("fake", "say", &storm).await.tool_text();
    }
    let took = began.elapsed();
    gateway.fake("fake").set_extra_tools("last");
    gateway.call("fake", "change", "{}").await.tool_text();
    let told = until(&mut stream, "notifications/tools/list_changed").await;
    let most = 2 * (3 + took.as_millis() as usize / 250);
    assert!((2..=most).contains(&told.len()), "{} in {took:?}", told.len());
    gateway.stop().await;
}

#[tokio::test]
async fn a_modern_client_is_told_which_servers_need_a_session() {
    let setup = Setup::new().std().fake_with("own", &[LISTS], "sharing = \"session\"");
    let gateway = setup.start().await;
    let mcp = gateway.mcp("/mcp");
    for method in ["tools/list", "prompts/list", "resources/list", "resources/templates/list"] {
        let list = mcp.ask(method, json!({})).send().await.result();
        assert_eq!(list["_meta"], json!({"trunkline/needsSession": ["own"]}), "{method}");
    }
    let session = Session::open(&gateway, "/mcp").await;
    let list = session.result("tools/list", json!({})).await;
    assert_eq!(list["_meta"], json!({"trunkline/notListed": ["own"]}));
    gateway.stop().await;
}

#[tokio::test]
async fn one_bad_tool_takes_no_other_away() {
    let setup = Setup::new().fake("fake");
    let task = r#"{"name":"tasky","execution":{"taskSupport":"required"},"inputSchema":{}}"#;
    let long = format!(r#"{{"name":"{}"}}"#, "x".repeat(300));
    let extra = [r#"{"name":"a\u0007b"}"#, r#"{"title":"nameless"}"#, task, &long, "good"];
    crate::support::Fake::new(setup.dir.path(), "fake").set_extra_tools(&extra.join("\n"));
    let gateway = setup.start().await;
    let names = gateway.mcp("/mcp/fake").tool_names().await;
    assert!(names.iter().any(|name| name == "good"), "{names:?}");
    assert!(!names.iter().any(|name| name == "tasky" || name.len() > 256), "{names:?}");
    let answer = gateway.call("fake", "tasky", "{}").await;
    assert_eq!(answer.status, 404);
    gateway.stop().await;
}

#[tokio::test]
async fn more_than_five_thousand_tools_come_in_pages() {
    let setup = Setup::new().fake("fake");
    let many: Vec<_> = (0..6000).map(|n| format!("t{n}")).collect();
    crate::support::Fake::new(setup.dir.path(), "fake").set_extra_tools(&many.join("\n"));
    let gateway = setup.start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    let (mut names, mut params) = (0, json!({}));
    loop {
        let list = session.result("tools/list", params).await;
        names += list["tools"].as_array().unwrap().len();
        let Some(cursor) = list.get("nextCursor") else { break };
        params = json!({"cursor": cursor});
    }
    assert!(names > 6000, "{names}");
    assert_eq!(session.tool_text("t5999", json!({})).await, "t5999");
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_of_both_eras_is_spoken_to_in_the_one_that_is_asked_for() {
    let setup = Setup::new()
        .fake_with("auto", &["eras=both"], "")
        .fake_with("legacy", &["eras=both"], "era = \"legacy\"")
        .fake_with("modern", &["eras=both"], "era = \"modern\"")
        .fake_with("session", &["eras=both"], "sharing = \"session\"\nera = \"modern\"")
        .fake_with("not_modern", &[], "era = \"modern\"");
    let gateway = setup.start().await;
    for (server, era) in [("auto", "modern"), ("legacy", "legacy"), ("modern", "modern")] {
        assert_eq!(gateway.server(server).await.json()["era"], era, "{server}");
    }
    assert!(gateway.fake("legacy").received_of("server/discover").is_empty());
    let session = Session::open(&gateway, "/mcp/session").await;
    session.tool_text("pid", json!({})).await;
    assert!(gateway.fake("session").received_of("initialize").is_empty());
    let down = gateway.server("not_modern").await.json();
    assert_eq!(down["reason"], "its handshake failed", "{down}");
    let trace = gateway.fake("not_modern");
    eventually("asked", async || trace.received_of("server/discover").pop()).await;
    assert!(trace.received_of("initialize").is_empty());
    gateway.stop().await;
}
