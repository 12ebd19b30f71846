//! The commands that show a running gateway: as an operator, as a tenant, and as somebody who is
//! refused.

use std::process::Output;

use serde_json::{Value, json};

use crate::support::{Setup, eventually, trunkline, trunkline_with};

/// Runs a command against a gateway; fails unless it succeeds.
async fn shown(url: &str, key: Option<&str>, args: &[&str]) -> String {
    let output = run(url, key, args).await;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail, and returns its sentence.
async fn refused(url: &str, key: Option<&str>, args: &[&str]) -> String {
    let output = run(url, key, args).await;
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap().trim_start_matches("error: ").trim_end().to_owned()
}

async fn run(url: &str, key: Option<&str>, args: &[&str]) -> Output {
    let env: Vec<_> = key.map(|key| ("TRUNKLINE_KEY", key)).into_iter().collect();
    trunkline_with(&Setup::new(), &[args, &["--url", url]].concat(), &env).await
}

async fn json(url: &str, key: Option<&str>, args: &[&str]) -> Value {
    serde_json::from_str(&shown(url, key, &[args, &["--json"]].concat()).await).unwrap()
}

fn rows(table: &str) -> Vec<Vec<String>> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    table.lines().map(words).collect()
}

/// Makes a key of administrators, in the setup's store.
async fn admin_key(setup: &Setup) -> String {
    let output = trunkline(setup, &["key", "create", "--admin"]).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn an_operator_sees_all_servers_their_failures_and_every_tenants_calls() {
    let setup = Setup::new().std().fake_with("failing", &["start=fail"], "");
    let gateway = setup.with_tenant("acme", "servers = [\"*\"]").start().await;
    let key = admin_key(gateway.setup()).await;
    let (url, key) = (gateway.url(""), Some(key.as_str()));

    let status = shown(&url, key, &["status"]).await;
    assert!(status.starts_with(&format!("{url}/: ready; 1 of 2 servers is down\n\n")), "{status}");
    let table = rows(&status);
    assert_eq!(table[2][..3], ["SERVER", "STATE", "SINCE"]);
    assert_eq!(table[3][0], "failing", "{status}");
    assert!(["backoff", "quarantined"].contains(&&*table[3][1]), "{status}");
    assert!(status.contains(" s ago: it ended with exit code 3\n"), "{status}");
    assert_eq!(table[4][..2], ["std", "ready"]);
    assert_eq!(table[4][4..], ["1/1", "0/64", "-"]);
    assert!(status.lines().all(|line| line.chars().count() <= 120), "{status}");

    let servers = shown(&url, key, &["servers"]).await;
    assert!(servers.contains("modern  2026-07-28  7 "), "{servers}");
    let one = shown(&url, key, &["servers", "failing"]).await;
    assert!(one.starts_with("failing: ") && one.contains("it ended with exit code 3\n"), "{one}");
    assert!(one.contains("\nstandard error of #0:\n  cannot find my bearings\n"), "{one}");
    let unknown = refused(&url, key, &["servers", "nosuch"]).await;
    assert_eq!(unknown, "there is no server `nosuch`; there are: failing, std");

    for (command, told) in [
        (&["tools", "nosuch"][..], "404 Not Found: there is no server `nosuch`"),
        (&["usage", "--tenant", "a b"], "400 Bad Request: `a b` is not a valid tenant id: "),
    ] {
        let refusal = refused(&url, key, command).await;
        let whole = format!("the gateway at {url}/ answers {told}");
        assert!(refusal.starts_with(&whole), "{refusal}");
    }

    let tools = shown(&url, key, &["tools", "std"]).await;
    assert_eq!(rows(&tools)[1][..2], ["std", "echo"], "{tools}");
    assert_eq!(json(&url, key, &["tools"]).await["servers"][0]["id"], "std");

    let acme = gateway.as_tenant("acme").await;
    let sleeping = acme.spawn_call("std", "sleep", json!({"ms": 60_000}));
    let calls = eventually("running", async || {
        let calls = shown(&url, key, &["calls"]).await;
        calls.contains(" running ").then_some(calls)
    });
    let calls = calls.await;
    assert_eq!(rows(&calls)[0], ["CALL", "TENANT", "SERVER", "STATE", "FOR"]);
    assert_eq!(rows(&calls)[1][1..4], ["acme", "std", "running"]);
    sleeping.abort();

    let audit = shown(&url, key, &["audit", "--limit", "2"]).await;
    assert_eq!(rows(&audit)[0], ["AT", "ACTOR", "ACTION", "TARGET", "DETAIL"]);
    assert!(audit.contains("  key.create  key:"), "{audit}");
    assert_eq!(rows(&audit).len(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn a_tenant_sees_its_own() {
    let setup = Setup::new().std().fake("fake").with_tenant("acme", "servers = [\"std\"]");
    let gateway = setup.without_anonymous().start().await;
    let key = gateway.new_key("acme").await;
    let (url, key) = (gateway.url(""), Some(key.as_str()));
    let acme = gateway.with_key(key.unwrap());
    assert_eq!(acme.call("std", "echo", json!({"text": "x"})).await.status, 200);

    let status = shown(&url, key, &["status"]).await;
    assert!(status.contains(": ready; no server is down\n"), "{status}");
    assert!(!status.contains("fake"), "{status}");
    assert_eq!(json(&url, key, &["status"]).await["readiness"], "ready");
    let tools = shown(&url, key, &["tools"]).await;
    assert!(rows(&tools).iter().skip(1).all(|row| row[0] == "std"), "{tools}");

    let prefer = acme.post("std", "echo", json!({"text": "kept"}));
    let kept = crate::support::Answer::of(prefer.header("Prefer", "respond-async")).await;
    assert_eq!(kept.status, 202);
    let calls = shown(&url, key, &["calls"]).await;
    assert_eq!(rows(&calls)[0], ["CALL", "SERVER", "TOOL", "STATE", "CREATED", "OUTCOME"]);
    assert_eq!(rows(&calls)[1][1..3], ["std", "echo"]);

    let usage = eventually("usage", async || {
        let usage = shown(&url, key, &["usage"]).await;
        usage.contains("echo").then_some(usage)
    });
    let usage = usage.await;
    assert_eq!(rows(&usage)[3][..3], ["acme", "std", "echo"], "{usage}");
    let minutes = shown(&url, key, &["usage", "--by", "minute"]).await;
    assert_eq!(rows(&minutes)[2][..2], ["MINUTE", "TENANT"], "{minutes}");
    gateway.stop().await;
}

#[tokio::test]
async fn whoever_is_refused_is_told_what_to_do() {
    let setup = Setup::new().std().with_tenant("acme", "servers = [\"*\"]").without_anonymous();
    let gateway = setup.set("ops_listen = \"127.0.0.1:0\"").start().await;
    let url = gateway.url("");
    let operators = format!("http://{}", gateway.ops_addr.unwrap());
    let (tenant, admin) = (gateway.new_key("acme").await, admin_key(gateway.setup()).await);
    let (tenant, admin) = (Some(tenant.as_str()), Some(admin.as_str()));

    assert!(shown(&operators, admin, &["status"]).await.contains("no server is down"));
    for (url, key, args, told) in [
        (
            &url,
            None,
            &["status"][..],
            format!(
                "the gateway at {url}/ needs a key: set TRUNKLINE_KEY, or give --key KEY; \
                 `trunkline key create TENANT` makes one"
            ),
        ),
        (
            &url,
            Some("tl_wrong"),
            &["servers"],
            format!(
                "the gateway at {url}/ refuses the key: the key or token is not valid; \
                 `trunkline key list TENANT` shows the valid ones"
            ),
        ),
        (
            &url,
            admin,
            &["status"],
            format!(
                "{url}/ serves callers only, and the key is an administrator's: --url must be the \
                 operators' address (`ops_listen`)"
            ),
        ),
        (
            &operators,
            tenant,
            &["status"],
            format!(
                "{operators}/ serves operators only, and the key is a tenant's: --url must be the \
                 callers' address (`listen`), or the key an administrator's"
            ),
        ),
        (
            &operators,
            None,
            &["tools"],
            format!(
                "{operators}/ serves operators only: give an administrator's key with --key or \
                 TRUNKLINE_KEY, or the callers' address (`listen`) with --url"
            ),
        ),
        (
            &operators,
            tenant,
            &["audit"],
            "this needs an administrator's key, and the key is a tenant's: `trunkline key create \
             --admin` makes one"
                .to_owned(),
        ),
        (
            &operators,
            None,
            &["audit"],
            "this needs an administrator's key: set TRUNKLINE_KEY, or give --key KEY; `trunkline \
             key create --admin` makes one"
                .to_owned(),
        ),
        (
            &url,
            admin,
            &["audit"],
            format!(
                "{url}/ serves callers only: --url must be the operators' address (`ops_listen`)"
            ),
        ),
    ] {
        assert_eq!(refused(url, key, args).await, told, "{args:?}");
    }
    gateway.stop().await;
    assert_eq!(
        refused(&url, None, &["status"]).await,
        format!(
            "no gateway answers at {url}/: Connection refused (os error 111); `trunkline serve` \
             starts one, --url names another"
        )
    );
}
