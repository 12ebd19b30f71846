//! Toolsets: selections of tools under names of their own.

use serde_json::{Value, json};

use crate::pins::names;
use crate::support::mcp_legacy::Session;
use crate::support::{Answer, Api, Setup, eventually, refused};

const RESEARCH: &str = r#"
[toolsets.research]
tools = ["std/hash", "fake/raw", "std/u*", "std/echo"]
[toolsets.research.override."std/hash"]
name = "digest"
description = "Computes a digest."
arguments = { algorithm = { fixed = "sha256" }, text = { description = "Any text" } }
result = { pointer = "/structuredContent/hex" }
[toolsets.research.override."std/echo"]
result = { max_bytes = "1KiB" }
"#;

fn setup() -> Setup {
    Setup::new()
        .without_anonymous()
        .std()
        .fake("fake")
        .with_tenant("agent", "servers = [\"toolset:research\"]")
        .with_tenant("other", "servers = [\"std\"]")
        .raw(RESEARCH)
}

fn call(api: &Api, tool: &str, arguments: impl ToString) -> reqwest::RequestBuilder {
    let url = api.url(&format!("/v1/toolsets/research/tools/{tool}"));
    api.client.post(url).body(arguments.to_string())
}

async fn called(api: &Api, tool: &str, arguments: impl ToString) -> Answer {
    Answer::of(call(api, tool, arguments)).await
}

/// The SHA-256 of `x`.
const OF_X: &str = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";

