//! All servers on one endpoint, `/mcp`.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::support::{Gateway, Setup};

async fn gateway() -> Gateway {
    Setup::new()
        .std()
        .talker("one", "legacy")
        .talker("two", "modern")
        .server("down", "/no/such/program", &[], "")
        .start()
        .await
}

#[tokio::test]
async fn every_tool_that_is_listed_can_be_called_by_that_name() {
    let gateway = gateway().await;
    let mcp = gateway.mcp("/mcp");
    let names = mcp.tool_names().await;
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{names:?}");
    for name in &names {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
        assert!(name.len() <= 64 && name.chars().all(is_plain), "{name}");
    }
    for server in ["one", "two"] {
        let own = gateway.mcp(&format!("/mcp/{server}")).tool_names().await;
        let prefix = format!("{server}__");
        let exposed: Vec<_> = names.iter().filter(|name| name.starts_with(&prefix)).collect();
        assert_eq!(exposed.len(), own.len());
        let strange = ["größe", "gr__e", "a b", &"x".repeat(100), "a/b.c-d", "__"];
        assert!(strange.iter().all(|name| own.iter().any(|own| own == name)), "{own:?}");
        // In the order of the server's own list.
        for (exposed, own) in exposed.into_iter().zip(own) {
            if gateway.fake(server).calls_of(&own).is_empty() && !STATEFUL.contains(&own.as_str()) {
                mcp.call(exposed, json!({})).send().await.answer();
                assert_eq!(gateway.fake(server).calls_of(&own).len(), 1, "{exposed} is not {own}");
            }
        }
    }
    assert_eq!(mcp.call("std__echo", json!({"text": "hello"})).send().await.tool_text(), "hello");
    gateway.stop().await;
}

/// Tools that do not answer when called without arguments, or not for long.
const STATEFUL: [&str; 5] = ["hold", "progress", "change", "touch", "exit"];

#[tokio::test]
async fn names_that_are_not_listed_are_not_there() {
    let gateway = gateway().await;
    let mcp = gateway.mcp("/mcp");
    for name in
        ["echo", "nobody__echo", "one__nothing", "one__größe", "__echo", "one__", "ONE__echo"]
    {
        let said = mcp.call(name, json!({})).send().await;
        assert_eq!(said.refusal(), (200, -32602), "{name}");
    }
    let said = mcp.call("one__nothing", json!({})).send().await;
    assert_eq!(said.error()["data"]["code"], "tool_not_found");
    for uri in ["mem:///a", "trunkline:nobody/mem:///a", "trunkline:one"] {
        let said = mcp.ask("resources/read", json!({"uri": uri})).send().await;
        assert_eq!(said.refusal(), (200, -32602), "{uri}");
    }
    for name in ["greet", "nobody__greet"] {
        let said = mcp.ask("prompts/get", json!({"name": name})).send().await;
        assert_eq!(said.refusal(), (200, -32602), "{name}");
    }
    let calls = ["one", "two"].map(|server| gateway.fake(server).received_of("tools/call").len());
    assert_eq!(calls, [0, 0]);
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_is_down_does_not_hide_the_others() {
    let gateway = gateway().await;
    let mcp = gateway.mcp("/mcp");
    for (method, member, key, of_one) in [
        ("tools/list", "tools", "name", "one__echo"),
        ("prompts/list", "prompts", "name", "one__greet"),
        ("resources/list", "resources", "uri", "trunkline:one/mem:///a"),
        (
            "resources/templates/list",
            "resourceTemplates",
            "uriTemplate",
            "trunkline:one/mem:///{x}",
        ),
    ] {
        let names = mcp.names(method, member, key).await;
        let of_two = of_one.replace("one", "two");
        assert!(
            [of_one, &of_two].iter().all(|it| names.iter().any(|name| name == it)),
            "{names:?}"
        );
        assert!(!names.iter().any(|name| name.contains("down")), "{names:?}");
    }
    let said = mcp.call("down__any", json!({})).send().await;
    assert_eq!(said.error()["data"]["code"], "server_unavailable");
    // The program will not be there the next time, either.
    assert_eq!(said.error()["data"]["retryable"], false);
    let result = mcp.ask("server/discover", json!({})).send().await.result();
    assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "trunkline");
    gateway.stop().await;
}

