//! The changes that an operator makes from the live page, and the audit log of them.

use reqwest::Method;
use serde_json::{Value, json};

use crate::live_page::operator;
use crate::support::{Answer, Api, Setup, eventually, refused};

/// Returns the latest entries of the audit log with this action, the latest first.
async fn noted(admin: &Api, action: &str) -> Vec<Value> {
    let mut entries = admin.get("/admin/v1/audit?limit=20").await.json();
    let entries: Vec<Value> = serde_json::from_value(entries["entries"].take()).unwrap();
    entries.into_iter().filter(|entry| entry["action"] == action).collect()
}

#[tokio::test]
async fn a_session_may_make_each_change_of_the_page() {
    let gateway = Setup::new().std().start().await;
    let (page, _) = operator(&gateway).await;
    // Names of nothing and an empty list, so that nothing changes.
    for (method, path, status) in [
        (Method::DELETE, "/admin/v1/keys/h8Yoom3FkVRV", 404),
        (Method::DELETE, "/admin/v1/calls/01a1ee223625767f89e78d483a342c40", 404),
        (Method::POST, "/admin/v1/servers/none/pins", 400),
        (Method::POST, "/admin/v1/servers/none/pause", 404),
        (Method::POST, "/admin/v1/servers/none/resume", 404),
        (Method::POST, "/admin/v1/servers/none/instances/0/replace", 404),
        (Method::POST, "/admin/v1/tenants/none/servers/std/tools/echo", 404),
    ] {
        let answer = Answer::of(page.ask(method, path).body(r#"{"approve": []}"#)).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
    }
    gateway.stop().await;
}

#[tokio::test]
async fn an_operator_tries_a_tool_as_a_tenant_within_its_rights_and_limits() {
    let setup = Setup::new().without_anonymous().std();
    let gateway =
        setup.with_tenant("acme", "servers = [\"std/echo\"]\nrate = \"2/h\"").start().await;
    let (page, admin) = operator(&gateway).await;
    let path =
        |tenant: &str, tool: &str| format!("/admin/v1/tenants/{tenant}/servers/std/tools/{tool}");
    let call = async |tenant: &str, tool: &str| {
        let request = page.ask(Method::POST, &path(tenant, tool)).body(r#"{"text":"x"}"#);
        Answer::of(request).await
    };
    assert_eq!(call("nobody", "echo").await.status, 404);
    assert_eq!(call("acme", "hash").await.problem(), refused(404, "tool_not_found"));
    let answer = call("acme", "echo").await;
    assert_eq!((answer.status, answer.tool_text()), (200, "x".to_owned()));
    let limited = call("acme", "echo").await;
    assert_eq!((limited.status, &limited.json()["code"]), (429, &json!("rate_limited")));
    let noted = noted(&admin, "call.as_tenant").await;
    assert_eq!(noted.len(), 3, "{noted:?}");
    let detail = json!({"server": "std", "tool": "echo"});
    assert_eq!((&noted[0]["target"], &noted[0]["detail"]), (&json!("tenant:acme"), &detail));
    assert!(noted[0]["actor"].as_str().unwrap().starts_with("key:"), "{noted:?}");
    // No tenant does this for another one.
    let tenant = gateway.with_key(&gateway.new_key("acme").await);
    let request = tenant.client.post(tenant.url(&path("acme", "echo")));
    assert_eq!(Answer::of(request).await.problem(), refused(403, "forbidden"));
    gateway.stop().await;
}

#[tokio::test]
async fn callers_of_a_paused_server_wait_and_all_that_was_done_is_in_the_audit_log() {
    let gateway = Setup::new().std().fake_with("fake", &[], "").start().await;
    let (page, admin) = operator(&gateway).await;
    let verb = async |path: &str| {
        assert_eq!(page.status(Method::POST, &format!("/admin/v1/servers/{path}")).await, 200);
    };
    verb("std/pause").await;
    let waits = gateway.spawn_call("std", "echo", json!({"text": "x"}));
    assert_eq!(gateway.call_within_ms(200, "std", "echo", json!({"text": "x"})).await.status, 504);
    assert!(!waits.is_finished(), "it came before the other one");
    verb("std/resume").await;
    assert_eq!(waits.await.unwrap().status, 200);
    let starts = async || {
        let servers = admin.get("/admin/v1/servers").await.json();
        let fake = servers["servers"].as_array().unwrap().iter().find(|it| it["id"] == "fake");
        fake.unwrap()["instances"][0]["starts"].as_u64()
    };
    assert_eq!(starts().await, Some(1));
    // A call that runs ends on the old instance.
    let runs = gateway.spawn_call("fake", "hold", json!({}));
    eventually("it runs", async || {
        (gateway.fake("fake").calls_of("hold").len() == 1).then_some(())
    })
    .await;
    verb("fake/instances/0/replace").await;
    eventually("the next run", async || (starts().await == Some(2)).then_some(())).await;
    assert!(!runs.is_finished(), "it was cut off");
    runs.abort();
    for (action, target, detail) in [
        ("server.pause", "server:std", json!({})),
        ("server.resume", "server:std", json!({})),
        ("instance.replace", "server:fake", json!({"instance": 0})),
    ] {
        let entries = noted(&admin, action).await;
        assert_eq!(entries.len(), 1, "{action}");
        assert_eq!((&entries[0]["target"], &entries[0]["detail"]), (&json!(target), &detail));
        assert!(entries[0]["actor"].as_str().unwrap().starts_with("key:"), "{entries:?}");
    }
    gateway.stop().await;
}
