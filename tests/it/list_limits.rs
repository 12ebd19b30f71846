//! Lists are charged to a rate of their own, and before anything of a request is taken apart.

use serde_json::json;

use crate::secrets;
use crate::support::mcp_legacy::Session;
use crate::support::{Api, Gateway, Setup, eventually, is_alive, refused};

const ONCE: &str = "rate = \"1/s\"\nservers = [\"*\"]";

async fn talkers(policy: &str) -> Gateway {
    let setup = Setup::new().without_anonymous().talker("a", "modern").talker("b", "legacy");
    setup.with_tenant("acme", policy).start().await
}

#[tokio::test]
async fn clients_that_list_at_every_connect_go_on_at_one_call_a_second() {
    let gateway = talkers(ONCE).await;
    let acme = gateway.as_tenant("acme").await;
    for _ in 0..4 {
        for endpoint in ["/mcp", "/mcp/a", "/mcp/b"] {
            let session = Session::open(&acme, endpoint).await;
            session.result("tools/list", json!({})).await;
            session.result("prompts/list", json!({})).await;
            session.result("resources/list", json!({})).await;
            session.result("ping", json!({})).await;
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_flood_of_lists_is_refused_in_the_name_of_their_rate() {
    let gateway = talkers("rate = \"1/h\"\nservers = [\"*\"]").await;
    let acme = gateway.as_tenant("acme").await;
    let mcp = acme.mcp("/mcp");
    let first = mcp.ask("prompts/list", json!({})).send().await;
    assert!(first.headers["ratelimit"].to_str().unwrap().starts_with(r#""tenant lists";r=49;"#));
    assert_eq!(first.result()["prompts"].as_array().map(Vec::len), Some(6), "{first:?}");
    let mut error = json!(null);
    // Ten a second are earned meanwhile.
    for _ in 0..2000 {
        let said = mcp.ask("tools/list", json!({})).send().await;
        let answer = said.answer();
        if answer.get("error").is_some() {
            error = said.error();
            break;
        }
    }
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(429), &json!("rate_limited")));
    assert!(error["message"].as_str().unwrap().contains("for lists is used up"), "{error}");
    for path in ["/v1/servers", "/v1/servers/a", "/v1/servers/a/tools"] {
        let mut refusals = 0;
        for _ in 0..20 {
            let answer = acme.get(path).await;
            if answer.status == 429 {
                assert_eq!(answer.problem(), refused(429, "rate_limited").for_now());
                refusals += 1;
            }
        }
        assert!(refusals > 0, "{path}");
    }
    // Calls are not lists.
    assert_eq!(acme.call("a", "echo", "{}").await.status, 200);
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_is_charged_before_its_parameters_are_taken_apart() {
    let gateway = talkers("rate = \"2/h\"\nservers = [\"*\"]").await;
    let mcp = gateway.as_tenant("acme").await.mcp("/mcp/a");
    // Refused for their parameters, and charged.
    for left in [1, 0] {
        let said = mcp.call("echo", json!({})).raw_params(r#"{"Name":1}"#).send().await;
        assert_eq!(said.refusal(), (400, -32602));
        let status = said.headers["ratelimit"].to_str().unwrap().to_owned();
        assert!(status.starts_with(&format!("\"tenant\";r={left};")), "{status}");
    }
    let said = mcp.call("echo", json!({})).id("7").raw_params(r#"{"Name":1}"#).send().await;
    assert_eq!(said.error()["data"]["code"], "rate_limited");
    assert!(said.echoes("7"), "{said:?}");
    // What is no call is free still.
    mcp.ask("server/discover", json!({})).send().await.result();
    gateway.stop().await;
}

#[tokio::test]
async fn the_list_of_all_servers_starts_no_process_of_a_tenant() {
    let everything = "servers = [\"*\"]";
    let setup = Setup::new().without_anonymous().with_tenant("a", everything);
    let setup = setup.with_tenant("b", everything);
    let gateway = setup.fake_with("own", &[], "sharing = \"tenant\"").start().await;
    let [a, b] = [gateway.as_tenant("a").await, gateway.as_tenant("b").await];
    let fake = gateway.fake("own");
    for method in ["tools/list", "prompts/list"] {
        let list = a.mcp("/mcp").ask(method, json!({})).send().await.result();
        assert_eq!(list["_meta"]["trunkline/notListed"], json!(["own"]), "{list}");
    }
    assert!(fake.pids().is_empty());
    // Asked for by name, it starts.
    assert!(b.mcp("/mcp/own").tool_names().await.contains(&"pid".to_owned()));
    assert_eq!(fake.pids().len(), 1);
    // From then on its tools are known: every tenant's process is started alike.
    let list = a.mcp("/mcp").ask("tools/list", json!({})).send().await.result();
    assert!(list.get("_meta").is_none(), "{list}");
    assert!(a.mcp("/mcp").tool_names().await.contains(&"own__pid".to_owned()));
    assert!(a.mcp("/mcp/own").tool_names().await.contains(&"pid".to_owned()));
    assert_eq!(fake.pids().len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn tools_of_a_process_with_secrets_are_known_to_its_own_tenant_alone() {
    let gateway = secrets::setup("idle_timeout = \"1s\"").start().await;
    let [a, b] = [gateway.as_tenant("acme").await, gateway.as_tenant("globex").await];
    secrets::set(&a, "hunter2").await;
    let pid = a.call("own", "pid", "").await.tool_text().parse().unwrap();
    eventually("idle", async || (!is_alive(pid)).then_some(())).await;
    let list = |of: &Api| of.mcp("/mcp").ask("tools/list", json!({})).send();
    assert!(list(&a).await.body.contains("own__pid"));
    let of_b = list(&b).await;
    assert!(!of_b.body.contains("own__pid") && of_b.body.contains("notListed"), "{of_b:?}");
    assert_eq!(gateway.fake("own").pids().len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn the_list_of_all_servers_starts_no_process_of_a_session() {
    let settings = "sharing = \"session\"";
    let gateway = Setup::new().fake_with("own", &[], settings).start().await;
    let all = Session::open(&gateway, "/mcp").await;
    let fake = gateway.fake("own");
    for method in ["tools/list", "prompts/list"] {
        let list = all.result(method, json!({})).await;
        assert_eq!(list["_meta"]["trunkline/notListed"], json!(["own"]), "{list}");
    }
    assert!(fake.pids().is_empty());
    // Asked for by name, it starts; the tools of its process are known to other sessions.
    let one = Session::open(&gateway, "/mcp/own").await;
    assert!(one.result("tools/list", json!({})).await.to_string().contains("\"pid\""));
    let list = all.result("tools/list", json!({})).await;
    assert!(list.to_string().contains("own__pid") && list.get("_meta").is_none(), "{list}");
    assert_eq!(fake.pids().len(), 1);
    // A client without a session could not call them.
    let list = gateway.mcp("/mcp").ask("tools/list", json!({})).send().await.result();
    assert_eq!(list["tools"], json!([]), "{list}");
    assert_eq!(list["_meta"], json!({"trunkline/needsSession": ["own"]}), "{list}");
    gateway.stop().await;
}
