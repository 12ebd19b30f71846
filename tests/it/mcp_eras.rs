//! Clients and servers of both eras, in all four combinations.

use reqwest::Response;
use serde_json::{Value, json};

use crate::support::mcp_modern::{CLIENT_CAPABILITIES, LOG_LEVEL, PROTOCOL_VERSION, VERSION};
use crate::support::{Gateway, Setup};

const ERAS: [&str; 2] = ["legacy", "modern"];

async fn gateway() -> Gateway {
    Setup::new().talker("legacy", "legacy").talker("modern", "modern").start().await
}

/// The requests for a server of each kind, and the member of the result that matters.
fn asks() -> [(&'static str, Value, &'static str); 4] {
    [
        ("tools/call", json!({"name": "echo", "arguments": {"a": 1}}), "content"),
        ("prompts/get", json!({"name": "greet", "arguments": {"who": "you"}}), "messages"),
        ("resources/read", json!({"uri": "mem:///a"}), "contents"),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who",
                "value": ""}}),
            "completion",
        ),
    ]
}

/// Speaks as legacy clients do, in a session of its own.
struct Legacy<'g> {
    gateway: &'g Gateway,
    path: String,
    session: String,
}

impl<'g> Legacy<'g> {
    async fn open(gateway: &'g Gateway, server: &str) -> Self {
        let path = format!("/mcp/{server}");
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"}});
        let mut legacy = Self { gateway, path, session: String::new() };
        let opened = legacy.post("initialize", params).await;
        opened.headers()["mcp-session-id"].to_str().unwrap().clone_into(&mut legacy.session);
        legacy
    }

    async fn post(&self, method: &str, params: Value) -> Response {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let request = self.gateway.client.post(self.gateway.url(&self.path));
        let request = request.header("content-type", "application/json");
        let request = request.header("accept", "application/json, text/event-stream");
        let request = request.header("mcp-session-id", &self.session);
        request.body(message.to_string()).send().await.unwrap()
    }

    async fn ask(&self, method: &str, params: Value) -> Value {
        serde_json::from_slice(&self.post(method, params).await.bytes().await.unwrap()).unwrap()
    }
}

