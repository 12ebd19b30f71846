//! The bounds of kept calls, and calls that were cancelled.

use serde_json::json;
use sqlx::{Connection, Executor, SqliteConnection};

use crate::async_calls::{accepted, id_of, runs};
use crate::kept_calls::{is_replay, keyed, problem, said, started};
use crate::support::{Answer, Api, Setup, eventually, in_time, on_both};

#[tokio::test]
async fn requests_that_wait_for_one_call_are_bounded() {
    let gateway = Setup::new().fake("fake").start().await;
    let hold = || keyed(&gateway, "k", "hold", "{}");
    let first = tokio::spawn(Answer::of(hold()));
    started(&gateway, "hold", 1).await;
    let waiting: Vec<_> = (0..64).map(|_| tokio::spawn(Answer::of(hold()))).collect();
    eventually("all of them wait", async || {
        let more = Answer::of(hold().header("Prefer", "wait=0")).await;
        if more.status == 409 {
            return None;
        }
        assert_eq!(said(&more), problem(429, "tenant_busy", true, "no"));
        Some(())
    })
    .await;
    gateway.call("fake", "release", "{}").await.tool_text();
    for answer in waiting.into_iter().chain([first]) {
        in_time("an answer", answer).await.unwrap().tool_text();
    }
    assert_eq!(gateway.fake("fake").calls_of("hold").len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn calls_that_wait_to_begin_are_bounded_in_number_and_in_bytes() {
    // The calls that run must outlast all that are accepted meanwhile.
    let setup = Setup::new().fake_with("fake", &[], "timeout = \"10min\"").tenant("acme");
    let setup = setup.with_tenant("acme", "servers = [\"*\"]\nmax_in_flight = 1");
    let setup = setup.set("drain_timeout = \"100ms\"");
    let setup = setup.with_tenant("other", "servers = [\"*\"]\nmax_in_flight = 1");
    let gateway = setup.start().await;
    let (acme, other) = (Api::clone(&gateway), gateway.as_tenant("other").await);
    for (api, running) in [(&acme, 1), (&other, 2)] {
        id_of(&Answer::of(accepted(api, "hold", "{}")).await);
        runs(&gateway, "hold", running).await;
    }
    // One may be on its way from the queue and back.
    let is_full = async |api: &Api, arguments: &str, most: usize| {
        for count in 0..=most {
            let answer = Answer::of(accepted(api, "raw", arguments)).await;
            if answer.status != 202 {
                assert_eq!(said(&answer), problem(429, "tenant_busy", true, "no"));
                assert!(answer.retry_after().is_some());
                return count;
            }
        }
        panic!("more than {most} calls were accepted");
    };
    let count = is_full(&acme, "{}", 1002).await;
    assert!((1000..=1001).contains(&count), "{count}");
    let large = json!({"text": "x".repeat(1_000_000)}).to_string();
    let count = is_full(&other, &large, 17).await;
    assert_eq!(count, (16 << 20) / large.len());
    gateway.stop().await;
}

#[tokio::test]
async fn a_cancelled_call_is_replayed_as_what_it_was() {
    on_both(async |database| {
        let gateway = Setup::new().with_store(&database.url).fake("fake").start().await;
        let first = keyed(&gateway, "k", "hold", "{}").header("Prefer", "respond-async");
        let id = Answer::of(first).await.json()["id"].as_str().unwrap().to_owned();
        started(&gateway, "hold", 1).await;
        let url = gateway.url(&format!("/v1/calls/{id}"));
        Answer::of(gateway.client.delete(url)).await;
        for _ in 0..2 {
            let retry = Answer::of(keyed(&gateway, "k", "hold", "{}")).await;
            assert_eq!(said(&retry), problem(409, "cancelled", false, "unknown"));
            assert!(is_replay(&retry), "{retry:?}");
            assert_eq!(retry.header("trunkline-call-id"), id);
        }
        let other = Answer::of(keyed(&gateway, "k", "hold", r#"{"a":1}"#)).await;
        assert!(!is_replay(&other), "{other:?}");
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_deadline_that_passes_while_the_call_is_recorded_is_told_as_one() {
    let gateway = Setup::new().fake("fake").start().await;
    Answer::of(keyed(&gateway, "before", "raw", "{}")).await.tool_text();
    let file = gateway.setup().dir.path().join("trunkline.db");
    let mut other =
        SqliteConnection::connect(&format!("sqlite://{}", file.display())).await.unwrap();
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    let call = || keyed(&gateway, "k", "raw", "{}");
    let late = Answer::of(call().header("Trunkline-Timeout-Ms", "50")).await;
    assert_eq!(said(&late), problem(504, "deadline_exceeded", true, "unknown"));
    other.execute("ROLLBACK").await.unwrap();
    Answer::of(call()).await.tool_text();
    assert_eq!(gateway.fake("fake").calls_of("raw").len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn a_new_key_is_refused_at_the_bound_of_records_and_old_ones_are_not() {
    let setup = Setup::new().set("calls.max_records = 2").fake("fake");
    let gateway = setup.start().await;
    for key in ["a", "b"] {
        Answer::of(keyed(&gateway, key, "raw", "{}")).await.tool_text();
    }
    let third = Answer::of(keyed(&gateway, "c", "raw", "{}")).await;
    assert_eq!(said(&third), problem(429, "tenant_busy", true, "no"));
    assert!(third.detail().contains("max_records"), "{}", third.detail());
    assert_eq!(third.json()["limit"], json!({"name": "records", "value": 2, "used": 2}));
    assert!(is_replay(&Answer::of(keyed(&gateway, "a", "raw", "{}")).await));
    gateway.stop().await;
}

#[tokio::test]
async fn long_results_are_kept_and_the_oldest_are_evicted_first() {
    on_both(async |database| {
        let setup = Setup::new().with_store(&database.url).set("calls.max_bytes = \"4MiB\"");
        let setup = setup.with_tenant("other", "servers = [\"*\"]");
        let gateway = setup.fake("fake").start().await;
        let big = json!({"bytes": 1_800_000});
        // Another tenant's is older, and none of this one's business.
        let other = gateway.as_tenant("other").await;
        Answer::of(keyed(&other, "old", "big", &big)).await.tool_text();
        let first = Answer::of(keyed(&gateway, "a", "big", &big)).await;
        let again = Answer::of(keyed(&gateway, "a", "big", &big)).await;
        assert!(is_replay(&again) && again.body == first.body);
        for key in ["b", "c"] {
            Answer::of(keyed(&gateway, key, "big", &big)).await.tool_text();
        }
        eventually("the oldest is gone", async || {
            let again = Answer::of(keyed(&gateway, "a", "big", &big)).await;
            let is_gone = again.status == 410;
            is_gone.then(|| assert_eq!(said(&again), problem(410, "result_gone", false, "yes")))
        })
        .await;
        for (api, key) in [(&Api::clone(&gateway), "c"), (&other, "old")] {
            let again = Answer::of(keyed(api, key, "big", &big)).await;
            assert!(is_replay(&again) && again.status == 200, "{}", again.status);
        }
        assert_eq!(gateway.fake("fake").calls_of("big").len(), 4);
        gateway.stop().await;
    })
    .await;
}
