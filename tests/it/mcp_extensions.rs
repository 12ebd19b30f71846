//! Extensions of the protocol: their requests reach the server that declares them, through the one
//! path of a call, and nobody else's tasks, skills or pages can be had.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::support::mcp_legacy::{Session, result_of};
use crate::support::mcp_modern::{Ask, CLIENT_CAPABILITIES};
use crate::support::{Api, Gateway, Mcp, Setup, python};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/extending_server.py");
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// Adds the server that declares extensions.
pub fn extending(setup: Setup, id: &str, options: &[&str], settings: &str) -> Setup {
    let log = format!("log={}", setup.dir.path().join(format!("{id}.log")).display());
    let args = ["-I", "-S", SERVER, &log].into_iter().chain(options.iter().copied());
    let args: Vec<String> = args.map(str::to_owned).collect();
    setup.server(id, python(), &args, settings)
}

/// A request of a client that takes tasks.
pub fn with_tasks(ask: Ask) -> Ask {
    ask.meta(CLIENT_CAPABILITIES, json!({"extensions": {TASKS: {}}}))
}

/// A request about a task.
pub fn about_task(mcp: &Mcp, method: &str, id: &str) -> Ask {
    let params = json!({"taskId": id, "inputResponses": {"a": 1}});
    with_tasks(mcp.ask(method, params)).header("mcp-name", id)
}

