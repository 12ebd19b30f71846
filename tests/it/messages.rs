//! The exact sentences for typical mistakes: each says what is wrong, and what to write instead.

use std::process::Output;

use reqwest::Method;

use crate::support::{Answer, Gateway, Setup, trunkline, trunkline_reading};

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
