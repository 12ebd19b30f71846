//! Calls that are tried again, and those that must not be.

use rustix::process::Signal;
use serde_json::json;

use crate::support::mcp_modern::without_link;
use crate::support::{Answer, Gateway, Setup, eventually, failed, kill, refused};

const SAFE: &str = "retry = \"safe\"\nattempt_timeout = \"300ms\"\n";

async fn start(settings: &str) -> Gateway {
    Setup::new().fake_with("fake", &[], settings).start().await
}

async fn both_are_ready(gateway: &Gateway) {
    eventually("both", async || (gateway.server("fake").await.json()["ready"] == 2).then_some(()))
        .await;
}

fn attempts(answer: &Answer) -> &str {
    answer.header("trunkline-attempts")
}

#[tokio::test]
async fn the_whole_ladder_ends_with_an_answer() {
    let gateway = start(SAFE).await;
    let steps = json!({"steps": ["hang", "hang", "exit", "answer"]}).to_string();
    // Deadline of an attempt, pause, again; the end of the server, its restart, again.
    let answer = gateway.call("fake", "steps", &steps).await;
    assert!(answer.tool_text().starts_with("step answer"), "{answer:?}");
    assert_eq!(attempts(&answer), "4");
    let fake = gateway.fake("fake");
    assert_eq!(fake.pids().len(), 2);
    assert_eq!(fake.calls_of("steps").len(), 4);
    gateway.stop().await;
}