#[tokio::test]
async fn modern_clients_get_complete_results_from_servers_of_both_eras() {
    let gateway = gateway().await;
    for era in ERAS {
        let mcp = gateway.mcp(&format!("/mcp/{era}"));
        for (method, params, member) in asks() {
            let result = mcp.ask(method, params).send().await.result();
            assert_eq!(result["resultType"], "complete", "{method} {era}");
            assert!(!result[member].is_null(), "{result}");
            let caching = (&result["ttlMs"], &result["cacheScope"]);
            match (method, era) {
                ("resources/read", "modern") => {
                    assert_eq!(caching, (&json!(1234), &json!("public")))
                }
                ("resources/read", _) => assert_eq!(caching, (&json!(0), &json!("private"))),
                _ => assert_eq!(caching, (&Value::Null, &Value::Null)),
            }
        }
        for (method, ttl) in [
            ("tools/list", 500),
            ("prompts/list", 7000),
            ("resources/list", 7000),
            ("resources/templates/list", 7000),
            ("server/discover", 0),
        ] {
            let result = mcp.ask(method, json!({})).send().await.result();
            assert_eq!(result["resultType"], "complete", "{method} {era}");
            let expected = match (method, era) {
                ("server/discover", _) | (_, "legacy") => (json!(0), json!("private")),
                _ => (json!(ttl), json!("public")),
            };
            let caching = (result["ttlMs"].clone(), result["cacheScope"].clone());
            assert_eq!(caching, expected, "{method} {era}");
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_modern_server_that_forgets_the_type_of_its_results_is_helped_out() {
    let gateway = Setup::new().talker_with("talker", "modern", &["bare=yes"], "").start().await;
    let mcp = gateway.mcp("/mcp/talker");
    for (method, params, member) in asks() {
        let result = mcp.ask(method, params).send().await.result();
        assert_eq!(result["resultType"], "complete", "{method}");
        assert!(!result[member].is_null(), "{result}");
        if method == "resources/read" {
            assert_eq!((&result["ttlMs"], &result["cacheScope"]), (&json!(0), &json!("private")));
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn legacy_clients_see_nothing_of_the_modern_era() {
    let gateway = gateway().await;
    for era in ERAS {
        let legacy = Legacy::open(&gateway, era).await;
        let lists = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"];
        for (method, params) in asks()
            .map(|(method, params, _)| (method, params))
            .into_iter()
            .chain(lists.map(|method| (method, json!({}))))
        {
            let answer = legacy.ask(method, params).await;
            let result = answer["result"].as_object().unwrap_or_else(|| panic!("{answer}"));
            for member in ["resultType", "ttlMs", "cacheScope"] {
                assert!(!result.contains_key(member), "{method} {era}: {answer}");
            }
        }
        let fake = gateway.fake(era);
        let meta = &fake.calls_of("echo")[0]["params"]["_meta"];
        match era {
            "legacy" => assert!(meta.is_null(), "{meta}"),
            // It cannot be asked for anything.
            _ => assert_eq!(meta[CLIENT_CAPABILITIES], json!({})),
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_resource_that_is_not_there_is_told_in_the_clients_era() {
    let gateway = gateway().await;
    for era in ERAS {
        let params = json!({"uri": "mem:///nothing"});
        let mcp = gateway.mcp(&format!("/mcp/{era}"));
        let said = mcp.ask("resources/read", params.clone()).send().await;
        assert_eq!(said.refusal(), (200, -32602));
        assert_eq!(said.error()["data"], params);
        assert_eq!(said.error()["message"], "no such resource");
        let uri = format!("trunkline:{era}/mem:///nothing");
        let said = gateway.mcp("/mcp").ask("resources/read", json!({"uri": uri})).send().await;
        assert_eq!(said.refusal(), (200, -32602));
        assert_eq!(said.error()["data"], json!({"uri": uri}));
        let legacy = Legacy::open(&gateway, era).await.ask("resources/read", params).await;
        assert_eq!(legacy["error"]["code"], -32002);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn errors_of_servers_pass_through_in_both_eras() {
    let gateway = gateway().await;
    for era in ERAS {
        let error = json!({"code": -31999, "message": "so", "data": {"why": [1.5]}});
        let mcp = gateway.mcp(&format!("/mcp/{era}"));
        let said = mcp.call("say", json!({"error": error})).send().await;
        assert_eq!((said.status, said.error()), (200, error));
        let failed = json!({"content": [], "isError": true});
        let said = mcp.call("say", json!({"result": failed})).send().await;
        assert_eq!(said.result()["isError"], true);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn what_a_client_says_of_itself_reaches_modern_servers_only() {
    let gateway = gateway().await;
    let can = json!({"elicitation": {"form": {}}, "x": 1.5});
    for era in ERAS {
        let mcp = gateway.mcp(&format!("/mcp/{era}"));
        for (method, params, _) in asks() {
            let ask = mcp.ask(method, params).meta(CLIENT_CAPABILITIES, can.clone());
            let ask = ask.meta("io.modelcontextprotocol/clientInfo", json!({"name": "secret"}));
            ask.meta(LOG_LEVEL, "notice").meta("own", 1).send().await.result();
            let meta =
                gateway.fake(era).received_of(method).pop().unwrap()["params"]["_meta"].clone();
            if era == "legacy" {
                assert_eq!(meta, json!({"own": 1}), "{method}");
                continue;
            }
            assert_eq!(meta[CLIENT_CAPABILITIES], can, "{method}");
            assert_eq!(meta[LOG_LEVEL], "notice");
            assert_eq!(meta[PROTOCOL_VERSION], VERSION);
            assert_eq!(meta["own"], 1);
            assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "trunkline");
            assert!(meta.get("progressToken").is_none());
        }
        // Without anything to say there is nothing to send.
        mcp.call("echo", json!({})).send().await.result();
        let meta = gateway.fake(era).calls_of("echo").pop().unwrap()["params"]["_meta"].clone();
        assert_eq!(meta.is_null(), era == "legacy", "{meta}");
        assert!(meta.get(LOG_LEVEL).is_none());
    }
    gateway.stop().await;
}

#[tokio::test]
async fn progress_tokens_are_the_gateways_at_the_server_and_the_clients_own_on_the_way_back() {
    let gateway = gateway().await;
    for era in ERAS {
        let mcp = gateway.mcp(&format!("/mcp/{era}"));
        for token in ["1", "\"1\"", "\"\\u00e9\"", "\"\"", "-7", "1.50", "12345678901234567890123"]
        {
            let ask = mcp.call("progress", json!({}));
            let params =
                r#"{"name":"progress","arguments":{"n":2},"_meta":{$meta,"progressToken":$t}}"#;
            let said = ask.raw_params(&params.replace("$t", token)).send().await;
            said.result();
            let call = gateway.fake(era).calls_of("progress").pop().unwrap();
            assert_eq!(call["params"]["_meta"]["progressToken"], call["id"]);
            assert!(call["id"].is_u64() && call["id"] != 1, "{call}");
            assert_eq!(said.before().len(), 2, "{said:?}");
            assert_eq!(
                said.body.matches(&format!("\"progressToken\":{token}")).count(),
                2,
                "{said:?}"
            );
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_introduces_itself_through_the_gateway() {
    let gateway = gateway().await;
    for era in ERAS {
        let mcp = gateway.mcp(&format!("/mcp/{era}"));
        let result = mcp.ask("server/discover", json!({})).send().await.result();
        assert_eq!(result["supportedVersions"], json!([VERSION]));
        assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "talker");
        let list = json!({"listChanged": true});
        assert_eq!(
            result["capabilities"],
            json!({"tools": list, "prompts": list, "completions": {}, "logging": {},
                "resources": {"listChanged": true, "subscribe": true}})
        );
    }
    gateway.stop().await;
}
