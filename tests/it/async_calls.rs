//! Asynchronous calls: accepted with 202, asked for later, cancelled, listed.

use futures_util::future::join_all;
use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::kept_calls::{problem, said};
use crate::support::{Answer, Api, Gateway, Setup, eventually, in_time, on_both, refused};

pub fn accepted(api: &Api, tool: &str, arguments: impl ToString) -> RequestBuilder {
    api.post("fake", tool, arguments).header("Prefer", "respond-async")
}

/// Returns the id of a call that was accepted.
pub fn id_of(answer: &Answer) -> String {
    assert_eq!(answer.status, 202, "{answer:?}");
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(answer.header("location"), format!("/v1/calls/{id}"));
    assert_eq!(answer.header("preference-applied"), "respond-async");
    assert_eq!(answer.header("trunkline-call-id"), id);
    assert!(answer.retry_after().is_some() && answer.json()["expires"].is_string());
    id
}

async fn view(api: &Api, id: &str) -> Value {
    api.get(&format!("/v1/calls/{id}")).await.json()
}

async fn result(api: &Api, id: &str) -> Answer {
    api.get(&format!("/v1/calls/{id}/result?wait=20")).await
}

async fn cancel(api: &Api, id: &str) -> Answer {
    Answer::of(api.client.delete(api.url(&format!("/v1/calls/{id}")))).await
}

pub async fn runs(gateway: &Gateway, tool: &str, calls: usize) {
    let fake = gateway.fake("fake");
    eventually("the call runs", async || (fake.calls_of(tool).len() == calls).then_some(())).await;
}

