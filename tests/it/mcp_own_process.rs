//! `sharing = "session"`: each session has a process of its own, for as long as it lasts.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::mcp_legacy::{Session, initialize, messages, post, request, result_of};
use crate::support::mcp_modern::without_link;
use crate::support::{Answer, Gateway, HttpServer, Setup, eventually, is_alive, kill, refused};

async fn start(settings: &str) -> Gateway {
    let settings = format!("sharing = \"session\"\n{settings}");
    Setup::new().fake_with("own", &[], &settings).start().await
}

async fn pid(session: &Session, tool: &str) -> i32 {
    session.tool_text(tool, json!({})).await.parse().unwrap()
}

async fn gone(pid: i32) {
    eventually("gone", async || (!is_alive(pid)).then_some(())).await;
}

/// The session is no more, as its process is not. To ask before that would be to use it.
async fn ended(session: &Session, pid: i32) {
    gone(pid).await;
    assert_eq!(session.ask("ping", json!({})).await.status, 404);
}

#[tokio::test]
async fn each_session_has_one_process_and_keeps_it() {
    let gateway = start("").await;
    assert!(gateway.fake("own").pids().is_empty(), "none without a session");
    let one = Session::open(&gateway, "/mcp/own").await;
    let two = Session::open(&gateway, "/mcp/own").await;
    let all = Session::open(&gateway, "/mcp").await;
    let pids = [pid(&one, "pid").await, pid(&two, "pid").await, pid(&all, "own__pid").await];
    assert_eq!([pid(&one, "pid").await, pid(&two, "pid").await], pids[..2]);
    assert_eq!(pid(&all, "own__pid").await, pids[2]);
    assert_eq!(gateway.fake("own").pids(), pids);
    assert!(pids[0] != pids[1] && pids[1] != pids[2]);
    gateway.stop().await;
    assert!(!pids.into_iter().any(is_alive));
}