#[tokio::test]
async fn prompts_and_resources_of_all_servers_are_reached_by_their_listed_names() {
    let gateway = gateway().await;
    let mcp = gateway.mcp("/mcp");
    for server in ["one", "two"] {
        let fake = gateway.fake(server);
        for (listed, own) in [("greet", "greet"), ("a b", "a b")] {
            let params = json!({"name": format!("{server}__{listed}"), "arguments": {"x": "1"}});
            mcp.ask("prompts/get", params).send().await.result();
            let got = &fake.received_of("prompts/get").pop().unwrap()["params"];
            assert_eq!((&got["name"], &got["arguments"]), (&json!(own), &json!({"x": "1"})));
        }
        let names = mcp.names("resources/list", "resources", "uri").await;
        let prefix = format!("trunkline:{server}/");
        let uris: Vec<_> = names.iter().filter_map(|name| name.strip_prefix(&prefix)).collect();
        assert_eq!(uris, ["mem:///a", "odd uri/é"]);
        for uri in uris {
            let params = json!({"uri": format!("{prefix}{uri}")});
            mcp.ask("resources/read", params).send().await.result();
            assert_eq!(fake.received_of("resources/read").pop().unwrap()["params"]["uri"], uri);
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn what_is_to_be_completed_is_named_as_its_server_does() {
    let gateway = gateway().await;
    let mcp = gateway.mcp("/mcp");
    for server in ["one", "two"] {
        for (reference, own) in [
            (
                json!({"type": "ref/prompt", "name": format!("{server}__greet"), "title": "t"}),
                json!({"type": "ref/prompt", "name": "greet", "title": "t"}),
            ),
            (
                json!({"type": "ref/resource", "uri": format!("trunkline:{server}/mem:///{{x}}")}),
                json!({"type": "ref/resource", "uri": "mem:///{x}"}),
            ),
            // What counts is what the type says.
            (
                json!({"type": "ref/resource", "name": "other__x",
                    "uri": format!("trunkline:{server}/mem:///{{x}}")}),
                json!({"type": "ref/resource", "name": "other__x", "uri": "mem:///{x}"}),
            ),
        ] {
            let params = json!({"ref": reference, "argument": {"name": "x", "value": ""}});
            let said = mcp.ask("completion/complete", params).send().await;
            let seen: Value =
                serde_json::from_str(said.result()["completion"]["values"][0].as_str().unwrap())
                    .unwrap();
            assert_eq!(seen, own);
            let fake = gateway.fake(server);
            assert_eq!(
                fake.received_of("completion/complete").pop().unwrap()["params"]["ref"],
                own
            );
        }
    }
    for reference in [
        json!({"type": "ref/prompt", "name": "trunkline:one/greet"}),
        json!({"type": "ref/resource", "uri": "one__mem:///a"}),
        json!({"type": "ref/prompt", "name": "nobody__greet"}),
    ] {
        let params = json!({"ref": reference, "argument": {"name": "x", "value": ""}});
        let said = mcp.ask("completion/complete", params).send().await;
        assert_eq!(said.error()["code"], -32602, "{reference}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_is_down_is_named_in_lists() {
    let gateway = gateway().await;
    let down = async |method: &str| {
        let list = gateway.mcp("/mcp").ask(method, json!({})).send().await.result();
        list["_meta"]["trunkline/unavailable"].clone()
    };
    for method in ["tools/list", "prompts/list"] {
        let down = down(method).await;
        assert_eq!((&down[0]["id"], down.as_array().unwrap().len()), (&json!("down"), 1), "{down}");
        assert!(
            ["starting", "backoff", "quarantined"].contains(&down[0]["state"].as_str().unwrap())
        );
        assert!(down[0]["reason"].is_string() && down[0]["down_since"].is_string(), "{down}");
    }
    let all = gateway.servers().await.json();
    let shown = all["servers"].as_array().unwrap().iter().find(|server| server["id"] == "down");
    assert!(shown.is_some_and(|server| server["reason"].is_string()), "{all}");
    gateway.stop().await;
}
