//! The views of failed servers, for operators and for callers.

use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::pins::admin;
use crate::support::mcp_legacy::Session;
use crate::support::{Answer, Api, Gateway, Setup, eventually, kill};

/// One server as an administrator sees it.
async fn seen(admin: &Api, id: &str) -> Value {
    let servers = admin.get("/admin/v1/servers").await.json();
    let servers = servers["servers"].as_array().unwrap();
    servers.iter().find(|server| server["id"] == id).unwrap().clone()
}

/// Returns the view as soon as `is_right` accepts it.
async fn seen_when(admin: &Api, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually("seen so", async || Some(seen(admin, id).await).filter(&is_so)).await
}

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

/// A server that each tenant has for itself, and its tenants `a` and `b`.
async fn start_own(options: &[&str]) -> Gateway {
    let setup = Setup::new().fake_with("own", options, "sharing = \"tenant\"");
    let setup = setup.with_tenant("a", "servers = [\"own\"]");
    setup.with_tenant("b", "servers = [\"own\"]").start().await
}

#[tokio::test]
async fn what_is_wrong_is_said_since_when_it_is_however_often_it_was_tried() {
    let gateway = Setup::new().fake_with("fake", &["start=fail"], "").start().await;
    let first = gateway.server("fake").await.json();
    let admin = admin(&gateway).await;
    let last = seen_when(&admin, "fake", |server| server["state"] == "quarantined").await;
    for server in [&first, &last, &last["instances"][0]] {
        assert_eq!(server["reason"], "it ended with exit code 3", "{server}");
        assert_eq!(server["down_since"], first["down_since"], "{server}");
    }
    assert!(time(&last["since"]) > time(&last["down_since"]), "{last}");
    assert_eq!(last["instances"][0]["starts"], 5);
    let metrics = gateway.metrics().await;
    let shown = metrics.value("trunkline_server_down_since_timestamp_seconds{server=\"fake\"}");
    assert_eq!(shown, Some(time(&first["down_since"]).as_second() as f64));
    gateway.stop().await;
}

#[tokio::test]
async fn the_log_says_which_server_is_in_quarantine_and_why() {
    let gateway = Setup::new().fake_with("fake", &["start=fail"], "").serve().await;
    gateway.logged("server `fake` is in quarantine").await;
    let log = gateway.log();
    let line = log.iter().find(|line| line.contains("is in quarantine")).unwrap();
    let event: Value = serde_json::from_str(line).unwrap();
    assert_eq!(event["reason"], "it ended with exit code 3");
    // Of the 30 s and up to a tenth more, what the line itself took may be gone.
    assert!((25..=33).contains(&event["again_in_s"].as_u64().unwrap()), "{line}");
}

#[tokio::test]
async fn one_that_is_started_again_says_what_happened_until_it_is_ready() {
    let gateway = Setup::new().fake_with("fake", &["mute_after=1"], "").start().await;
    let ready = gateway.server("fake").await.json();
    assert!(ready["down_since"].is_null() && ready["reason"].is_null(), "{ready}");
    kill(gateway.fake("fake").pids()[0], Signal::KILL);
    let again = eventually("on its way", async || {
        let server = gateway.server("fake").await.json();
        (server["state"] == "starting").then_some(server)
    })
    .await;
    assert_eq!(again["reason"], "it was ended by signal 9");
    assert!(time(&again["down_since"]) > time(&ready["since"]), "{again}");
    gateway.stop().await;
}

