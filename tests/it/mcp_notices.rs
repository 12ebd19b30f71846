//! Notifications of extensions, from servers to those who may hear of them, and from clients.

use std::fs;

use serde_json::{Value, json};

use crate::mcp_extensions::extending;
use crate::support::mcp_legacy::Session;
use crate::support::mcp_modern::{CLIENT_CAPABILITIES, SUBSCRIPTION_ID, Stream};
use crate::support::{Api, Gateway, Mcp, Setup, eventually};

const SKILLS: &str = "io.modelcontextprotocol/skills";
const OF_TENANT: &str = "sharing = \"tenant\"";

fn able(extensions: &[&str]) -> Value {
    let extensions = extensions.iter().map(|name| ((*name).to_owned(), json!({})));
    json!({"extensions": Value::Object(extensions.collect())})
}

async fn listen(mcp: &Mcp, extensions: &[&str]) -> Stream {
    let ask = mcp.ask("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    let mut stream = ask.id("\"l\"").meta(CLIENT_CAPABILITIES, able(extensions)).open().await;
    let first = stream.next().await;
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
    stream
}

async fn tell(api: &Api, server: &str, messages: Value) {
    let told = api.mcp(&format!("/mcp/{server}")).call("tell", json!({"messages": messages}));
    told.send().await.result();
}

async fn start(settings: &str, options: &[&str]) -> Gateway {
    let setup = extending(Setup::new().without_anonymous(), "x", options, settings);
    let setup = setup.with_tenant("a", "servers = [\"x\"]");
    let setup = setup.with_tenant("b", "servers = [\"x\"]");
    setup.with_tenant("part", "servers = [\"x/tell\"]").start().await
}

/// Notifications of which a listener hears the last one alone.
fn unheard() -> Vec<Value> {
    vec![
        json!({"method": "notifications/tasks", "params": {"taskId": "task-1"}}),
        json!({"method": "notifications/tasks/status", "params": {"taskId": "task-1"}}),
        json!({"method": "notifications/subscriptions/odd", "params": {}}),
    ]
}

#[tokio::test]
async fn a_tenants_own_process_notifies_its_clients_that_declare_the_extension() {
    for era in ["modern", "legacy"] {
        let gateway = start(OF_TENANT, &[&format!("era={era}")]).await;
        let a = gateway.as_tenant("a").await;
        let (part, b) = (gateway.as_tenant("part").await, gateway.as_tenant("b").await);
        for api in [&a, &b] {
            api.mcp("/mcp/x").call("clock", json!({})).send().await.result();
        }
        let session = Session::open_with(&a, "/mcp/x", able(&["com.example/x"])).await;
        let unable_session = Session::open(&a, "/mcp/x").await;
        let (mut get, mut unable_get) = (session.listen().await, unable_session.listen().await);
        let mut able_stream = listen(&a.mcp("/mcp/x"), &["com.example/x"]).await;
        let mut others = vec![
            listen(&a.mcp("/mcp/x"), &[]).await,
            listen(&a.mcp("/mcp/x"), &["another/one"]).await,
            listen(&a.mcp("/mcp"), &["com.example/x"]).await,
            listen(&b.mcp("/mcp/x"), &["com.example/x"]).await,
            listen(&part.mcp("/mcp/x"), &["com.example/x"]).await,
        ];
        let params = json!({"n": 1.5, "_meta": {"k": 1, SUBSCRIPTION_ID: 7}});
        let mut messages = unheard();
        messages.push(json!({"method": "notifications/x/moved", "params": params}));
        tell(&a, "x", json!(messages)).await;
        let told = able_stream.next().await;
        assert_eq!(told["method"], "notifications/x/moved", "{era}");
        assert_eq!(told["params"]["n"], 1.5);
        assert_eq!(told["params"]["_meta"], json!({"k": 1, SUBSCRIPTION_ID: "l"}));
        let told = get.message().await;
        assert_eq!(told["method"], "notifications/x/moved");
        assert_eq!(told["params"], json!({"n": 1.5, "_meta": {"k": 1}}));
        gateway.stop().await;
        for stream in &mut others {
            assert!(stream.next().await["result"].is_object(), "told of nothing until its end");
        }
        assert_eq!(unable_get.next().await, None);
    }
}