#[tokio::test]
async fn many_requests_at_once_start_one_process() {
    let gateway = start("").await;
    let session = Session::open(&gateway, "/mcp").await;
    let calls: Vec<_> =
        (0..8).map(|n| tokio::spawn(Answer::of(session.call(n, "own__pid", json!({}))))).collect();
    for call in calls {
        result_of(&call.await.unwrap());
    }
    assert_eq!(gateway.fake("own").pids().len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn deleting_a_session_stops_its_process_and_no_other() {
    let gateway = start("").await;
    let (one, two) =
        (Session::open(&gateway, "/mcp/own").await, Session::open(&gateway, "/mcp/own").await);
    let (of_one, of_two) = (pid(&one, "pid").await, pid(&two, "pid").await);
    assert_eq!(one.delete().await.status, 204);
    gone(of_one).await;
    assert_eq!(pid(&two, "pid").await, of_two);
    gateway.stop().await;
}

#[tokio::test]
async fn a_greeting_whose_client_went_away_leaves_no_process() {
    let settings = "sharing = \"session\"\nmax_sessions = 1";
    let gateway = Setup::new().fake_with("own", &["start=slow"], settings).start().await;
    let greeting = post(&gateway, "/mcp/own", initialize("2025-11-25", &json!({})));
    let greeting = tokio::spawn(greeting.send());
    let fake = gateway.fake("own");
    let pid = eventually("started", async || fake.pids().pop()).await;
    greeting.abort();
    gone(pid).await;
    // Its place is free.
    eventually("opened", async || {
        let opened = Session::try_open(&gateway, "/mcp/own", json!({})).await;
        opened.json()["result"].is_object().then_some(())
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn there_are_at_most_max_sessions() {
    let gateway = start("max_sessions = 3").await;
    let one = Session::open(&gateway, "/mcp/own").await;
    let all = Session::open(&gateway, "/mcp").await;
    pid(&all, "own__pid").await;
    // Whoever listens is not left.
    let _streams = [one.listen().await, all.listen().await];
    let third = Session::try_open(&gateway, "/mcp/own", json!({})).await;
    assert_eq!((third.status, third.header("mcp-session-id")), (200, ""));
    let error = &third.json()["error"];
    assert_eq!(error["code"], 429, "the third place is for another tenant");
    let limit = json!({"name": "sessions", "scope": "own", "value": 2, "used": 2});
    let data = json!({"code": "tenant_busy", "retryable": true, "executed": "no",
        "retryAfterMs": 1000, "limit": limit});
    assert_eq!(error["data"], data);
    let other = Session::open(&gateway, "/mcp").await;
    let error = other.error("tools/call", json!({"name": "own__pid"})).await;
    assert_eq!(without_link(&error["data"]), data);
    // Whoever has one goes on; whoever leaves makes room.
    pid(&one, "pid").await;
    assert_eq!(one.delete().await.status, 204);
    eventually("room", async || {
        let answer = Answer::of(other.call(1, "own__pid", json!({}))).await;
        messages(&answer)[0]["result"].is_object().then_some(())
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn the_session_that_was_left_for_longest_makes_room() {
    let gateway = start("max_sessions = 3").await;
    let (one, two) =
        (Session::open(&gateway, "/mcp/own").await, Session::open(&gateway, "/mcp/own").await);
    let (of_two, of_one) = (pid(&two, "pid").await, pid(&one, "pid").await);
    let three = Session::open(&gateway, "/mcp/own").await;
    let of_three = pid(&three, "pid").await;
    assert!(!is_alive(of_two), "three at once");
    assert_eq!(two.ask("ping", json!({})).await.status, 404);
    // One that has a call is not left, however long that takes.
    assert_eq!(pid(&one, "pid").await, of_one);
    let waiting = tokio::spawn(Answer::of(one.call(1, "hold", json!({}))));
    let fake = gateway.fake("own");
    eventually("held", async || fake.calls_of("hold").pop()).await;
    assert_eq!(pid(&three, "pid").await, of_three);
    let four = Session::open(&gateway, "/mcp/own").await;
    pid(&four, "pid").await;
    assert!(is_alive(of_one) && !is_alive(of_three));
    one.tool_text("release", json!({})).await;
    result_of(&waiting.await.unwrap());
    assert_eq!(three.ask("ping", json!({})).await.status, 404);
    gateway.stop().await;
}

#[tokio::test]
async fn a_session_that_is_left_ends_with_its_process() {
    let gateway = start("idle_timeout = \"1s\"").await;
    let (left, used) =
        (Session::open(&gateway, "/mcp/own").await, Session::open(&gateway, "/mcp").await);
    let (of_left, of_used) = (pid(&left, "pid").await, pid(&used, "own__pid").await);
    // Any request is use, whoever answers it.
    let mut n = 0;
    while is_alive(of_left) {
        for (method, params) in [("ping", json!({})), ("tools/list", json!({}))] {
            assert_eq!(used.ask(method, params).await.status, 200, "after {n} rounds");
        }
        n += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ended(&left, of_left).await;
    assert!(is_alive(of_used));
    assert_eq!(pid(&used, "own__pid").await, of_used);
    gateway.stop().await;
}

#[tokio::test]
async fn a_session_that_listens_or_waits_is_not_left() {
    let gateway = start("idle_timeout = \"500ms\"").await;
    let open = async || Session::open(&gateway, "/mcp").await;
    let (listens, waits, left) = (open().await, open().await, open().await);
    // A process that there is not cannot be left: the first two are busy when theirs start, however
    // long that takes.
    let stream = listens.listen().await;
    pid(&listens, "own__pid").await;
    let waiting = tokio::spawn(Answer::of(waits.call(1, "own__later", json!({"ms": 2500}))));
    let fake = gateway.fake("own");
    eventually("under way", async || fake.calls_of("later").pop()).await;
    pid(&left, "own__pid").await;
    let pids = fake.pids();
    ended(&left, pids[2]).await;
    result_of(&waiting.await.unwrap());
    // Long after the time of one that did neither.
    assert_eq!(listens.result("ping", json!({})).await, json!({}));
    drop(stream);
    ended(&listens, pids[0]).await;
    ended(&waits, pids[1]).await;
    assert_eq!(fake.pids(), pids);
    gateway.stop().await;
}

#[tokio::test]
async fn the_processes_of_a_session_end_together() {
    let own = |idle: &str| format!("sharing = \"session\"\nidle_timeout = \"{idle}\"");
    let gateway = Setup::new()
        .fake_with("short", &[], &own("300ms"))
        .fake_with("long", &[], &own("1h"))
        .start()
        .await;
    let session = Session::open(&gateway, "/mcp").await;
    let pids = [pid(&session, "long__pid").await, pid(&session, "short__pid").await];
    for pid in pids {
        ended(&session, pid).await;
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_process_that_ends_in_the_middle_of_a_call_ends_its_session() {
    let gateway = start("").await;
    let session = Session::open(&gateway, "/mcp/own").await;
    let first = pid(&session, "pid").await;
    let held = tokio::spawn(Answer::of(session.call(1, "hold", json!({}))));
    let fake = gateway.fake("own");
    eventually("held", async || fake.calls_of("hold").pop()).await;
    kill(first, Signal::KILL);
    let error = messages(&held.await.unwrap()).pop().unwrap()["error"].clone();
    assert_eq!(error["code"], 502);
    assert_eq!(
        error["data"],
        json!({"code": "backend_exited", "retryable": false, "executed": "unknown"})
    );
    // What the server knew of the session is lost: its client has to begin again.
    assert_eq!(Answer::of(session.call(2, "pid", json!({}))).await.status, 404);
    let second = pid(&Session::open(&gateway, "/mcp/own").await, "pid").await;
    assert_eq!(fake.pids(), [first, second]);
    gateway.stop().await;
}

#[tokio::test]
async fn a_process_that_has_served_its_time_ends_with_its_session_when_it_has_no_call() {
    let gateway = start("recycle.calls = 2").await;
    let session = Session::open(&gateway, "/mcp/own").await;
    let _stream = session.listen().await;
    let first = pid(&session, "pid").await;
    let slow = tokio::spawn(Answer::of(session.call(1, "later", json!({"ms": 2500}))));
    result_of(&slow.await.unwrap());
    // Another would know nothing of what this one was told.
    ended(&session, first).await;
    let second = pid(&Session::open(&gateway, "/mcp/own").await, "pid").await;
    assert_eq!(gateway.fake("own").pids(), [first, second]);
    gateway.stop().await;
}

#[tokio::test]
async fn a_session_whose_process_has_served_its_time_finishes_its_calls_at_other_servers() {
    let settings = "sharing = \"session\"\nrecycle.calls = 1";
    let gateway = Setup::new().fake("other").fake_with("own", &[], settings).start().await;
    let session = Session::open(&gateway, "/mcp").await;
    let elsewhere = tokio::spawn(Answer::of(session.call(1, "other__later", json!({"ms": 2500}))));
    eventually("under way", async || gateway.fake("other").calls_of("later").pop()).await;
    let own = pid(&session, "own__pid").await;
    result_of(&elsewhere.await.unwrap());
    ended(&session, own).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_elsewhere_that_has_forgotten_a_session_ends_it_here_too() {
    let server = HttpServer::legacy().await;
    let setup = Setup::new().http("own", &server.url("/mcp"), "sharing = \"session\"");
    let gateway = setup.start().await;
    let session = Session::open(&gateway, "/mcp/own").await;
    assert_eq!(session.tool_text("echo", json!({"text": "a"})).await, "a");
    server.forget_sessions();
    let said = messages(&Answer::of(session.call(1, "echo", json!({"text": "b"}))).await);
    assert!(said[0]["error"].is_object(), "{said:?}");
    eventually("ended", async || {
        (session.ask("ping", json!({})).await.status == 404).then_some(())
    })
    .await;
    assert_eq!(server.seen_of("initialize").len(), 1);
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_session_hears_of_changes_at_its_own_process_alone() {
    let gateway = start("").await;
    let (one, two) =
        (Session::open(&gateway, "/mcp/own").await, Session::open(&gateway, "/mcp").await);
    pid(&two, "own__pid").await;
    let mut streams = [one.listen().await, two.listen().await];
    let say = |method: &str| json!({"messages": [{"method": method}]});
    one.tool_text("say", say("notifications/prompts/list_changed")).await;
    assert_eq!(streams[0].method().await, "notifications/prompts/list_changed");
    two.tool_text("own__say", say("notifications/resources/list_changed")).await;
    assert_eq!(streams[1].method().await, "notifications/resources/list_changed");
    gateway.fake("own").set_extra_tools("another");
    one.tool_text("change", json!({})).await;
    assert_eq!(streams[0].method().await, "notifications/tools/list_changed");
    gateway.stop().await;
}

#[tokio::test]
async fn the_log_level_is_told_to_the_process_and_its_lines_to_the_client() {
    let gateway = start("").await;
    let (one, two) =
        (Session::open(&gateway, "/mcp/own").await, Session::open(&gateway, "/mcp").await);
    let line = |level: &str| {
        json!({"method": "notifications/message",
        "params": {"level": level, "data": level}})
    };
    let lines = json!({"messages": [line("debug"), line("error")]});
    let heard = async |session: &Session, tool| {
        let answer = Answer::of(session.call(1, tool, lines.clone())).await;
        let levels = messages(&answer)
            .into_iter()
            .filter_map(|it| it["params"]["level"].as_str().map(str::to_owned));
        levels.collect::<Vec<_>>()
    };
    assert_eq!(heard(&one, "say").await, ["debug", "error"]);
    one.result("logging/setLevel", json!({"level": "warning"})).await;
    let told = gateway.fake("own").received_of("logging/setLevel");
    assert_eq!(
        told.iter().map(|it| &it["params"]).collect::<Vec<_>>(),
        [&json!({"level": "warning"})]
    );
    assert_eq!(heard(&one, "say").await, ["error"]);
    // Also by a process that was not there yet.
    two.result("logging/setLevel", json!({"level": "warning"})).await;
    assert_eq!(heard(&two, "own__say").await, ["error"]);
    gateway.stop().await;
}

#[tokio::test]
async fn callers_without_a_session_are_told_so() {
    let gateway = start("").await;
    let rest = gateway.call("own", "pid", "{}").await;
    assert_eq!(rest.problem(), refused(400, "invalid_request"));
    assert!(rest.detail().contains("session"), "{}", rest.detail());
    let version = "io.modelcontextprotocol/protocolVersion";
    let meta = json!({version: "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
    for (method, name, mut params) in [
        ("tools/call", "pid", json!({"name": "pid", "arguments": {}})),
        ("tools/list", "", json!({})),
        ("server/discover", "", json!({})),
    ] {
        params["_meta"] = meta.clone();
        let modern = post(&gateway, "/mcp/own", request(1, method, params))
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", method)
            .header("mcp-name", name);
        let error: Value = Answer::of(modern).await.json()["error"].clone();
        assert_eq!(error["data"]["code"], "invalid_request", "{method}: {error}");
        assert!(error["message"].as_str().unwrap().contains("session"), "{error}");
    }
    assert!(gateway.fake("own").pids().is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn all_processes_are_stopped_at_the_end_promptly() {
    let gateway = start("").await;
    let mut sessions = vec![];
    for _ in 0..4 {
        let session = Session::open(&gateway, "/mcp/own").await;
        pid(&session, "pid").await;
        sessions.push(session);
    }
    let began = Instant::now();
    // Looks for processes that are left.
    gateway.stop().await;
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}