#[tokio::test]
async fn an_accepted_call_is_answered_later_as_it_would_have_been_at_once() {
    on_both(async |database| {
        let gateway = Setup::new().with_store(&database.url).fake("fake").start().await;
        let id = id_of(&Answer::of(accepted(&gateway, "hold", r#"{"a": 1}"#)).await);
        runs(&gateway, "hold", 1).await;
        let running = eventually("it runs", async || {
            Some(view(&gateway, &id).await).filter(|view| view["state"] == "running")
        });
        let running = running.await;
        assert_eq!((&running["tool"], &running["outcome"]), (&json!("hold"), &Value::Null));
        let now = gateway.get(&format!("/v1/calls/{id}/result")).await;
        assert_eq!((now.status, &now.json()["id"]), (202, &json!(id)));
        let (api, asked) = (Api::clone(&gateway), id.clone());
        let waiting = tokio::spawn(async move { result(&api, &asked).await });
        gateway.call("fake", "release", "{}").await.tool_text();
        let answer = in_time("the result", waiting).await.unwrap();
        assert_eq!(answer.tool_text(), r#"{"a": 1}"#);
        assert_eq!(answer.header("trunkline-attempts"), "1");
        let over = view(&gateway, &id).await;
        assert_eq!((&over["state"], &over["outcome"]), (&json!("ended"), &json!("ok")));
        assert_eq!((&over["executed"], &over["attempts"]), (&json!("yes"), &json!(1)));
        // Again, and after a restart.
        assert_eq!(result(&gateway, &id).await.body, answer.body);
        gateway.stop().await;
        let gateway = Setup::new().with_store(&database.url).fake("fake").start().await;
        assert_eq!(result(&gateway, &id).await.body, answer.body);
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_short_call_is_answered_at_once_if_its_caller_waits() {
    let gateway = Setup::new().fake("fake").start().await;
    let call = gateway.post("fake", "raw", "{}").header("Prefer", "respond-async, wait=20");
    assert_eq!(Answer::of(call).await.tool_text(), "{}");
    // A failure without execution is kept too: its caller has an id.
    let id = id_of(&Answer::of(accepted(&gateway, "error", r#"{"code": -32602}"#)).await);
    let answer = result(&gateway, &id).await;
    assert_eq!(said(&answer), problem(502, "backend_error", false, "no"));
    let id = id_of(&Answer::of(accepted(&gateway, "nothing", "{}")).await);
    assert_eq!(said(&result(&gateway, &id).await), problem(404, "tool_not_found", false, "no"));
    gateway.stop().await;
}

#[tokio::test]
async fn a_key_and_an_asynchronous_answer_go_together() {
    on_both(async |database| {
        let gateway = Setup::new().with_store(&database.url).fake("fake").start().await;
        let keyed = |tool, arguments: &str| {
            accepted(&gateway, tool, arguments).header("Idempotency-Key", "k")
        };
        let id = id_of(&Answer::of(keyed("hold", "{}")).await);
        assert_eq!(id_of(&Answer::of(keyed("hold", "{}")).await), id);
        let other = Answer::of(keyed("hold", r#"{"a":1}"#)).await;
        assert_eq!(other.problem(), refused(422, "idempotency_mismatch"));
        runs(&gateway, "hold", 1).await;
        gateway.call("fake", "release", "{}").await.tool_text();
        result(&gateway, &id).await.tool_text();
        let again = Answer::of(keyed("hold", "{}").header("Prefer", "wait=10")).await;
        assert_eq!(again.header("trunkline-replayed"), "true");
        assert_eq!(gateway.fake("fake").calls_of("hold").len(), 1);
        // A key whose call did not run can be used again; the first id still tells what happened.
        let failing = || keyed("error", r#"{"code": -32602}"#);
        let first = id_of(&Answer::of(failing()).await);
        assert_eq!(result(&gateway, &first).await.status, 502);
        let second = id_of(&Answer::of(failing()).await);
        assert_ne!(first, second);
        assert_eq!(result(&gateway, &second).await.status, 502);
        assert_eq!(view(&gateway, &first).await["executed"], "no");
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn calls_are_cancelled_while_they_wait_and_while_they_run() {
    on_both(async |database| {
        let setup = Setup::new().with_store(&database.url).fake("fake").tenant("acme");
        let gateway = setup.with_tenant("acme", "servers = [\"*\"]\nmax_in_flight = 1").start();
        let gateway = gateway.await;
        let running = id_of(&Answer::of(accepted(&gateway, "hold", "{}")).await);
        runs(&gateway, "hold", 1).await;
        let waiting = id_of(&Answer::of(accepted(&gateway, "hold", "{}")).await);
        let seen = view(&gateway, &waiting).await;
        assert_eq!((&seen["state"], &seen["position"]), (&json!("accepted"), &json!(1)), "{seen}");
        let cancelled = cancel(&gateway, &waiting).await.json();
        assert_eq!(
            (&cancelled["state"], &cancelled["code"]),
            (&json!("ended"), &json!("cancelled"))
        );
        assert_eq!(cancelled["executed"], "no");
        let answer = result(&gateway, &waiting).await;
        assert_eq!(said(&answer), problem(409, "cancelled", false, "no"));
        let cancelled = cancel(&gateway, &running).await.json();
        assert_eq!(
            (&cancelled["code"], &cancelled["executed"]),
            (&json!("cancelled"), &json!("unknown"))
        );
        let fake = gateway.fake("fake");
        eventually("the server is told", async || {
            fake.received_of("notifications/cancelled").pop()
        })
        .await;
        assert_eq!(fake.calls_of("hold").len(), 1);
        // Once more changes nothing.
        assert_eq!(cancel(&gateway, &running).await.json()["executed"], "unknown");
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_tenant_lists_its_own_calls_and_no_others() {
    on_both(async |database| {
        let setup = Setup::new().with_store(&database.url).fake("fake").without_anonymous();
        let setup = setup.with_tenant("one", "servers = [\"*\"]");
        let gateway = setup.with_tenant("two", "servers = [\"*\"]").start().await;
        let (one, two) = (gateway.as_tenant("one").await, gateway.as_tenant("two").await);
        let mut ids = vec![];
        for run in ["run=7,task=a", "run=7,task=b", "run=8"] {
            let call = accepted(&one, "raw", "{}").header("Trunkline-Labels", run);
            ids.push(id_of(&Answer::of(call.header("X-Request-Id", "r")).await));
            result(&one, ids.last().unwrap()).await.tool_text();
        }
        let listed = async |query: &str| {
            let page = one.get(&format!("/v1/calls{query}")).await.json();
            let id = |call: &Value| call["id"].as_str().unwrap().to_owned();
            page["calls"].as_array().unwrap().iter().map(id).collect::<Vec<_>>()
        };
        let newest_first = |at: &[usize]| at.iter().map(|at| ids[*at].clone()).collect::<Vec<_>>();
        assert_eq!(listed("").await, newest_first(&[2, 1, 0]));
        assert_eq!(listed("?label=run%3D7").await, newest_first(&[1, 0]));
        assert_eq!(listed("?label=run%3D7&state=ended&limit=1").await, newest_first(&[1]));
        assert_eq!(listed(&format!("?before={}", ids[1])).await, newest_first(&[0]));
        assert!(listed("?state=running").await.is_empty());
        let page = one.get("/v1/calls?limit=2").await.json();
        assert_eq!(page["next"], ids[1]);
        assert_eq!(page["calls"][0]["labels"], json!(["run=8"]));
        assert_eq!(page["calls"][0]["request_id"], "r");
        // Another tenant's id and an unknown one look the same.
        assert_eq!(two.get("/v1/calls").await.json()["calls"], json!([]));
        for id in [ids[0].as_str(), "0190b7a0c0de7000800000000000beef", "x"] {
            for path in [format!("/v1/calls/{id}"), format!("/v1/calls/{id}/result")] {
                let answer = two.get(&path).await;
                assert_eq!(answer.problem(), refused(404, "not_found"));
            }
            assert_eq!(cancel(&two, id).await.problem(), refused(404, "not_found"));
        }
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn rights_are_checked_again_when_an_accepted_call_begins() {
    let setup = Setup::new().fake("fake").tenant("acme");
    let allowed = "servers = [\"*\"]\nmax_in_flight = 1";
    let gateway = setup.with_tenant("acme", allowed).start().await;
    id_of(&Answer::of(accepted(&gateway, "hold", "{}")).await);
    runs(&gateway, "hold", 1).await;
    let waiting = id_of(&Answer::of(accepted(&gateway, "raw", "{}")).await);
    let narrowed = "servers = [\"fake/hold\", \"fake/release\"]\nmax_in_flight = 2";
    let setup = gateway.setup().clone().without_tenants().with_tenant("acme", narrowed);
    assert!(gateway.apply(&setup).await);
    let answer = result(&gateway, &waiting).await;
    assert_eq!(said(&answer), problem(404, "tool_not_found", false, "no"));
    assert!(gateway.fake("fake").calls_of("raw").is_empty());
    gateway.call("fake", "release", "{}").await.tool_text();
    gateway.stop().await;
}

#[tokio::test]
async fn waiting_calls_begin_in_turns_by_their_fairness_key() {
    let setup = Setup::new().fake("fake").tenant("acme").set("drain_timeout = \"100ms\"");
    let gateway = setup.with_tenant("acme", "servers = [\"*\"]\nmax_in_flight = 1").start().await;
    let of_run = |tool: &str, run: &str, n: usize| {
        let call = accepted(&gateway, tool, json!({"run": run, "n": n}));
        Answer::of(call.header("Trunkline-Fairness-Key", run))
    };
    id_of(&of_run("hold", "long", 0).await);
    runs(&gateway, "hold", 1).await;
    for answer in join_all((0..400).map(|n| of_run("raw", "long", n))).await {
        id_of(&answer);
    }
    let short = id_of(&of_run("raw", "short", 0).await);
    // The next one of the long run may be on its way from the queue and back.
    let position = view(&gateway, &short).await["position"].as_u64().unwrap();
    assert!(position <= 2, "{position}");
    cancel(&gateway, &id_of_running(&gateway).await).await;
    result(&gateway, &short).await.tool_text();
    let calls = gateway.fake("fake").calls_of("raw");
    let runs = calls.iter().take(2).map(|call| call["params"]["arguments"]["run"].clone());
    assert_eq!(runs.collect::<Vec<_>>(), ["long", "short"]);
    gateway.stop().await;
}

async fn id_of_running(api: &Api) -> String {
    let running = api.get("/v1/calls?state=running").await.json();
    running["calls"][0]["id"].as_str().unwrap().to_owned()
}