#[tokio::test]
async fn a_shared_server_tells_that_a_list_has_changed_and_nothing_else() {
    let gateway = start("", &[]).await;
    let (a, b) = (gateway.as_tenant("a").await, gateway.as_tenant("b").await);
    let mut one = listen(&b.mcp("/mcp/x"), &[SKILLS]).await;
    let mut other = listen(&b.mcp("/mcp/x"), &["com.example/x"]).await;
    let mut skills = listen(&b.mcp("/mcp"), &[SKILLS]).await;
    let mut without = listen(&b.mcp("/mcp"), &["com.example/x"]).await;
    let mut messages = unheard();
    messages.push(json!({"method": "notifications/x/moved", "params": {"secret": "of a"}}));
    let secret = json!({"secret": "of a"});
    messages.push(json!({"method": "notifications/skills/list_changed", "params": secret}));
    tell(&a, "x", json!(messages)).await;
    for stream in [&mut one, &mut skills] {
        let told = stream.next().await;
        assert_eq!(told["method"], "notifications/skills/list_changed");
        assert_eq!(told["params"], json!({"_meta": {SUBSCRIPTION_ID: "l"}}));
    }
    gateway.stop().await;
    for stream in [&mut without, &mut other] {
        assert!(stream.next().await["result"].is_object(), "told of nothing until its end");
    }
}

#[tokio::test]
async fn notifications_that_nobody_reads_are_bounded() {
    let gateway = start(OF_TENANT, &[]).await;
    let a = gateway.as_tenant("a").await;
    let session = Session::open_with(&a, "/mcp/x", able(&["com.example/x"])).await;
    a.mcp("/mcp/x").call("clock", json!({})).send().await.result();
    drop(session.listen().await);
    let messages: Vec<_> =
        (0..300).map(|n| json!({"method": "notifications/x/moved", "params": {"n": n}})).collect();
    tell(&a, "x", json!(messages)).await;
    let dropped = "trunkline_dropped_notifications_total{server=\"x\"}";
    eventually("dropped", async || {
        gateway.metrics().await.value(dropped).filter(|dropped| *dropped >= 100.0)
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_clients_notification_reaches_the_server_that_declares_its_extension_and_counts() {
    for settings in ["", OF_TENANT, "sharing = \"session\""] {
        let setup =
            extending(Setup::new().without_anonymous().std(), "x", &["era=legacy"], settings);
        let setup = setup.with_tenant("part", "servers = [\"x/clock\"]");
        // The start of a process counts, too.
        let burst = if settings.is_empty() { 3 } else { 4 };
        let policy = format!("servers = [\"x\", \"std\"]\nrate = \"1/h\"\nburst = {burst}");
        let setup = setup.with_tenant("a", &policy);
        let log = setup.dir.path().join("x.log");
        let gateway = setup.start().await;
        let a = gateway.as_tenant("a").await;
        let session = Session::open(&a, "/mcp/x").await;
        session.result("tools/call", json!({"name": "clock", "arguments": {}})).await;
        let params = json!({"n": 1.5});
        for method in ["notifications/tasks/x", "notifications/skills", "notifications/odd\"y"] {
            assert_eq!(session.notify(method, params.clone()).await.status, 202, "{method}");
        }
        assert_eq!(session.notify("notifications/x/moved", params.clone()).await.status, 202);
        let part = Session::open(&gateway.as_tenant("part").await, "/mcp/x").await;
        assert_eq!(part.notify("notifications/x/moved", json!({"of": "part"})).await.status, 202);
        let heard = eventually("heard", async || {
            let log = fs::read_to_string(&log).unwrap();
            log.lines().find(|line| line.contains("notifications/x/moved")).map(str::to_owned)
        });
        let heard: Value = serde_json::from_str(heard.await.strip_prefix("> ").unwrap()).unwrap();
        assert_eq!(heard["params"], params, "{settings}");
        let log = fs::read_to_string(&log).unwrap();
        assert!(!log.contains("notifications/tasks") && !log.contains("odd"), "{log}");
        assert!(!log.contains("\"of\""), "{log}");
        // What the limits of the tenant refuse does not reach it.
        let refused = session.notify("notifications/x/moved", json!({"too": "much"})).await;
        assert_eq!(refused.status, 429, "{settings} {refused:?}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_server_hears_of_no_extension_that_it_has_not_declared() {
    let setup = extending(Setup::new().fake("plain"), "shared", &["events=yes"], "");
    let gateway = setup.start().await;
    let plain = Session::open(&gateway, "/mcp/plain").await;
    for method in ["notifications/x/moved", "notifications/events/x", "notifications/skills/x"] {
        assert_eq!(plain.notify(method, json!({})).await.status, 202);
    }
    plain.tool_text("raw", json!({})).await;
    let heard = gateway.fake("plain").received();
    let methods: Vec<_> = heard.iter().filter_map(|it| it["method"].as_str()).collect();
    assert!(!methods.iter().any(|method| method.ends_with("/moved") || method.ends_with("/x")));
    // Events are not for a server that does not know whose they are.
    let shared = Session::open(&gateway, "/mcp/shared").await;
    let refused = shared.notify("notifications/events/x", json!({})).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("sharing = \\\"tenant\\\""), "{refused:?}");
    // Where all servers are shown there is none that is meant.
    let all = Session::open(&gateway, "/mcp").await;
    assert_eq!(all.notify("notifications/x/moved", json!({})).await.status, 202);
    gateway.stop().await;
}
