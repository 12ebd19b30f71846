//! The commands.

use std::process::{Output, Stdio};

use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::support::{Setup, TRUNKLINE, in_time, trunkline};

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test]
async fn check_shows_a_table_of_servers_that_start() {
    let setup = Setup::new().std().fake("fake");
    setup.write();
    let output = trunkline(&setup, &["check"]).await;
    let table = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{table}{}", stderr(&output));
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["SERVER", "STATUS", "PROTOCOL", "ERA", "TOOLS", "START", "NAME"]);
    let row = |server: &str| rows.iter().find(|row| row.first() == Some(&server)).unwrap();
    assert_eq!(row("fake")[..4], ["fake", "ok", "2025-11-25", "legacy"]);
    assert_eq!(row("std")[..5], ["std", "ok", "2026-07-28", "modern", "7"]);
    assert!(table.contains("\nstd: echo, sleep, time, hash, uuid, json_query, fail\n"), "{table}");
}

#[tokio::test]
async fn check_tells_which_servers_look_serial() {
    let setup = Setup::new().std().fake("fake");
    setup.write();
    let calls = ["std/sleep {\"ms\":600}", "fake/serial {\"ms\":300}"];
    let args: Vec<&str> = calls.into_iter().flat_map(|call| ["--call", call]).collect();
    let output = trunkline(&setup, &[&["check"], &*args].concat()).await;
    let table = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{table}{}", stderr(&output));
    assert!(table.contains("\nfake looks serial: beside 4 calls of `serial` a ping"), "{table}");
    assert!(table.contains("\nstd does not look serial: "), "{table}");
    let output = trunkline(&setup, &["check", "--call", "absent/x"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("`absent`, which is not configured"), "{}", stderr(&output));
}

#[tokio::test]
async fn check_fails_when_one_server_does_and_says_why() {
    let setup = Setup::new().std().fake_with("failing", &["start=fail"], "").server(
        "missing",
        "no-such-program",
        &[],
        "",
    );
    setup.write();
    let output = trunkline(&setup, &["check"]).await;
    let table = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{table}");
    for line in [
        "failing did not start: it ended with exit code 3\n  stderr: cannot find my bearings\n",
        "missing did not start: the program `no-such-program` was not found on the PATH ",
        "std: echo,",
    ] {
        assert!(table.contains(line), "{line} is missing from\n{table}");
    }
}

#[tokio::test]
async fn check_reads_the_file_of_an_mcp_client() {
    let setup = Setup::new();
    let servers = json!({"mcpServers": {"mine": {"command": "trunkline", "args": ["std"]}}});
    std::fs::write(setup.dir.path().join("client.json"), servers.to_string()).unwrap();
    let output = trunkline(&setup, &["check", "--mcp-config", "client.json"]).await;
    let table = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{table}{}", stderr(&output));
    assert!(table.contains("\nmine: echo, "), "{table}");
}

#[tokio::test]
async fn the_exit_code_of_a_call_tells_its_outcome() {
    let gateway = Setup::new().std().start().await;
    let setup = Setup::new();
    let url = gateway.url("");
    let call = async |args: &[&str]| {
        let mut all = vec!["call", "--url", &url];
        all.extend(args);
        trunkline(&setup, &all).await
    };

    let output = call(&["std", "echo", r#"{"text":"hello"}"#]).await;
    assert_eq!(output.status.code(), Some(0));
    let result: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(result["content"][0]["text"], "hello");
    assert_eq!(call(&["std", "uuid"]).await.status.code(), Some(0));

    let output = call(&["std", "fail", r#"{"message":"no luck"}"#]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("no luck"));

    let output = call(&["std", "no_such_tool"]).await;
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(3), ""));
    assert!(stderr(&output).contains("\"code\":\"tool_not_found\""), "{}", stderr(&output));
    gateway.stop().await;

    // Nobody is there any more.
    let output = call(&["std", "uuid"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no gateway answers at"), "{}", stderr(&output));
}

#[tokio::test]
async fn a_mistake_in_the_configuration_is_shown_with_file_and_line() {
    let setup = Setup::new().set("header_timeout = \"soon\"");
    setup.write();
    for command in ["serve", "check"] {
        let output = trunkline(&setup, &[command]).await;
        assert_eq!(output.status.code(), Some(2));
        let error = stderr(&output);
        assert!(error.contains("trunkline.toml:2: `header_timeout`"), "{error}");
    }
    let output = trunkline(&setup, &["serve", "--config", "absent.toml"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot read absent.toml"), "{}", stderr(&output));
}

#[tokio::test]
async fn without_being_told_to_callers_without_a_key_are_served_on_this_machine_only() {
    let setup = Setup::new();
    let output = trunkline(&setup, &["serve", "--listen", "0.0.0.0:0"]).await;
    assert_eq!(output.status.code(), Some(2));
    let error = stderr(&output);
    assert!(error.contains("refusing to serve callers without a key on 0.0.0.0:0"), "{error}");
    assert!(error.contains("anonymous_tenant = \"local\""), "{error}");
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let gateway = Setup::new().start().await;
    let output = trunkline(&Setup::new(), &["serve", "--listen", &gateway.addr.to_string()]).await;
    assert_eq!(output.status.code(), Some(2));
    let error = stderr(&output);
    assert!(error.contains(&format!("cannot listen on {}", gateway.addr)), "{error}");
    gateway.stop().await;
}

#[tokio::test]
async fn check_shows_a_server_as_soon_as_it_has_ended() {
    let setup = Setup::new().std().fake_with("mute", &["start=mute"], "start_timeout = \"24h\"");
    setup.write();
    let mut check = Command::new(TRUNKLINE);
    check.current_dir(setup.dir.path()).args(["check"]).stdout(Stdio::piped()).kill_on_drop(true);
    let mut check = check.spawn().unwrap();
    let mut lines = BufReader::new(check.stdout.take().unwrap()).lines();
    let shown = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.starts_with("std ") {
                return line;
            }
        }
        panic!("it has ended without a word about `std`");
    };
    assert!(in_time("shown", shown).await.contains(" ok "));
    // The other server goes on starting.
    assert!(check.try_wait().unwrap().is_none());
}

#[tokio::test]
async fn shells_and_man_get_their_files() {
    let setup = Setup::new();
    for (shell, word) in
        [("bash", "_trunkline()"), ("zsh", "#compdef trunkline"), ("fish", "complete -c trunkline")]
    {
        let script = stdout(&trunkline(&setup, &["completions", shell]).await);
        assert!(script.contains(word) && script.contains("status"), "{shell}: {script}");
    }
    let output = trunkline(&setup, &["man", "pages"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = |name: &str| std::fs::read_to_string(setup.dir.path().join("pages").join(name));
    assert!(page("trunkline.1").unwrap().contains(".TH trunkline 1"));
    assert!(page("trunkline-tenant-add.1").is_ok());
}

#[tokio::test]
async fn the_start_ends_with_a_line_about_servers_and_addresses() {
    let setup = Setup::new().std().fake_with("failing", &["start=fail"], "");
    let gateway = setup.set("ops_listen = \"127.0.0.1:0\"").serve().await;
    let (url, ops) = (format!("http://{}", gateway.addr), gateway.operators().await);
    gateway
        .logged(&format!(
            "ready: 1 of 2 servers (not `failing`: it ended with exit code 3); REST at {url}/v1, \
             MCP at {url}/mcp, live page at http://{ops}/dashboard#link="
        ))
        .await;
}
