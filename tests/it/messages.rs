//! The exact sentences for typical mistakes: each says what is wrong, and what to write instead.

use std::process::Output;

use reqwest::Method;
use serde_json::json;

use crate::support::{Answer, Gateway, Setup, eventually, refused, trunkline, trunkline_reading};

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test]
async fn an_address_without_a_scheme() {
    let setup = Setup::new();
    for command in [&["call", "std", "uuid"][..], &["status"], &["tools"], &["healthcheck"]] {
        let output = trunkline(&setup, &[command, &["--url", "127.0.0.1:8080"]].concat()).await;
        let told = "`127.0.0.1:8080` has no scheme: write `http://127.0.0.1:8080`\n";
        assert!(!output.status.success());
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
}

#[tokio::test]
async fn arguments_as_people_write_them() {
    let gateway = Setup::new().std().start().await;
    let (setup, url) = (Setup::new(), gateway.url(""));
    let call = async |tool: &str, arguments: &[&str]| {
        let args = [&["call", "--url", &url, "std", tool][..], arguments].concat();
        trunkline_reading(&setup, &args, r#"{"text":"from stdin"}"#).await
    };
    std::fs::write(setup.dir.path().join("a.json"), r#"{"text":"from a file"}"#).unwrap();
    for (arguments, echoed) in [
        (&["text=hi"][..], "hi"),
        (&[r#"{"text":"json"}"#], "json"),
        (&["@a.json"], "from a file"),
        (&["-"], "from stdin"),
    ] {
        let output = call("echo", arguments).await;
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(result["content"][0]["text"], echoed);
    }
    let output = call("echo", &["hi"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        stderr(&output),
        "error: `hi` is no argument: write KEY=VALUE pairs, or one JSON object, @FILE, or - for \
         standard input\n"
    );

    let output = call("sleep", &["ms=20000", "--timeout", "50ms"]).await;
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("\"code\":\"deadline_exceeded\""), "{}", stderr(&output));
    gateway.stop().await;
}

#[tokio::test]
async fn a_body_that_is_no_json() {
    let gateway = Setup::new().std().start().await;
    let answer = gateway.call("std", "echo", "text=hi").await;
    assert_eq!(
        answer.detail(),
        "the body is not valid JSON: expected ident at line 1 column 2; send the tool's arguments \
         as an object, such as {\"text\": \"hello\"}"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_tool_that_is_asked_for_with_get() {
    let gateway = Setup::new().std().start().await;
    let answer = gateway.get("/v1/servers/std/tools/echo").await;
    assert_eq!((answer.status, answer.header("allow")), (405, "POST"));
    assert_eq!(
        answer.detail(),
        "`/v1/servers/std/tools/echo` does not accept GET: tools are called by POST, with the \
         arguments as the body"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_time_that_is_none() {
    let gateway = Setup::new().std().start().await;
    for (query, told) in [
        ("from=yesterday", "`from`: `yesterday` is not a time; write it as 2026-11-01T00:00:00Z"),
        ("to=2026-11-01", "`to`: `2026-11-01` is not a time; write it as 2026-11-01T00:00:00Z"),
        ("by=hour", "`by`: unknown variant `hour`, expected `minute` or `total`"),
    ] {
        let answer = gateway.get(&format!("/v1/usage?{query}")).await;
        assert_eq!((answer.status, answer.detail()), (400, told.to_owned()));
    }
    gateway.stop().await;
    let output = trunkline(&Setup::new(), &["usage", "--from", "yesterday"]).await;
    let told = "`yesterday` is not a time: write it as 2026-11-01T00:00:00Z\n";
    assert!(stderr(&output).contains(told), "{}", stderr(&output));
}

#[tokio::test]
async fn a_key_without_bearer() {
    let gateway = Setup::new().without_anonymous().with_tenant("acme", "").std().start().await;
    let send = "send `Authorization: Bearer KEY`";
    for (header, told) in [
        ("tl_key", format!("`Authorization` lacks the word `Bearer`: {send}")),
        ("Basic eDp5", format!("`Authorization: Basic` is not supported: {send}")),
        ("Bearer", format!("`Authorization: Bearer` has no key behind it: {send}")),
        ("Digest x=y", format!("`Authorization` has an unknown scheme: {send}")),
        ("Bearer tl_key", "the key or token is not valid".to_owned()),
    ] {
        for path in ["/v1/servers", "/admin/v1/servers", "/mcp"] {
            let answer = with_authorization(&gateway, path, header).await;
            assert_eq!(answer.status, 401, "{path}");
            let body = answer.text();
            assert!(body.contains(&told.replace('"', "\\\"")), "{path}: {body}");
        }
    }
    gateway.stop().await;
}

async fn with_authorization(gateway: &Gateway, path: &str, value: &str) -> Answer {
    let method = if path == "/mcp" { Method::POST } else { Method::GET };
    let request = gateway.client.request(method, gateway.url(path));
    Answer::of(request.header("authorization", value)).await
}

#[tokio::test]
async fn pins_of_a_server_that_has_none() {
    let setup = Setup::new().std().raw_server("held", "command = \"trunkline\"\npin = true");
    setup.write();
    let made = trunkline(&setup, &["tenant", "add", "acme", "--create"]).await;
    assert!(made.status.success());
    let list = async |server: &str| {
        let output = trunkline(&setup, &["pin", "list", server]).await;
        let last = stderr(&output).lines().last().unwrap_or_default().to_owned();
        (output.status.code(), last)
    };
    assert_eq!(
        list("nosuch").await,
        (Some(2), "error: there is no server `nosuch`; the configuration has `held`, `std`".into())
    );
    assert_eq!(
        list("std").await,
        (
            Some(2),
            "error: server `std` is not pinned: `pin = true` under `[servers.std]` pins it".into()
        )
    );
    assert_eq!(list("held").await.0, Some(0));
}

#[tokio::test]
async fn a_server_that_will_not_start_by_itself_is_not_to_be_tried_again() {
    let gateway = Setup::new().server("gone", "no-such-program", &[], "").start().await;
    let answer = gateway.call("gone", "x", "").await;
    assert_eq!(answer.problem(), refused(503, "server_unavailable"));
    assert_eq!(answer.retry_after(), None);
    assert_eq!(answer.detail(), "the server is not running: its program cannot be started");
    gateway.stop().await;
}

#[tokio::test]
async fn pages_of_operators_on_the_callers_port_and_the_other_way_round() {
    let setup = Setup::new().std().set("ops_listen = \"127.0.0.1:0\"");
    let serving = setup.serve().await;
    for path in ["/admin/v1/servers", "/metrics", "/dashboard"] {
        let answer = serving.get(path).await;
        assert_eq!(answer.status, 404);
        assert_eq!(
            answer.detail(),
            format!(
                "there is nothing at `{path}`; this address serves callers; that path is served \
                 at the address that `ops_listen` names"
            )
        );
    }
    let operators = serving.operators().await;
    let request = serving.client.get(format!("http://{operators}/v1/servers"));
    assert_eq!(
        Answer::of(request).await.detail(),
        "there is nothing at `/v1/servers`; this address serves operators: /dashboard, /admin/v1, \
         /metrics and /readyz; callers have that of `listen`"
    );
}

#[tokio::test]
async fn a_limit_is_told_with_its_value_and_the_time() {
    let policy = "servers = [\"*\"]\nrate = \"2/h\"\nlimits.\"std/uuid\".rate = \"1/h\"";
    let gateway = Setup::new().with_tenant("local", policy).std().start().await;
    assert_eq!(gateway.call("std", "uuid", "").await.status, 200);
    let told = async |tool: &str| {
        let answer = gateway.call("std", tool, "").await;
        assert_eq!(answer.status, 429);
        let (detail, ms) = (answer.detail(), answer.json()["retry_after_ms"].as_u64().unwrap());
        (detail.clone(), detail.ends_with(&format!(" is used up: try again in {ms} ms")))
    };
    let (detail, has_time) = told("uuid").await;
    assert!(detail.starts_with("your rate of 1/h for `std/uuid` is used up: "), "{detail}");
    assert!(has_time, "{detail}");
    // The refused call has cost one, too.
    let (detail, has_time) = told("time").await;
    assert!(detail.starts_with("your rate of 2/h is used up: ") && has_time, "{detail}");
    gateway.stop().await;
}

#[tokio::test]
async fn mcp_clients_are_told_by_the_names_that_they_used() {
    let policy = "servers = [\"std/echo\"]";
    let gateway = Setup::new().with_tenant("local", policy).std().start().await;
    let [all, one] = [("/mcp", "std__uuid"), ("/mcp/std", "uuid")];
    for (path, tool) in [all, one] {
        let said = gateway.mcp(path).call(tool, json!({})).send().await;
        let error = said.error();
        let told =
            format!("there is no tool `{tool}` here; tools/list lists those that you may call");
        assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!(told)));
    }
    gateway.stop().await;
}

#[tokio::test]
async fn the_changes_that_a_file_makes_to_tenants_are_audited() {
    let setup = Setup::new().std().with_tenant("old", "servers = [\"*\"]");
    let gateway = setup.clone().start().await;
    let with = |policy: &str| setup.clone().without_tenants().with_tenant("old", policy);
    assert!(gateway.apply(&with("servers = [\"std\"]\nrate = \"5/s\"")).await);
    let next = with("servers = [\"std\"]\nrate = \"5/s\"").with_tenant("new", "servers = [\"*\"]");
    assert!(gateway.apply(&next).await);
    let store = setup.store().await;
    let mut entries = eventually("both entries", async || {
        let entries = store.audit(100, None).await.unwrap();
        let of_file = entries.into_iter().filter(|it| it.detail["source"] == "file");
        let of_file: Vec<_> =
            of_file.map(|it| (it.actor, it.action, it.target, it.detail["rate"].clone())).collect();
        (of_file.len() >= 2).then_some(of_file)
    })
    .await;
    let entry = |action: &str, target: &str, rate: serde_json::Value| {
        ("gateway".to_owned(), action.to_owned(), format!("tenant:{target}"), rate)
    };
    // The store may hear of both changes at once.
    entries.sort_by(|a, b| a.1.cmp(&b.1));
    assert_eq!(
        entries,
        [entry("tenant.add", "new", json!(null)), entry("tenant.set", "old", json!("5/s"))]
    );
    gateway.stop().await;
}
