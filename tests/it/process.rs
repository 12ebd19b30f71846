//! Servers as processes: what they are given, and how they are ended.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::Instant;
use trunkline::backend::stdio::sandbox::Profile;

use crate::support::{
    Gateway, Setup, TRUNKLINE, environment_of, eventually, failed, in_time, is_alive, refused,
};

async fn spawn_others(gateway: &Gateway) -> Vec<i32> {
    let pids = gateway.call("fake", "spawn", "{}").await.tool_text();
    serde_json::from_str(&pids).unwrap()
}

#[tokio::test]
async fn a_server_sees_only_a_few_variables_and_those_configured() {
    let gateway = Setup::new().fake_with("fake", &[], "env.CONFIGURED = \"a value\"").start().await;
    let environment = environment_of(gateway.fake("fake").pids()[0]);
    let inherited = ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR"];
    for variable in &environment {
        let (name, _) = variable.split_once('=').unwrap();
        let known = inherited.contains(&name) || ["CONFIGURED", "TEST_MARK"].contains(&name);
        assert!(known, "`{name}` reached the server");
    }
    assert!(environment.contains(&"CONFIGURED=a value".to_owned()));
    assert!(environment.iter().any(|variable| variable.starts_with("PATH=")));
    // The tests themselves run with more than that.
    assert!(std::env::vars_os().any(|(name, _)| !inherited.iter().any(|known| name == *known)));
    gateway.stop().await;
}

#[tokio::test]
async fn no_signal_is_held_back_from_a_server() {
    let gateway = Setup::new().fake("fake").start().await;
    let pid = gateway.fake("fake").pids()[0];
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let held_back = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    assert_eq!(held_back.trim(), "0000000000000000");
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_does_not_want_to_end_is_killed_with_all_it_started() {
    let gateway = Setup::new().fake_with("fake", &["stubborn=yes"], "").start().await;
    let others = spawn_others(&gateway).await;
    let server = gateway.fake("fake").pids()[0];
    assert!(is_alive(server) && others.iter().all(|pid| is_alive(*pid)));
    // Fails if anything is left.
    gateway.stop().await;
    assert!(!is_alive(server) && !others.iter().any(|pid| is_alive(*pid)));
}

#[tokio::test]
async fn what_a_server_leaves_behind_goes_with_it() {
    let gateway = Setup::new().fake("fake").start().await;
    let others = spawn_others(&gateway).await;
    gateway.call("fake", "exit", "{}").await.problem();
    eventually("gone", async || (!others.iter().any(|pid| is_alive(*pid))).then_some(())).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_ends_when_its_input_ends_is_not_waited_for() {
    let gateway = Setup::new().std().fake("fake").start().await;
    let began = Instant::now();
    gateway.stop().await;
    // A server that does not end by itself gets TERM after two seconds.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_flood_on_standard_error_holds_up_nothing() {
    let gateway = Setup::new().fake("fake").start().await;
    let answer = gateway.call("fake", "stderr", json!({"kib": 50 * 1024})).await;
    assert_eq!(answer.tool_text(), "written");
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_does_not_read_holds_up_only_its_own_callers() {
    let gateway = Setup::new().fake("fake").std().start().await;
    let deaf = gateway.spawn_call("fake", "deaf", "{}");
    eventually("deaf", async || gateway.fake("fake").calls_of("deaf").pop()).await;
    // The first fills the pipe, the second stays behind it and was never written.
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(500_000));
    let first = gateway.call_within_ms(1000, "fake", "raw", &large).await;
    assert_eq!(first.problem(), failed(504, "deadline_exceeded"));
    let second = gateway.call_within_ms(1000, "fake", "raw", &large).await;
    assert_eq!(second.problem(), refused(504, "deadline_exceeded").for_now());
    assert_eq!(gateway.call("std", "echo", json!({"text": "x"})).await.tool_text(), "x");
    assert!(!deaf.is_finished());
    deaf.abort();
    gateway.stop().await;
}

/// Run directly, with this process in the place of the gateway.
fn guard(program: &str, args: &[&str]) -> Command {
    let mut guard = Command::new(TRUNKLINE);
    let profile = serde_json::to_string(&Profile::default()).unwrap();
    guard.args(["guard", &std::process::id().to_string(), &profile, "--", program]).args(args);
    guard
}

#[tokio::test]
async fn a_guard_that_had_to_kill_its_server_ends_too() {
    let mut guard = guard("sh", &["-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    guard.stdout.take().unwrap().read_exact(&mut ready).await.unwrap();
    let pid = Pid::from_raw(guard.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let status = in_time("ended", guard.wait()).await.unwrap();
    assert_eq!(status.code(), Some(128 + 9));
}

#[tokio::test]
async fn arguments_reach_the_server_whatever_they_look_like() {
    let setup = Setup::new();
    // Becomes the bundled server, if the arguments before it are all there.
    let script = setup.dir.path().join("odd");
    let text = "#!/bin/sh\n[ \"$1 $2 $3\" = '-h -- -x' ] || exit 7; shift 3; exec \"$@\"\n";
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let args = ["-h", "--", "-x", TRUNKLINE, "std"].map(str::to_owned);
    let gateway = setup.server("odd", script.to_str().unwrap(), &args, "").start().await;
    assert_eq!(gateway.call("odd", "echo", json!({"text": "x"})).await.tool_text(), "x");
    gateway.stop().await;
}

/// How long a process runs at a time where others wait, in nanoseconds, if the kernel tells.
fn turn_of(pid: i32) -> Option<String> {
    let about = std::fs::read_to_string(format!("/proc/{pid}/sched")).ok()?;
    let line = about.lines().find(|line| line.starts_with("se.slice"))?;
    Some(line.split_whitespace().last()?.to_owned())
}

#[tokio::test]
async fn the_gateway_and_its_servers_run_for_short_turns() {
    let gateway = Setup::new().fake("fake").serve().await;
    gateway.ready().await;
    if turn_of(std::process::id().cast_signed()).is_none() {
        eprintln!("this kernel does not tell");
        return;
    }
    for pid in [gateway.pid(), gateway.fake("fake").pids()[0]] {
        assert_eq!(turn_of(pid).as_deref(), Some("100000"));
    }
}
