//! The lists of servers and tools.

use serde_json::{Value, json};

use crate::support::{Gateway, Setup, eventually, refused};

/// As `fake_server.py` has it.
const ODD_TOOL: &str = concat!(
    r#"{"name":"odd",  "inputSchema":{"type" : "object"}, "#,
    r#""x-n": 1.10, "x-big":12345678901234567890123}"#
);

async fn names(gateway: &Gateway, server: &str) -> Vec<String> {
    let list = gateway.tools(server).await.json();
    let tools = list["tools"].as_array().unwrap_or_else(|| panic!("{list}"));
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

async fn can_call(gateway: &Gateway, server: &str, tool: &str) {
    eventually(tool, async || (gateway.call(server, tool, "").await.status == 200).then_some(()))
        .await;
}

#[tokio::test]
async fn servers_are_listed_with_where_they_stand() {
    let gateway = Setup::new()
        .std()
        .fake_with("lazy", &[], "start = \"lazy\"")
        .server("broken", "/no/such/program", &[], "")
        .start()
        .await;
    let list = gateway.servers().await;
    assert_eq!((list.status, list.header("content-type")), (200, "application/json"));
    let servers = list.json()["servers"].clone();
    let [broken, lazy, std] = servers.as_array().unwrap().as_slice() else { panic!("{servers}") };
    assert_eq!(broken["id"], "broken");
    assert_eq!((&lazy["id"], &lazy["state"]), (&json!("lazy"), &json!("idle")));
    assert_eq!((&lazy["ready"], &lazy["instance_count"]), (&json!(0), &json!(1)));
    assert_eq!(std["id"], "std");
    assert_eq!((&std["state"], &std["tools"]), (&json!("ready"), &json!(7)));
    assert_eq!(gateway.server("std").await.json(), *std);
    // Where programs lie on the gateway's machine is not for callers.
    assert!(!list.text().contains("/no/such"), "{}", list.text());

    for answer in [gateway.server("nobody").await, gateway.tools("nobody").await] {
        assert_eq!(answer.problem(), refused(404, "server_not_found"));
    }
    gateway.stop().await;
}

#[tokio::test]
async fn tools_are_shown_as_the_server_wrote_them() {
    let gateway = Setup::new().std().fake("fake").start().await;
    let body = gateway.tools("fake").await.text();
    assert!(body.starts_with(&format!("{{\"tools\":[{ODD_TOOL},{{\"name\":\"raw\"")), "{body}");
    assert_eq!(
        names(&gateway, "std").await,
        ["echo", "sleep", "time", "hash", "uuid", "json_query", "fail"]
    );
    gateway.stop().await;
}

#[tokio::test]
async fn all_pages_of_the_list_count() {
    let gateway = Setup::new().fake("one").fake_with("three", &["pages=3"], "").start().await;
    assert_eq!(names(&gateway, "three").await, names(&gateway, "one").await);
    let asked: Vec<Value> = gateway.fake("three").received_of("tools/list");
    let cursors: Vec<_> = asked.iter().map(|request| &request["params"]["cursor"]).collect();
    assert_eq!(cursors, [&Value::Null, &json!("1"), &json!("2")]);
    // The last of all.
    let answer = gateway.call("three", "ask", "").await;
    assert_eq!(answer.status, 200);
    gateway.stop().await;
}

#[tokio::test]
async fn a_list_that_leads_back_to_its_start_fails_the_server() {
    let gateway = Setup::new().fake_with("fake", &["pages=3", "cursor=loop"], "").start().await;
    let answer = gateway.call("fake", "raw", "").await;
    assert_eq!(answer.problem(), refused(503, "server_unavailable").for_now());
    assert!(answer.detail().contains("its list of tools has no end"), "{}", answer.detail());
    gateway.stop().await;
}

#[tokio::test]
async fn a_changed_list_is_noticed_in_both_eras() {
    let gateway =
        Setup::new().fake("legacy").fake_with("modern", &["discover=modern"], "").start().await;
    for server in ["legacy", "modern"] {
        let fake = gateway.fake(server);
        if server == "modern" {
            let listen = "subscriptions/listen";
            eventually(listen, async || fake.received_of(listen).pop()).await;
        }
        assert_eq!(
            gateway.call(server, "fresh", "").await.problem(),
            refused(404, "tool_not_found")
        );
        fake.set_extra_tools("fresh");
        gateway.call(server, "change", "").await.tool_text();
        can_call(&gateway, server, "fresh").await;
        assert!(names(&gateway, server).await.contains(&"fresh".to_owned()));

        fake.set_extra_tools("");
        gateway.call(server, "change", "").await.tool_text();
        eventually("gone", async || {
            (gateway.call(server, "fresh", "").await.status == 404).then_some(())
        })
        .await;
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_was_started_again_is_asked_again() {
    let gateway = Setup::new().fake("fake").start().await;
    gateway.fake("fake").set_extra_tools("fresh");
    gateway.call("fake", "exit", "").await.problem();
    can_call(&gateway, "fake", "fresh").await;
    gateway.stop().await;
}