#[tokio::test]
async fn operators_see_what_a_server_that_failed_has_said_and_callers_do_not() {
    let gateway = Setup::new().fake_with("fake", &["start=fail"], "").start().await;
    let admin = admin(&gateway).await;
    let has_failed = |it: &Value| it["instances"][0]["last_failure"].is_object();
    let server = seen_when(&admin, "fake", has_failed).await;
    let failure = &server["instances"][0]["last_failure"];
    assert_eq!(failure["detail"], "it ended with exit code 3");
    assert_eq!(failure["stderr"], json!(["cannot find my bearings"]));
    assert!(failure["at"].is_string());
    for answer in [gateway.server("fake").await, gateway.servers().await] {
        let text = answer.text();
        assert!(!text.contains("bearings") && !text.contains("stderr"), "{text}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn operators_see_why_a_changed_server_does_not_start_while_the_old_one_serves() {
    let none = Setup::new().with_tenant("a", "servers = [\"own\"]");
    let with = |options: &[&str]| {
        let setup = none.clone().fake_with("all", options, "");
        setup.fake_with("own", options, "sharing = \"tenant\"")
    };
    let gateway = with(&[]).start().await;
    let (a, admin) = (gateway.as_tenant("a").await, admin(&gateway).await);
    let old = a.call("own", "pid", "").await.tool_text();
    assert!(gateway.apply(&with(&["start=fail"])).await);
    assert_eq!(a.call("own", "pid", "").await.tool_text(), old);
    let has_failed = |next: &Value| next["instances"][0]["last_failure"].is_object();
    let all = seen_when(&admin, "all", |it| has_failed(&it["replacement"])).await;
    let own = seen_when(&admin, "own", |it| has_failed(&it["processes"][0]["replacement"])).await;
    for served in [&all, &own["processes"][0]] {
        // The one that serves is well.
        assert_eq!((&served["state"], &served["down_since"]), (&json!("ready"), &Value::Null));
        assert_eq!(served["instances"][0]["last_failure"], Value::Null, "{served}");
        let next = &served["replacement"];
        assert_eq!(next["reason"], "it ended with exit code 3", "{next}");
        assert!(time(&next["down_since"]) > time(&served["since"]), "{served}");
        let failure = &next["instances"][0]["last_failure"];
        assert_eq!(failure["stderr"], json!(["cannot find my bearings"]), "{next}");
    }
    let seen = a.server("own").await;
    assert_eq!(seen.json()["replacement"]["reason"], "it ended with exit code 3");
    assert!(seen.json()["replacement"]["down_since"].is_string());
    assert!(!seen.text().contains("bearings"), "{}", seen.text());
    gateway.stop().await;
}

#[tokio::test]
async fn operators_see_what_a_server_says_that_runs_and_callers_do_not() {
    let gateway = Setup::new().fake("fake").start().await;
    gateway.call("fake", "stderr", json!({"kib": 2})).await.tool_text();
    let admin = admin(&gateway).await;
    let server = seen_when(&admin, "fake", |it| it["instances"][0]["stderr"][1].is_string()).await;
    let instance = &server["instances"][0];
    assert_eq!((&instance["state"], &instance["starts"]), (&json!("ready"), &json!(1)));
    assert!(instance["stderr"][0].as_str().unwrap().starts_with("xxx"), "{instance}");
    for answer in [gateway.server("fake").await, gateway.servers().await] {
        let text = answer.text();
        assert!(!text.contains("xxx") && !text.contains("stderr"), "{text}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn operators_see_the_processes_of_tenants_and_tenants_their_own() {
    let gateway = start_own(&["start=fail"]).await;
    let (a, admin) = (gateway.as_tenant("a").await, admin(&gateway).await);
    assert_eq!(seen(&admin, "own").await["process_count"], 0);
    assert_eq!(a.call("own", "raw", "").await.json()["code"], "server_unavailable");
    let has_failed = |it: &Value| it["processes"][0]["instances"][0]["last_failure"].is_object();
    let own = seen_when(&admin, "own", has_failed).await;
    assert_eq!((&own["state"], &own["process_count"]), (&json!("per_tenant"), &json!(1)));
    let process = &own["processes"][0];
    assert_eq!(process["tenant"], "a");
    assert_eq!(process["reason"], "it ended with exit code 3", "{process}");
    assert!(process["since"].is_string() && process["down_since"].is_string(), "{process}");
    let failure = &process["instances"][0]["last_failure"];
    assert_eq!(failure["stderr"], json!(["cannot find my bearings"]));
    let of_a = a.server("own").await;
    assert_eq!(of_a.json()["down_since"], process["down_since"]);
    assert!(!of_a.text().contains("bearings"), "{}", of_a.text());
    let of_b = gateway.as_tenant("b").await.server("own").await.json();
    assert_eq!(of_b, json!({"id": "own", "state": "per_tenant"}));
    gateway.stop().await;
}

#[tokio::test]
async fn operators_see_the_processes_of_sessions_and_whoever_shows_one_sees_its_own() {
    let setup = Setup::new().fake_with("own", &[], "sharing = \"session\"");
    let gateway = setup.with_tenant("a", "servers = [\"own\"]").start().await;
    let (a, admin) = (gateway.as_tenant("a").await, admin(&gateway).await);
    let session = Session::open(&a, "/mcp/own").await;
    session.tool_text("pid", json!({})).await;
    let own = seen(&admin, "own").await;
    assert_eq!((&own["state"], &own["process_count"]), (&json!("per_session"), &json!(1)));
    let process = &own["processes"][0];
    assert_eq!((&process["tenant"], &process["state"]), (&json!("a"), &json!("ready")));
    let name = process["session"].as_str().unwrap();
    assert!(name.len() == 8 && !session.id.contains(name), "{name}");

    let look = async |api: &Api, session: &str| {
        let request = api.client.get(api.url("/v1/servers/own"));
        Answer::of(request.header("mcp-session-id", session)).await.json()["state"].clone()
    };
    assert_eq!(look(&a, &session.id).await, "ready");
    assert_eq!(look(&a, "made up").await, "per_session");
    assert_eq!(look(&gateway, &session.id).await, "per_session", "it is another tenant's");
    assert_eq!(a.server("own").await.json()["state"], "per_session");
    assert_eq!(session.delete().await.status, 204);
    assert_eq!(look(&a, &session.id).await, "per_session", "it is over");
    gateway.stop().await;
}

#[tokio::test]
async fn servers_that_nobody_shares_are_not_shown_as_down() {
    let gateway = start_own(&[]).await;
    let figures = ["up", "instances", "slots", "down_since_timestamp_seconds"];
    let shown = async |gateway: &Gateway| {
        let metrics = gateway.metrics().await;
        figures.map(|name| metrics.value(&format!("trunkline_server_{name}{{server=\"own\"}}")))
    };
    let a = gateway.as_tenant("a").await;
    a.call("own", "raw", "").await.tool_text();
    assert_eq!(shown(&gateway).await, [None; 4]);
    // Nor are those that were shared once.
    let shared = gateway.setup().clone().without_servers().fake("own");
    assert!(gateway.apply(&shared).await);
    eventually("up", async || (shown(&gateway).await[0] == Some(1.0)).then_some(())).await;
    assert!(gateway.apply(&gateway.setup().clone()).await);
    eventually("not shown", async || (shown(&gateway).await == [None; 4]).then_some(())).await;
    a.call("own", "raw", "").await.tool_text();
    assert_eq!(shown(&gateway).await, [None; 4]);
    gateway.stop().await;
}