#[tokio::test]
async fn tools_are_listed_and_called_by_their_names_in_the_toolset() {
    let gateway = setup().start().await;
    let agent = gateway.as_tenant("agent").await;
    let toolsets = agent.get("/v1/toolsets").await.json();
    assert_eq!(toolsets["toolsets"][0]["id"], "research");
    let list = agent.get("/v1/toolsets/research/tools").await.json();
    assert_eq!(names(&list), ["digest", "fake__raw", "std__uuid", "std__echo"]);
    let digest = &list["tools"][0];
    assert_eq!(digest["description"], "Computes a digest.");
    assert_eq!(digest["inputSchema"]["required"], json!(["text"]));
    let properties = &digest["inputSchema"]["properties"];
    assert_eq!(properties, &json!({"text": {"type": "string", "description": "Any text"}}));
    assert!(digest.get("outputSchema").is_none() && digest.get("title").is_some(), "{digest}");
    // A tool that the toolset does not change is as its server defines it, but for the name.
    let own = gateway.as_tenant("other").await.tools("std").await.json();
    let uuid = own["tools"].as_array().unwrap().iter().find(|it| it["name"] == "uuid").unwrap();
    let mut listed = list["tools"][2].clone();
    listed["name"] = json!("uuid");
    assert_eq!(&listed, uuid);

    assert_eq!(called(&agent, "digest", r#"{"text":"x"}"#).await.tool_text(), OF_X);
    assert_eq!(called(&agent, "std__echo", r#"{"text":"hello"}"#).await.tool_text(), "hello");
    // Byte for byte.
    let odd = r#"{"a" : 1.50,"a":2}"#;
    assert_eq!(called(&agent, "fake__raw", odd).await.tool_text(), odd);
    gateway.stop().await;
}

#[tokio::test]
async fn a_grant_gives_the_toolset_s_tools_under_their_names_there_and_nothing_else() {
    let gateway = setup().start().await;
    let agent = gateway.as_tenant("agent").await;
    let absent = called(&agent, "std__nope", "").await;
    assert_eq!(absent.problem(), refused(404, "tool_not_found"));
    // Not selected, under another name there, of another server, without a server.
    for tool in ["std__fail", "std__hash", "other__nope", "hash", "nope"] {
        let hidden = called(&agent, tool, r#"{"text":"x","algorithm":"sha512"}"#).await;
        assert_eq!(hidden.text().replace(tool, "std__nope"), absent.text(), "{tool}");
    }
    assert_eq!(agent.call("std", "echo", r#"{"text":"x"}"#).await.status, 404);
    assert_eq!(agent.servers().await.json()["servers"], json!([]));
    assert_eq!(agent.mcp("/mcp").tool_names().await, [] as [&str; 0]);
    assert_eq!(agent.mcp("/mcp/std").ask("tools/list", json!({})).send().await.status, 404);

    let other = gateway.as_tenant("other").await;
    assert_eq!(other.get("/v1/toolsets").await.json(), json!({"toolsets": []}));
    let hidden = other.get("/v1/toolsets/research/tools").await;
    assert_eq!(hidden.problem(), refused(404, "toolset_not_found"));
    let gone = other.get("/v1/toolsets/gone/tools").await;
    assert_eq!(hidden.text().replace("research", "gone"), gone.text());
    for hidden in [
        called(&other, "digest", r#"{"text":"x"}"#).await,
        Answer::of(other.client.post(other.url("/mcp/t/research"))).await,
    ] {
        assert_eq!(hidden.problem(), refused(404, "toolset_not_found"));
    }
    gateway.stop().await;
}

#[tokio::test]
async fn no_caller_can_give_an_argument_that_the_toolset_sets() {
    let gateway = setup().start().await;
    let agent = gateway.as_tenant("agent").await;
    for arguments in [
        r#"{"text":"x","algorithm":"sha512"}"#,
        r#"{"text":"x","\u0061lgorithm":"sha512"}"#,
        r#"{"text":"x","Algorithm":"sha512"}"#,
        r#"{"text":"x","algorıthm":1,"algorithM":"sha512"}"#,
        r#"{"text":"x","text":"y"}"#,
    ] {
        let refusal = called(&agent, "digest", arguments).await;
        assert_eq!(refusal.problem(), refused(400, "invalid_arguments"), "{arguments}");
        assert!(!refusal.text().contains("sha512"), "{}", refusal.text());
    }
    let mcp = agent.mcp("/mcp/t/research");
    let error = mcp.call("digest", json!({"text": "x", "algorithm": "a"})).send().await.error();
    assert_eq!(error["data"]["code"], "invalid_arguments");
    gateway.stop().await;
}

#[tokio::test]
async fn clients_of_both_eras_use_it_at_both_addresses() {
    let gateway = setup().start().await;
    let agent = gateway.as_tenant("agent").await;
    for path in ["/mcp/t/research", "/toolsets/research/mcp"] {
        let mcp = agent.mcp(path);
        assert_eq!(mcp.tool_names().await, ["digest", "fake__raw", "std__uuid", "std__echo"]);
        let said = mcp.call("digest", json!({"text": "x"})).send().await;
        assert_eq!(said.tool_text(), OF_X);
        assert_eq!(said.result()["resultType"], "complete");
        let session = Session::open(&agent, path).await;
        assert_eq!(session.tool_text("digest", json!({"text": "x"})).await, OF_X);
        for (method, params, code) in [
            ("prompts/list", json!({}), -32601),
            // Some tools have pages.
            ("resources/read", json!({"uri": "trunkline:fake/mem:///a"}), -32602),
            ("prompts/get", json!({"name": "fake__greet"}), -32601),
        ] {
            let error = session.error(method, params.clone()).await;
            assert_eq!(error["code"], code, "{method}: {error}");
            assert_eq!(mcp.ask(method, params).send().await.error()["code"], code);
        }
        let hidden = mcp.call("std__hash", json!({})).send().await.error();
        assert_eq!(hidden["data"]["code"], "tool_not_found");
    }
    // A session belongs to one endpoint.
    let session = Session::open(&agent, "/mcp/t/research").await;
    assert_eq!(session.at(&agent, "/mcp").ask("tools/list", json!({})).await.status, 404);
    gateway.stop().await;
}

#[tokio::test]
async fn a_result_that_is_cut_says_so_and_a_kept_one_can_be_fetched_whole() {
    let gateway = setup().start().await;
    let agent = gateway.as_tenant("agent").await;
    let long = json!({"text": "é".repeat(4000)});
    let cut = called(&agent, "std__echo", &long).await.json();
    assert_eq!(cut["content"][0]["text"], "é".repeat(512));
    let notice = cut["content"][1]["text"].as_str().unwrap();
    assert!(notice.contains("`max_bytes`") && !notice.contains("/v1/calls"), "{notice}");
    assert_eq!(cut["_meta"]["trunkline/cut"]["max_bytes"], 1024);
    let said = agent.mcp("/mcp/t/research").call("std__echo", long.clone()).send().await.result();
    assert_eq!(said["content"], cut["content"]);

    let keyed = || call(&agent, "std__echo", &long).header("Idempotency-Key", "k");
    let first = Answer::of(keyed()).await;
    let again = Answer::of(keyed()).await;
    assert_eq!((first.text(), again.header("trunkline-replayed")), (again.text(), "true"));
    let id = first.header("trunkline-call-id").to_owned();
    assert_eq!(first.json()["_meta"]["trunkline/cut"]["call"], json!(id));
    let whole = agent.get(&format!("/v1/calls/{id}/result")).await.json();
    assert_eq!(whole["content"][0]["text"], long["text"]);
    // A short result is not touched.
    let short = called(&agent, "std__echo", r#"{"text":"x"}"#).await.json();
    assert!(short["_meta"].get("trunkline/cut").is_none(), "{short}");
    gateway.stop().await;
}

#[tokio::test]
async fn asynchronous_and_keyed_calls_are_those_of_the_server_s_own_tool() {
    let gateway = setup().start().await;
    let agent = gateway.as_tenant("agent").await;
    let later = call(&agent, "digest", r#"{"text":"x"}"#).header("Prefer", "respond-async");
    let accepted = Answer::of(later).await;
    assert_eq!(accepted.status, 202, "{accepted:?}");
    let id = accepted.json()["id"].as_str().unwrap().to_owned();
    let result = agent.get(&format!("/v1/calls/{id}/result?wait=10")).await.json();
    assert_eq!(result["structuredContent"]["hex"], OF_X);
    let kept = agent.get(&format!("/v1/calls/{id}")).await.json();
    assert_eq!((&kept["server"], &kept["tool"]), (&json!("std"), &json!("hash")));
    // By a name that only the list of several servers has.
    let keyed = call(&agent, "fake__raw", "{}").header("Idempotency-Key", "k");
    let id = Answer::of(keyed).await.header("trunkline-call-id").to_owned();
    let kept = agent.get(&format!("/v1/calls/{id}")).await.json();
    assert_eq!((&kept["server"], &kept["tool"]), (&json!("fake"), &json!("raw")));
    let refusal = call(&agent, "std__fail", "{}").header("Idempotency-Key", "k");
    assert_eq!(Answer::of(refusal).await.problem(), refused(404, "tool_not_found"));
    gateway.stop().await;
}

#[tokio::test]
async fn limits_and_usage_go_by_the_server_s_own_names() {
    let policy = "servers = [\"toolset:research\"]\nlimits.\"std/hash\" = { rate = \"1/h\" }";
    let gateway = setup().without_tenants().with_tenant("agent", policy).start().await;
    let agent = gateway.as_tenant("agent").await;
    assert_eq!(called(&agent, "digest", r#"{"text":"x"}"#).await.status, 200);
    let refusal = called(&agent, "digest", r#"{"text":"x"}"#).await;
    assert_eq!(refusal.problem(), refused(429, "rate_limited").for_now());
    assert!(refusal.detail().contains("`std/hash`"), "{}", refusal.detail());
    let usage = eventually("counted", async || {
        let usage = agent.get("/v1/usage").await.json()["usage"].clone();
        usage.as_array().is_some_and(|rows| !rows.is_empty()).then_some(usage)
    });
    let usage = usage.await;
    assert_eq!((&usage[0]["server"], &usage[0]["tool"]), (&json!("std"), &json!("hash")));
    gateway.stop().await;
}

#[tokio::test]
async fn a_reload_changes_it_and_listeners_are_told() {
    let gateway = setup().start().await;
    let agent = gateway.as_tenant("agent").await;
    let mcp = agent.mcp("/mcp/t/research");
    let (mut modern, honoured) = mcp.listen("1", json!({"toolsListChanged": true})).await;
    assert_eq!(honoured["notifications"], json!({"toolsListChanged": true}));
    let session = Session::open(&agent, "/mcp/t/research").await;
    let mut legacy = session.listen().await;
    let without = || gateway.setup().clone().without_raw();
    let changed = |from: &str, to: &str| without().raw(&RESEARCH.replace(from, to));

    assert!(gateway.apply(&changed("\"digest\"", "\"checksum\"")).await);
    eventually("renamed", async || {
        assert_eq!(modern.next().await["method"], crate::pins::TOOLS_CHANGED);
        (mcp.tool_names().await[0] == "checksum").then_some(())
    })
    .await;
    eventually("heard", async || {
        (legacy.method().await == crate::pins::TOOLS_CHANGED).then_some(())
    })
    .await;
    assert_eq!(called(&agent, "digest", r#"{"text":"x"}"#).await.status, 404);
    // A mistake changes nothing, and names both tools.
    let clash = changed("name = \"digest\"", "name = \"std__echo\"");
    assert!(!gateway.apply(&clash).await);
    assert_eq!(called(&agent, "checksum", r#"{"text":"x"}"#).await.status, 200);

    assert!(gateway.apply(&without()).await);
    assert_eq!(called(&agent, "checksum", r#"{"text":"x"}"#).await.status, 404);
    while modern.next_or_end().await.is_some() {}
    gateway.stop().await;
}

#[tokio::test]
async fn a_large_one_can_be_searched_instead_of_listed() {
    let searched =
        RESEARCH.replace("[toolsets.research]\n", "[toolsets.research]\nsearch = true\n");
    let gateway = setup().without_raw().raw(&searched).start().await;
    let agent = gateway.as_tenant("agent").await;
    let mcp = agent.mcp("/mcp/t/research");
    assert_eq!(mcp.tool_names().await, ["search_tools", "call_tool"]);
    let session = Session::open(&agent, "/mcp/t/research").await;
    for query in ["digest", "Compute a DIGEST of text"] {
        let asked = json!({"query": query, "limit": 1});
        let found = mcp.call("search_tools", asked.clone()).send().await.tool_text();
        assert_eq!(session.tool_text("search_tools", asked).await, found);
        let found: Value = serde_json::from_str(&found).unwrap();
        assert_eq!(found.as_array().unwrap().len(), 1);
        assert_eq!(found[0]["name"], "digest");
        assert!(found[0]["inputSchema"]["properties"].get("algorithm").is_none(), "{found}");
    }
    let wrapped = |name: &str, arguments: Value| json!({"name": name, "arguments": arguments});
    let said = mcp.call("call_tool", wrapped("digest", json!({"text": "x"}))).send().await;
    assert_eq!(said.tool_text(), OF_X);
    let text = session.tool_text("call_tool", wrapped("std__echo", json!({"text": "hi"}))).await;
    assert_eq!(text, "hi");
    for (name, code) in [("std__hash", "tool_not_found"), ("call_tool", "tool_not_found")] {
        let said = mcp.call("call_tool", wrapped(name, json!({}))).send().await;
        assert_eq!(said.error()["data"]["code"], code, "{name}");
    }
    let wrong = wrapped("digest", json!({"text": "x", "Algorithm": "sha512"}));
    let error = mcp.call("call_tool", wrong).send().await.error();
    assert_eq!(error["data"]["code"], "invalid_arguments");
    // Over REST they are listed, and called as ever.
    assert_eq!(names(&agent.get("/v1/toolsets/research/tools").await.json()).len(), 4);
    assert_eq!(called(&agent, "digest", r#"{"text":"x"}"#).await.tool_text(), OF_X);
    gateway.stop().await;
}

#[tokio::test]
async fn an_override_hides_no_change_of_a_pinned_tool() {
    let setup = crate::pins::setup(&[]).raw(
        "[toolsets.safe]\ntools = [\"fake/query\"]\n[toolsets.safe.override.\"fake/query\"]\n\
         description = \"Ours.\"\nname = \"ask\"\n",
    );
    let gateway = setup.start().await;
    let list = || async { names(&gateway.get("/v1/toolsets/safe/tools").await.json()) };
    assert_eq!(list().await, ["ask"]);
    crate::pins::change(&gateway, &gateway.fake("fake"), &crate::pins::other_query()).await;
    eventually("held", async || list().await.is_empty().then_some(())).await;
    let url = gateway.url("/v1/toolsets/safe/tools/ask");
    let held = Answer::of(gateway.client.post(url)).await;
    assert_eq!(held.problem(), refused(409, "tool_held"));
    gateway.stop().await;
}

#[tokio::test]
async fn it_is_shown_where_tools_are() {
    let gateway = setup().start().await;
    let agent = gateway.as_tenant("agent").await;
    let document = agent.get("/openapi.json").await.json();
    let path = &document["paths"]["/v1/toolsets/research/tools/digest"]["post"];
    assert_eq!(path["description"], "Computes a digest.", "{path}");
    let admin = crate::pins::admin(&gateway).await;
    let list = admin.get("/admin/v1/toolsets/research/tools").await.json();
    assert_eq!(names(&list)[0], "digest");
    gateway.stop().await;
}