#[tokio::test]
async fn a_slow_answer_is_waited_for_unless_attempts_have_a_timeout() {
    for (settings, attempts_made) in [("", "1"), ("attempt_timeout = \"300ms\"\n", "2")] {
        let gateway = start(&format!("retry = \"safe\"\ntimeout = \"3s\"\n{settings}")).await;
        // More than a third of the call's time.
        let steps = json!({"steps": ["late", "answer"]}).to_string();
        let answer = gateway.call("fake", "steps", &steps).await;
        assert!(answer.tool_text().starts_with("step "), "{answer:?}");
        assert_eq!(attempts(&answer), attempts_made);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_call_that_may_have_been_executed_is_not_repeated_unless_its_tool_says_so() {
    let gateway = start(SAFE).await;
    let steps = json!({"steps": ["exit", "answer"]}).to_string();
    let answer = gateway.call("fake", "steps_once", &steps).await;
    assert_eq!(answer.problem(), failed(502, "backend_exited"));
    assert_eq!(attempts(&answer), "1");
    assert_eq!(gateway.fake("fake").calls_of("steps_once").len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn nor_unless_the_operator_allows_it() {
    let gateway = start("").await;
    let steps = json!({"steps": ["exit", "answer"]}).to_string();
    let answer = gateway.call("fake", "steps", &steps).await;
    assert_eq!(answer.problem(), failed(502, "backend_exited"));
    assert_eq!(gateway.fake("fake").calls_of("steps").len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn what_is_refused_before_is_no_attempt() {
    let gateway = start(SAFE).await;
    let answer = gateway.call("fake", "no-such-tool", "{}").await;
    assert_eq!(answer.problem(), refused(404, "tool_not_found"));
    assert_eq!(attempts(&answer), "0");
    gateway.stop().await;
}

#[tokio::test]
async fn waiting_in_line_is_no_attempt() {
    let gateway = start(&format!("{SAFE}max_in_flight = 1\n")).await;
    let first = gateway.spawn_call("fake", "later", r#"{"ms":1500}"#);
    gateway.has_in_flight("fake", 1.0).await;
    let steps = json!({"steps": ["answer"]}).to_string();
    let second = gateway.call("fake", "steps", &steps).await;
    assert!(second.tool_text().starts_with("step answer"), "{second:?}");
    assert_eq!(attempts(&second), "1");
    assert_eq!(first.await.unwrap().tool_text(), "later");
    gateway.stop().await;
}

#[tokio::test]
async fn once_an_attempt_may_have_run_the_call_may_have() {
    let gateway = start(&format!("{SAFE}max_in_flight = 1\n")).await;
    let steps = json!({"steps": ["hang"]});
    // The first attempt hangs and keeps the only slot; the second is not even written.
    let answer = gateway.call_within_ms(1500, "fake", "steps", &steps).await;
    assert_eq!(answer.problem(), failed(504, "deadline_exceeded"));
    assert_eq!(attempts(&answer), "2");
    assert_eq!(gateway.fake("fake").calls_of("steps").len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn an_mcp_client_is_told_so_too() {
    let gateway = start(&format!("{SAFE}max_in_flight = 1\n")).await;
    let call = gateway.mcp("/mcp/fake").call("steps", json!({"steps": ["hang"]}));
    let error = call.header("trunkline-timeout-ms", "1500").send().await.error();
    let data = json!({"code": "deadline_exceeded", "retryable": false, "executed": "unknown",
        "attempts": 2});
    assert_eq!((&error["code"], without_link(&error["data"])), (&json!(504), data));
    assert_eq!(gateway.fake("fake").calls_of("steps").len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_ran_the_call_and_does_not_come_back_may_have_done_it() {
    let settings = format!("{SAFE}start_timeout = \"2s\"\n");
    let setup = Setup::new().fake_with("fake", &["mute_after=1"], &settings);
    let gateway = setup.start().await;
    let answer = gateway.call("fake", "steps", json!({"steps": ["exit"]})).await;
    assert_eq!(answer.problem(), failed(503, "server_unavailable"));
    assert_ne!(attempts(&answer), "1");
    assert_eq!(gateway.fake("fake").calls_of("steps").len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_was_never_written_is_tried_again_on_another_copy() {
    let settings = "instances = 2\nmax_in_flight = 8";
    // What takes the place of the first never gets ready.
    let gateway = Setup::new().fake_with("fake", &["mute_after=2"], settings).start().await;
    both_are_ready(&gateway).await;
    let first = gateway.fake("fake").pids()[0];
    kill(first, Signal::STOP);
    let large = json!({"x": "x".repeat(200_000)}).to_string();
    let calls: Vec<_> = (0..6).map(|_| gateway.spawn_call("fake", "raw", &large)).collect();
    eventually("three answers", async || {
        (calls.iter().filter(|call| call.is_finished()).count() == 3).then_some(())
    })
    .await;
    kill(first, Signal::KILL);
    let mut answers = vec![];
    for call in calls {
        let answer = call.await.unwrap();
        answers.push((answer.status, attempts(&answer).to_owned()));
    }
    answers.sort();
    let expected = |first: &[(u16, &str)], last: &[(u16, &str)]| {
        let all =
            first.iter().chain(last).map(|(status, attempts)| (*status, attempts.to_string()));
        all.collect::<Vec<_>>()
    };
    // One of the frames was being written, most likely: that call may have been executed.
    let likely = expected(&[(200, "1"); 3], &[(200, "2"), (200, "2"), (502, "1")]);
    let unlikely = expected(&[(200, "1"); 3], &[(200, "2"); 3]);
    assert!(answers == likely || answers == unlikely, "{answers:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn or_on_the_next_run_of_the_only_one() {
    let gateway = start("max_in_flight = 8").await;
    let fake = gateway.fake("fake");
    // It reads nothing: what does not fit into the pipe is not written.
    kill(fake.pids()[0], Signal::STOP);
    let large = json!({"x": "x".repeat(200_000)}).to_string();
    let calls: Vec<_> = (0..3).map(|_| gateway.spawn_call("fake", "raw", &large)).collect();
    gateway.has_in_flight("fake", 3.0).await;
    kill(fake.pids()[0], Signal::KILL);
    let mut answered = 0;
    for call in calls {
        let answer = call.await.unwrap();
        match answer.status {
            200 => {
                assert_eq!(attempts(&answer), "2");
                answered += 1;
            }
            // The one whose frame was being written.
            _ => assert_eq!(answer.problem(), failed(502, "backend_exited")),
        }
    }
    assert!(answered >= 2, "{answered}");
    gateway.stop().await;
}

#[tokio::test]
async fn an_attempt_that_took_too_long_is_followed_by_one_on_another_copy() {
    let gateway = start("instances = 2\nretry = \"safe\"\nattempt_timeout = \"2s\"\n").await;
    both_are_ready(&gateway).await;
    let fake = gateway.fake("fake");
    // Of two that are as busy, the one that was not chosen for longer is next.
    let pid = async || gateway.call("fake", "pid", "{}").await.tool_text();
    let (_first, other) = (pid().await, pid().await);
    let steps = json!({"steps": ["hang", "answer"]});
    let call = gateway.spawn_call("fake", "steps", steps);
    eventually("sent", async || (fake.calls_of("steps").len() == 1).then_some(())).await;
    // It goes to the other: both are as busy again, and the one that hangs would be next.
    let held = gateway.spawn_call("fake", "hold", "{}");
    assert_eq!(call.await.unwrap().tool_text(), format!("step answer of {other}"));
    fake.pids().into_iter().for_each(|pid| kill(pid, Signal::KILL));
    assert_eq!(held.await.unwrap().problem(), failed(502, "backend_exited"));
    gateway.stop().await;
}

#[tokio::test]
async fn no_more_than_one_call_in_ten_is_repeated() {
    let gateway = start(SAFE).await;
    let steps = json!({"steps": ["hang"]}).to_string();
    let calls: Vec<_> = (0..30)
        .map(|_| {
            let post = gateway.post("fake", "steps", &steps);
            tokio::spawn(Answer::of(post.header("trunkline-timeout-ms", "1500")))
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().status, 504);
    }
    let made = gateway.fake("fake").calls_of("steps").len();
    // Ten that were saved up, and at most three that thirty calls earn.
    assert!((40..=43).contains(&made), "{made}");
    gateway.stop().await;
}
