//! Lists are charged to a rate of their own, and before anything of a request is taken apart.

use serde_json::json;

use crate::support::mcp_legacy::Session;
use crate::support::{Gateway, Setup, refused};

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
    assert!(error["message"].as_str().unwrap().contains("`tenant lists`"), "{error}");
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
