//! Servers that end, and are started again.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use trunkline::backend::supervise::restart_policy::Budget;

use crate::support::{Answer, Setup, eventually, in_time, is_alive, kill, refused};

#[tokio::test]
async fn a_server_that_was_killed_is_started_again() {
    let gateway = Setup::new().fake("fake").start().await;
    let fake = gateway.fake("fake");
    kill(fake.pids()[0], Signal::KILL);
    // Until it is back, calls wait or are told when to come again.
    let pid = eventually("a new process", async || {
        let answer = gateway.call("fake", "pid", "").await;
        if answer.status == 200 {
            return Some(answer.tool_text());
        }
        match answer.json()["code"].as_str().unwrap() {
            "server_unavailable" => assert!(answer.retry_after().is_some()),
            // Only a call that came in before its end was noticed.
            code => assert_eq!(code, "backend_exited"),
        }
        None
    })
    .await;
    assert_eq!(fake.pids().len(), 2);
    assert_eq!(pid, fake.pids()[1].to_string());
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_server_restarts_total{server=\"fake\"}"), Some(1.0));
    assert_eq!(metrics.value("trunkline_server_up{server=\"fake\"}"), Some(1.0));
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_lost_its_guard_is_replaced() {
    let gateway = Setup::new().fake("fake").start().await;
    let fake = gateway.fake("fake");
    let server = fake.pids()[0];
    let guard = gateway.processes().into_iter().find(|pid| *pid != server).unwrap();
    kill(guard, Signal::KILL);
    eventually("replaced", async || {
        (gateway.call("fake", "pid", "").await.status == 200 && fake.pids().len() == 2)
            .then_some(())
    })
    .await;
    assert!(!is_alive(server));
    gateway.stop().await;
}