/// One client for each tenant.
async fn keys(gateway: &Gateway, tenants: &[&'static str]) -> HashMap<&'static str, Api> {
    let mut clients = HashMap::new();
    for tenant in tenants {
        clients.insert(*tenant, gateway.as_tenant(tenant).await);
    }
    clients
}

async fn extensions(mcp: &Mcp) -> Value {
    let found = mcp.ask("server/discover", json!({})).send().await.result();
    found["capabilities"]["extensions"].clone()
}

async fn code(ask: Ask) -> i64 {
    ask.send().await.error()["code"].as_i64().unwrap()
}

#[tokio::test]
async fn a_request_of_a_declared_extension_reaches_its_server_and_counts_as_a_call() {
    let setup = Setup::new().without_anonymous().std();
    let setup = extending(setup, "x", &[], "")
        .with_tenant("whole", "servers = [\"x\", \"std\"]")
        .with_tenant("part", "servers = [\"x/clock\"]")
        .with_tenant("slow", "servers = [\"x\"]\nrate = \"1/min\"\nburst = 2");
    let gateway = setup.start().await;
    let whole = gateway.as_tenant("whole").await;
    let one = whole.mcp("/mcp/x");
    let said = one.ask("x/do", json!({"a": 1.50, "_meta": {"b/c": 2}})).send().await.result();
    assert_eq!(said["method"], "x/do");
    assert_eq!(said["said"], json!({"a": 1.5}));
    let session = Session::open(&whole, "/mcp/x").await;
    let said = session.result("x/do", json!({"a": 2})).await;
    assert_eq!(said, json!({"method": "x/do", "said": {"a": 2}}));
    // A server that has declared nothing of the kind, all servers together, and odd names.
    for (path, method) in [
        ("/mcp/std", "x/do"),
        ("/mcp/std", "skills/list"),
        ("/mcp/std", "skills/get"),
        ("/mcp", "x/do"),
        ("/mcp/x", "sampling/createMessage"),
        ("/mcp/x", "tasks/result"),
        ("/mcp/x", "invented"),
        ("/mcp/x", "x/do\",\"method\":\"x/else"),
    ] {
        let ask = whole.mcp(path).ask(method, json!({"uri": "skill://git/SKILL.md"}));
        let answer = ask.send().await;
        assert_eq!(
            (answer.status, answer.error()["code"].as_i64()),
            (404, Some(-32601)),
            "{path} {method}"
        );
    }
    // A caller that may use a single tool sees a server without extensions.
    let part = gateway.as_tenant("part").await.mcp("/mcp/x");
    assert_eq!(code(part.ask("x/do", json!({}))).await, -32601);
    assert_eq!(code(part.ask("skills/list", json!({}))).await, -32601);
    let slow = gateway.as_tenant("slow").await.mcp("/mcp/x");
    for _ in 0..2 {
        slow.ask("x/do", json!({})).send().await.result();
    }
    assert_eq!(code(slow.ask("x/do", json!({}))).await, 429);
    gateway.stop().await;
}

#[tokio::test]
async fn skills_of_all_servers_are_listed_together_and_read_by_the_uris_of_the_list() {
    let setup = extending(Setup::new().std(), "a", &[], "");
    let gateway = extending(setup, "b", &["era=legacy"], "").start().await;
    let (all, one) = (gateway.mcp("/mcp"), gateway.mcp("/mcp/a"));
    let uris = async |mcp: &Mcp| mcp.names("skills/list", "skills", "uri").await;
    assert_eq!(uris(&one).await, ["skill://git/SKILL.md"]);
    let listed = uris(&all).await;
    assert_eq!(listed, ["skill://a/git/SKILL.md", "skill://b/git/SKILL.md"]);
    for uri in &listed {
        let got = all.ask("skills/get", json!({"uri": uri})).send().await.result();
        assert_eq!((&got["skill"]["uri"], &got["resultType"]), (&json!(uri), &json!("complete")));
        assert_eq!(&got["skill"]["resources"][0]["uri"], uri);
        assert!(uri.starts_with("skill://a") || got["cacheScope"] == "private", "{got}");
        let read = all.ask("resources/read", json!({"uri": uri})).send().await.result();
        assert_eq!(read["contents"][0]["text"], "read skill://git/SKILL.md");
        let directory = uri.strip_suffix("/SKILL.md").unwrap();
        let children = all.ask("resources/directory/read", json!({"uri": directory}));
        assert_eq!(&children.send().await.result()["resources"][0]["uri"], uri);
    }
    assert_eq!(code(all.ask("skills/get", json!({"uri": "skill://c/git/SKILL.md"}))).await, -32602);
    assert_eq!(
        extensions(&all).await["io.modelcontextprotocol/skills"],
        json!({"directoryRead": true})
    );
    // A legacy client, too.
    let session = Session::open(&gateway, "/mcp").await;
    let list = session.result("skills/list", json!({})).await;
    assert_eq!(list["skills"][1]["uri"], "skill://b/git/SKILL.md");
    gateway.stop().await;
}

#[tokio::test]
async fn a_page_can_be_read_by_whoever_may_call_its_tool() {
    let setup = extending(Setup::new().without_anonymous(), "x", &[], "")
        .with_tenant("whole", "servers = [\"x\"]")
        .with_tenant("part", "servers = [\"x/clock\"]")
        .with_tenant("other", "servers = [\"x/slow\"]")
        .with_tenant("agent", "servers = [\"toolset:t\"]")
        .raw("[toolsets.t]\ntools = [\"x/clock\", \"x/nap\"]\n");
    let gateway = setup.start().await;
    let tenants = keys(&gateway, &["whole", "part", "other", "agent"]).await;
    let page = async |api: &Api, path: &str| {
        let list = api.mcp(path).ask("tools/list", json!({})).send().await.result();
        let mut tools = list["tools"].as_array().unwrap().iter();
        let meta = tools.find_map(|tool| tool.get("_meta")).unwrap();
        meta["ui"]["resourceUri"].as_str().unwrap().to_owned()
    };
    for (tenant, path, shown) in [
        ("whole", "/mcp/x", "ui://clock/page.html"),
        ("whole", "/mcp", "ui://x/clock/page.html"),
        ("part", "/mcp/x", "ui://clock/page.html"),
        ("part", "/mcp", "ui://x/clock/page.html"),
        ("agent", "/mcp/t/t", "ui://x/clock/page.html"),
    ] {
        let api = &tenants[tenant];
        assert_eq!(page(api, path).await, shown, "{tenant} {path}");
        let read = api.mcp(path).ask("resources/read", json!({"uri": shown})).send().await.result();
        assert_eq!(read["contents"][0]["text"], "read ui://clock/page.html", "{tenant} {path}");
    }
    for (tenant, path, uri) in [
        ("part", "/mcp/x", "file:///secret"),
        ("part", "/mcp/x", "ui://clock/other.html"),
        ("other", "/mcp/x", "ui://clock/page.html"),
        ("agent", "/mcp/t/t", "trunkline:x/file:///secret"),
        ("agent", "/mcp/t/t", "ui://x/clock/other.html"),
        ("agent", "/mcp/t/t", "ui://std/clock/page.html"),
    ] {
        let mcp = tenants[tenant].mcp(path);
        let error = mcp.ask("resources/read", json!({"uri": uri})).send().await.error();
        assert!(
            [-32601, -32602].contains(&error["code"].as_i64().unwrap()),
            "{tenant} {uri} {error}"
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_servers_task_belongs_to_its_tenant_and_its_process() {
    let setup = extending(Setup::new().without_anonymous(), "x", &[], "instances = 2")
        .with_tenant("a", "servers = [\"x\"]")
        .with_tenant("b", "servers = [\"x\"]")
        .with_tenant("agent", "servers = [\"toolset:t\"]")
        .raw("[toolsets.t]\ntools = [\"x/*\"]\n");
    let gateway = setup.start().await;
    let tenants = keys(&gateway, &["a", "b", "agent"]).await;
    for (tenant, path, tool) in
        [("a", "/mcp/x", "slow"), ("a", "/mcp", "x__slow"), ("agent", "/mcp/t/t", "x__slow")]
    {
        let mcp = tenants[tenant].mcp(path);
        assert_eq!(extensions(&mcp).await[TASKS], json!({}), "{path}");
        // Over both processes, so that each call must find its own again.
        for n in 0..4 {
            let made = with_tasks(mcp.call(tool, json!({"n": n}))).send().await.result();
            assert_eq!((&made["resultType"], &made["status"]), (&json!("task"), &json!("working")));
            let id = made["taskId"].as_str().unwrap();
            assert!(!id.contains("task-"), "{id}");
            let got = about_task(&mcp, "tasks/get", id).send().await.result();
            assert_eq!((&got["taskId"], &got["resultType"]), (&json!(id), &json!("complete")));
            assert_eq!(got["statusMessage"], format!(r#"{{"n": {n}}}"#));
            about_task(&mcp, "tasks/update", id).send().await.result();
            let got = about_task(&mcp, "tasks/get", id).send().await.result();
            assert_eq!(got["statusMessage"], r#"{"a": 1}"#);
            about_task(&mcp, "tasks/cancel", id).send().await.result();
            let got = about_task(&mcp, "tasks/get", id).send().await.result();
            assert_eq!(got["status"], "cancelled");
            // Another tenant, another endpoint, the server's own id: all the same error.
            let strangers = [("b", "/mcp/x"), ("b", "/mcp"), ("a", "/mcp/x"), ("a", "/mcp")];
            for (other, at) in strangers.into_iter().filter(|it| *it != (tenant, path)) {
                let stranger = tenants[other].mcp(at);
                let unknown = about_task(&stranger, "tasks/get", "task-1").send().await.error();
                for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
                    let error = about_task(&stranger, method, id).send().await.error();
                    assert_eq!(error, unknown, "{method} {other} {at}");
                }
            }
        }
        let undeclared = mcp.call(tool, json!({})).send().await.error();
        assert_eq!(undeclared["code"], -32021);
        let id = "x";
        let undeclared = mcp.ask("tasks/get", json!({"taskId": id})).header("mcp-name", id);
        let undeclared = undeclared.send().await.error();
        assert_eq!(undeclared["code"], -32021);
        assert!(undeclared["data"]["requiredCapabilities"]["extensions"].get(TASKS).is_some());
        let mismatch = about_task(&mcp, "tasks/get", "y").header("mcp-name", "z");
        assert_eq!(code(mismatch).await, -32020);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_task_ends_with_its_process_though_the_next_one_gives_its_id_to_others() {
    let setup = extending(Setup::new().without_anonymous(), "x", &[], "");
    let setup = setup.with_tenant("a", "servers = [\"x\"]").with_tenant("b", "servers = [\"x\"]");
    let gateway = setup.start().await;
    let a = gateway.as_tenant("a").await.mcp("/mcp/x");
    let b = gateway.as_tenant("b").await.mcp("/mcp/x");
    let made = async |mcp: &Mcp| with_tasks(mcp.call("slow", json!({}))).send().await.result();
    let (mine, theirs) = (made(&a).await, made(&b).await);
    for (mcp, task) in [(&a, &mine), (&b, &theirs)] {
        let id = task["taskId"].as_str().unwrap();
        assert_eq!(about_task(mcp, "tasks/get", id).send().await.result()["status"], "working");
    }
    a.call("end", json!({})).send().await.error();
    let next = made(&b).await;
    let gone = about_task(&a, "tasks/get", mine["taskId"].as_str().unwrap()).send().await.error();
    assert_eq!(gone["code"], -32602, "{gone}");
    about_task(&b, "tasks/get", next["taskId"].as_str().unwrap()).send().await.result();
    gateway.stop().await;
}

#[tokio::test]
async fn events_reach_a_process_of_the_tenants_own_alone() {
    let setup = extending(Setup::new(), "shared", &["events=yes"], "");
    let setup = extending(setup, "own", &["events=yes"], "sharing = \"tenant\"");
    let gateway = setup.start().await;
    let shared = gateway.mcp("/mcp/shared");
    let refused = shared.ask("events/subscribe", json!({"url": "x"})).send().await.error();
    assert_eq!(refused["code"], -32601);
    assert!(refused["message"].as_str().unwrap().contains("sharing = \"tenant\""), "{refused}");
    let found = shared.ask("server/discover", json!({})).send().await.result();
    assert!(found["capabilities"].get("events").is_none(), "{found}");
    let own = gateway.mcp("/mcp/own");
    let found = own.ask("server/discover", json!({})).send().await.result();
    assert_eq!(found["capabilities"]["events"], json!({}));
    let said = own.ask("events/subscribe", json!({"url": "x"})).send().await.result();
    assert_eq!(said["said"], json!({"url": "x"}));
    gateway.stop().await;
}

#[tokio::test]
async fn a_legacy_clients_extensions_are_declared_to_a_server_of_its_own_but_for_tasks() {
    let setup = extending(Setup::new(), "own", &["era=legacy"], "sharing = \"session\"");
    let log = setup.dir.path().join("own.log");
    let gateway = setup.start().await;
    let mine = json!({"extensions": {"x/y": {}, TASKS: {}}, "roots": {}});
    let opened = result_of(&Session::try_open(&gateway, "/mcp/own", mine).await);
    let extensions = &opened["capabilities"]["extensions"];
    assert_eq!(extensions["com.example/x"], json!({"y": 1}));
    assert!(extensions.get(TASKS).is_none());
    let log = std::fs::read_to_string(log).unwrap();
    let sent = log.lines().find(|line| line.contains("\"initialize\"")).unwrap();
    let sent: Value = serde_json::from_str(sent.strip_prefix("> ").unwrap()).unwrap();
    assert_eq!(sent["params"]["capabilities"], json!({"extensions": {"x/y": {}}, "roots": {}}));
    gateway.stop().await;
}