#[tokio::test]
async fn calls_in_line_behind_one_that_ends_the_server_come_again_or_wait() {
    let gateway = Setup::new().fake_with("fake", &[], "max_in_flight = 1").start().await;
    let fake = gateway.fake("fake");
    kill(fake.pids()[0], Signal::STOP);
    let exit = gateway.spawn_call("fake", "exit", "{}");
    gateway.has_in_flight("fake", 1.0).await;
    let behind: Vec<_> = (0..4).map(|_| gateway.spawn_call("fake", "raw", "{}")).collect();
    gateway.has_in_flight("fake", 5.0).await;
    kill(fake.pids()[0], Signal::CONT);
    exit.await.unwrap().problem();
    for call in behind {
        let answer = call.await.unwrap();
        // Refused during the pause before the restart; on a slow machine it may have begun already,
        // and then they wait for it.
        if answer.status != 200 {
            assert_eq!(answer.problem(), refused(503, "server_unavailable").for_now());
            assert!(answer.retry_after().is_some());
        }
    }
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_answered_while_the_server_is_killed_again_and_again() {
    let gateway = Setup::new().fake("fake").std().start().await;
    let fake = gateway.fake("fake");
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    // Once more, and it would be in quarantine.
    for _ in 0..3 {
        let mut calls = JoinSet::new();
        for n in 0..20 {
            calls.spawn(Answer::of(gateway.post("fake", "later", json!({"ms": 5 * n}))));
            calls.spawn(Answer::of(gateway.post("std", "echo", json!({"text": "quiet"}))));
        }
        let mut killed = false;
        while let Some(answer) = in_time("answered", calls.join_next()).await {
            let answer = answer.unwrap();
            let outcome = match answer.status {
                200 => answer.tool_text(),
                _ => answer.json()["code"].as_str().unwrap().to_owned(),
            };
            if outcome == "server_unavailable" {
                assert!(answer.retry_after().is_some());
            }
            *outcomes.entry(outcome).or_default() += 1;
            if !killed {
                killed = true;
                let pid = *fake.pids().last().unwrap();
                if is_alive(pid) {
                    kill(pid, Signal::KILL);
                }
            }
        }
        eventually("back", async || {
            (gateway.call("fake", "raw", "{}").await.status == 200).then_some(())
        })
        .await;
    }
    // The neighbour has not noticed.
    assert_eq!(outcomes.remove("quiet"), Some(60));
    for expected in ["later", "backend_exited", "server_unavailable"] {
        outcomes.remove(expected);
    }
    assert!(outcomes.is_empty(), "{outcomes:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_keeps_failing_is_put_in_quarantine() {
    let gateway = Setup::new().fake_with("fake", &["start=fail"], "").start().await;
    let server = eventually("quarantined", async || {
        let server = gateway.server("fake").await.json();
        (server["state"] == "quarantined").then_some(server)
    })
    .await;
    assert_eq!(gateway.fake("fake").pids().len(), 5);
    assert!(server["since"].is_string() && server["ready"] == 0, "{server}");
    let answer = gateway.call("fake", "raw", "{}").await;
    assert_eq!(answer.problem(), refused(503, "server_unavailable").for_now());
    assert!((20..=33).contains(&answer.retry_after().unwrap()), "{answer:?}");
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_server_restarts_total{server=\"fake\"}"), Some(4.0));
    gateway.stop().await;
}

#[tokio::test]
async fn nobody_waits_for_a_probe_in_quarantine_and_it_heals_when_the_cause_is_gone() {
    let setup = Setup::new();
    let cause = setup.dir.path().join("cause");
    fs::write(&cause, "").unwrap();
    let mute = format!("mute_while={}", cause.display());
    let setup = setup.fake_with("fake", &[&mute], "start_timeout = \"3s\"");
    let probe_every = Duration::from_millis(100);
    let budget = Budget { starts: 1, probe_every, ..Budget::default() };
    let tenants = setup.start_within(budget, &["local"]).await;
    let (api, fake) = (tenants.first(), tenants.fake("fake"));
    let mut down_since = None;
    for probe in 2..=3 {
        eventually("a probe", async || (fake.pids().len() == probe).then_some(())).await;
        let began = Instant::now();
        let answer = api.call("fake", "raw", "{}").await;
        assert!(began.elapsed() < Duration::from_secs(1), "it took {:?}", began.elapsed());
        assert_eq!(answer.problem(), refused(503, "server_unavailable").for_now());
        assert_eq!(answer.retry_after(), Some(1));
        let server = api.server("fake").await.json();
        assert_eq!(server["state"], "quarantined", "{server}");
        let reason = server["reason"].as_str().unwrap();
        assert_eq!(answer.detail(), format!("the server is not running: {reason}"));
        // However often it was tried.
        let first = down_since.get_or_insert(server["down_since"].clone());
        assert!(first.is_string() && *first == server["down_since"], "{server}");
        assert_eq!(fake.pids().len(), probe, "all of this was during one probe");
    }
    fs::remove_file(cause).unwrap();
    eventually("healed", async || {
        (api.call("fake", "raw", "{}").await.status == 200).then_some(())
    })
    .await;
    let server = api.server("fake").await.json();
    assert!(server["reason"].is_null() && server["down_since"].is_null(), "{server}");
    tenants.stop().await;
}

#[tokio::test]
async fn a_program_that_is_not_there_is_not_tried_again_and_again() {
    let gateway = Setup::new().server("gone", "/no/such/program", &[], "").start().await;
    let server = gateway.server("gone").await.json();
    assert_eq!(server["state"], "quarantined");
    assert_eq!(server["reason"], "its program cannot be started");
    assert_eq!(
        gateway.metrics().await.value("trunkline_server_restarts_total{server=\"gone\"}"),
        Some(0.0)
    );
    gateway.stop().await;
}

#[tokio::test]
async fn nor_is_one_whose_handshake_would_be_no_better_next_time() {
    let mut setup = Setup::new();
    let ids = ["refuse", "odd", "future"];
    for how in ids {
        setup = setup.fake_with(how, &[&format!("initialize={how}")], "");
    }
    let gateway = setup.start().await;
    for id in ids {
        let server = gateway.server(id).await.json();
        assert_eq!(server["state"], "quarantined", "{server}");
        assert_eq!(server["reason"], "its handshake failed");
        assert_eq!(gateway.fake(id).pids().len(), 1);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_lazy_server_starts_with_its_first_call_and_once_for_many() {
    let gateway = Setup::new().fake_with("fake", &["start=slow"], "start = \"lazy\"").start().await;
    let fake = gateway.fake("fake");
    assert_eq!(gateway.server("fake").await.json()["state"], "idle");
    assert!(gateway.processes().is_empty());
    assert!(fake.pids().is_empty());

    let calls: Vec<_> = (0..20).map(|_| gateway.spawn_call("fake", "raw", "{}")).collect();
    for call in calls {
        assert_eq!(call.await.unwrap().tool_text(), "{}");
    }
    assert_eq!(fake.pids().len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_whose_deadline_passes_while_the_server_starts_was_not_run() {
    let gateway = Setup::new().fake_with("fake", &["start=slow"], "").start_at_once().await;
    let answer = gateway.call_within_ms(100, "fake", "raw", "{}").await;
    assert_eq!(answer.problem(), refused(504, "deadline_exceeded").for_now());
    gateway.ready().await;
    gateway.call("fake", "odd", "{}").await;
    assert!(gateway.fake("fake").calls_of("raw").is_empty());
    gateway.stop().await;
}
