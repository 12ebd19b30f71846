//! Calls with an `Idempotency-Key`: each runs once, whatever becomes of its requests.

use reqwest::RequestBuilder;
use serde_json::json;
use sqlx::{AnyConnection, Connection};
use trunkline::common::ids::TenantName;
use trunkline::common::policy::Policy;
use trunkline::store::Actor;

use crate::support::{Answer, Api, Gateway, Setup, eventually, in_time, on_both, refused};

const KEY: &str = "Idempotency-Key";

pub fn keyed(api: &Api, key: &str, tool: &str, arguments: impl ToString) -> RequestBuilder {
    api.post("fake", tool, arguments).header(KEY, key)
}

/// Returns status, code, `retryable` and `executed` of an error.
pub fn said(answer: &Answer) -> (u16, String, bool, String) {
    let body = answer.json();
    let text = |name: &str| body[name].as_str().unwrap().to_owned();
    (answer.status, text("code"), body["retryable"].as_bool().unwrap(), text("executed"))
}

pub fn problem(
    status: u16,
    code: &str,
    retryable: bool,
    executed: &str,
) -> (u16, String, bool, String) {
    (status, code.to_owned(), retryable, executed.to_owned())
}

pub fn is_replay(answer: &Answer) -> bool {
    answer.headers.contains_key("trunkline-replayed")
}

/// Waits until so many calls are kept, and all are over.
async fn over(gateway: &Gateway, calls: usize) {
    eventually("over", async || {
        let kept = gateway.get("/v1/calls").await.json()["calls"].clone();
        let kept = kept.as_array().unwrap();
        for call in kept {
            let path = format!("/v1/calls/{}/result?wait=5", call["id"].as_str().unwrap());
            if gateway.get(&path).await.status == 202 {
                return None;
            }
        }
        (kept.len() == calls).then_some(())
    })
    .await;
}

pub async fn started(gateway: &Gateway, tool: &str, calls: usize) {
    let fake = gateway.fake("fake");
    eventually("the call runs", async || (fake.calls_of(tool).len() == calls).then_some(())).await;
}

#[tokio::test]
async fn the_same_key_runs_once_and_is_answered_with_the_same_bytes() {
    on_both(async |database| {
        let gateway = Setup::new().with_store(&database.url).fake("fake").start().await;
        let first = Answer::of(keyed(&gateway, "k1", "odd", "{}")).await;
        assert!(!is_replay(&first) && first.status == 200, "{first:?}");
        // Quoted it is the same key.
        for key in ["k1", "\"k1\""] {
            let again = Answer::of(keyed(&gateway, key, "odd", "{}")).await;
            assert!(is_replay(&again), "{again:?}");
            assert_eq!((again.status, &again.body), (first.status, &first.body));
            for header in ["trunkline-call-id", "trunkline-outcome", "trunkline-attempts"] {
                assert_eq!(again.header(header), first.header(header));
            }
        }
        assert_eq!(gateway.fake("fake").calls_of("odd").len(), 1);
        // Another key, another tool and another tenant are other calls.
        Answer::of(keyed(&gateway, "k2", "odd", "{}")).await;
        Answer::of(keyed(&gateway, "k1", "raw", "{}")).await;
        assert_eq!(gateway.fake("fake").calls_of("odd").len(), 2);
        assert_eq!(gateway.fake("fake").calls_of("raw").len(), 1);
        let other = Answer::of(keyed(&gateway, "k1", "odd", r#"{"a":1}"#)).await;
        assert_eq!(other.problem(), refused(422, "idempotency_mismatch"));
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn outcomes_outlive_the_gateway() {
    on_both(async |database| {
        let setup = || Setup::new().with_store(&database.url).fake("fake");
        let gateway = setup().start().await;
        let first = Answer::of(keyed(&gateway, "k", "odd", "{}")).await;
        let value = json!({"value": {"content": [], "isError": true}});
        let bad = Answer::of(keyed(&gateway, "bad", "result", &value)).await;
        gateway.stop().await;
        let gateway = setup().start().await;
        let again = Answer::of(keyed(&gateway, "k", "odd", "{}")).await;
        assert!(is_replay(&again) && again.body == first.body);
        let again = Answer::of(keyed(&gateway, "bad", "result", &value)).await;
        assert_eq!(again.header("trunkline-outcome"), "tool_error");
        assert_eq!((again.status, &again.body), (200, &bad.body));
        let strict = keyed(&gateway, "bad", "result", &value);
        let again = Answer::of(strict.header("Trunkline-Tool-Errors", "fail")).await;
        assert_eq!((again.status, &again.body), (422, &bad.body));
        assert!(gateway.fake("fake").received_of("tools/call").is_empty());
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_retry_attaches_to_the_running_call_even_if_the_first_request_hung_up() {
    on_both(async |database| {
        let gateway = Setup::new().with_store(&database.url).fake("fake").start().await;
        let first = tokio::spawn(keyed(&gateway, "k", "hold", "{}").send());
        started(&gateway, "hold", 1).await;
        first.abort();
        let now = keyed(&gateway, "k", "hold", "{}").header("Prefer", "wait=0");
        let now = Answer::of(now).await;
        assert_eq!(said(&now), problem(409, "in_progress", true, "no"));
        let late = keyed(&gateway, "k", "hold", "{}").header("Trunkline-Timeout-Ms", "50");
        let late = Answer::of(late).await;
        assert_eq!(said(&late), problem(504, "deadline_exceeded", true, "unknown"));
        let other = Answer::of(keyed(&gateway, "k", "hold", r#"{"a":1}"#)).await;
        assert_eq!(other.problem(), refused(422, "idempotency_mismatch"));
        let retries: Vec<_> =
            (0..3).map(|_| tokio::spawn(Answer::of(keyed(&gateway, "k", "hold", "{}")))).collect();
        // They wait, and the server is asked nothing more.
        tokio::task::yield_now().await;
        gateway.call("fake", "release", "{}").await.tool_text();
        for retry in retries {
            let answer = in_time("the retry's answer", retry).await.unwrap();
            assert_eq!(answer.tool_text(), "{}");
            assert!(is_replay(&answer));
        }
        assert_eq!(gateway.fake("fake").calls_of("hold").len(), 1);
        assert!(gateway.fake("fake").received_of("notifications/cancelled").is_empty());
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn what_did_not_run_is_not_kept_and_what_may_have_run_is() {
    on_both(async |database| {
        let gateway = Setup::new().with_store(&database.url).fake("fake").start().await;
        // The server refuses the request itself: it has not run.
        let refusal = json!({"code": -32602});
        for calls in 1..=2 {
            let answer = Answer::of(keyed(&gateway, "no", "error", &refusal)).await;
            assert_eq!(said(&answer), problem(502, "backend_error", false, "no"));
            assert_eq!(gateway.fake("fake").calls_of("error").len(), calls);
        }
        let answer = Answer::of(keyed(&gateway, "none", "nothing", "{}")).await;
        assert_eq!(answer.problem(), refused(404, "tool_not_found"));
        // The server ends in the middle.
        let first = Answer::of(keyed(&gateway, "maybe", "exit", "{}")).await;
        assert_eq!(said(&first), problem(502, "backend_exited", false, "unknown"));
        gateway.ready().await;
        let again = Answer::of(keyed(&gateway, "maybe", "exit", "{}")).await;
        assert!(is_replay(&again));
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        assert_eq!(gateway.fake("fake").calls_of("exit").len(), 1);
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn an_unknown_outcome_is_repeated_where_that_is_allowed() {
    let settings = "retry = \"safe\"\ntimeout = \"300ms\"\nattempt_timeout = \"10s\"";
    let gateway = Setup::new().fake_with("fake", &[], settings).start().await;
    let long = |tool, arguments: &serde_json::Value| {
        keyed(&gateway, "k", tool, arguments).header("Trunkline-Timeout-Ms", "15000")
    };
    // The first attempt is never answered, the second is.
    let steps = json!({"steps": ["silence", "answer"]});
    let first = Answer::of(keyed(&gateway, "k", "steps", &steps)).await;
    assert_eq!(said(&first).3, "unknown");
    over(&gateway, 1).await;
    let again = in_time("the repetition", Answer::of(long("steps", &steps))).await;
    assert!(again.tool_text().starts_with("step answer"), "{again:?}");
    // A tool without the annotation is never repeated.
    let first = Answer::of(keyed(&gateway, "k", "hold", json!({}))).await;
    assert_eq!(said(&first).3, "unknown");
    over(&gateway, 2).await;
    let again = Answer::of(long("hold", &json!({}))).await;
    assert_eq!(said(&again), problem(504, "deadline_exceeded", false, "unknown"));
    assert!(is_replay(&again), "{again:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn requests_with_one_key_at_once_run_it_once() {
    on_both(async |database| {
        let gateway = Setup::new().with_store(&database.url).fake("fake").start().await;
        let calls = (0..40).map(|_| tokio::spawn(Answer::of(keyed(&gateway, "k", "raw", "{}"))));
        for call in calls.collect::<Vec<_>>() {
            assert_eq!(in_time("an answer", call).await.unwrap().tool_text(), "{}");
        }
        assert_eq!(gateway.fake("fake").calls_of("raw").len(), 1);
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_key_costs_one_of_the_rate_and_a_replay_needs_no_permit() {
    let setup = Setup::new().fake("fake").tenant("acme");
    let policy = "servers = [\"*\"]\nmax_in_flight = 1\nrate = \"3/min\"\nburst = 4";
    let gateway = setup.with_tenant("acme", policy).start().await;
    Answer::of(keyed(&gateway, "done", "raw", "{}")).await.tool_text();
    let running = tokio::spawn(Answer::of(keyed(&gateway, "k", "later", r#"{"ms":300}"#)));
    started(&gateway, "later", 1).await;
    // The only permit is taken; a replay and a retry need none.
    let replay = Answer::of(keyed(&gateway, "done", "raw", "{}")).await;
    assert!(is_replay(&replay), "{replay:?}");
    let attached = Answer::of(keyed(&gateway, "k", "later", r#"{"ms":300}"#)).await;
    assert!(is_replay(&attached), "{attached:?}");
    assert_eq!(running.await.unwrap().tool_text(), "later");
    let spent = Answer::of(keyed(&gateway, "done", "raw", "{}")).await;
    assert_eq!(said(&spent).1, "rate_limited");
    gateway.stop().await;
}

#[tokio::test]
async fn a_key_expires_with_its_ttl() {
    on_both(async |database| {
        let setup = Setup::new().with_store(&database.url).set("calls.ttl = \"1500ms\"");
        let gateway = setup.fake("fake").start().await;
        Answer::of(keyed(&gateway, "a", "raw", "{}")).await.tool_text();
        assert!(is_replay(&Answer::of(keyed(&gateway, "a", "raw", "{}")).await));
        eventually("it runs again", async || {
            let again = Answer::of(keyed(&gateway, "a", "raw", "{}")).await;
            (!is_replay(&again)).then_some(())
        })
        .await;
        assert_eq!(gateway.fake("fake").calls_of("raw").len(), 2);
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn arguments_and_results_at_rest_are_sealed_if_there_are_keys() {
    on_both(async |database| {
        let keys = "secrets.keys = [\"0123456789abcdef0123456789abcdef\"]";
        let setup = Setup::new().with_store(&database.url).set(keys).fake("fake");
        let gateway = setup.start().await;
        let word = json!({"word": "hunter2hunter2"});
        let first = Answer::of(keyed(&gateway, "a", "raw", &word)).await;
        let again = Answer::of(keyed(&gateway, "a", "raw", &word)).await;
        assert!(is_replay(&again) && again.body == first.body);
        let mut connection = AnyConnection::connect(database.url.expose()).await.unwrap();
        let mut stored = async |query: &'static str| -> String {
            sqlx::query_scalar(query).fetch_one(&mut connection).await.unwrap()
        };
        let is_sealed = |text: &str| text.starts_with('~') && !text.contains("hunter2");
        let result = stored("SELECT result FROM calls").await;
        assert!(is_sealed(&result), "{result}");
        // The arguments of a call that has not ended, and a result of several parts.
        let hold = keyed(&gateway, "b", "hold", &word).header("Prefer", "respond-async");
        assert_eq!(Answer::of(hold).await.status, 202);
        let arguments = stored("SELECT arguments FROM calls WHERE tool = 'hold'").await;
        assert!(is_sealed(&arguments), "{arguments}");
        started(&gateway, "hold", 1).await;
        gateway.call("fake", "release", "{}").await.tool_text();
        let big = json!({"bytes": 1_800_000});
        Answer::of(keyed(&gateway, "c", "big", &big)).await.tool_text();
        let part = stored("SELECT data FROM call_results WHERE part = 0").await;
        assert!(is_sealed(&part) && !part.contains(&"x".repeat(32)), "{}", &part[..100]);
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn without_the_store_only_kept_calls_are_refused() {
    let gateway = Setup::new().fake("fake").start().await;
    Answer::of(keyed(&gateway, "a", "raw", "{}")).await.tool_text();
    let file = gateway.setup().dir.path().join("trunkline.db");
    std::fs::rename(&file, file.with_extension("away")).unwrap();
    // One that had begun before is unknown, and its key stays so.
    let mut keys = (0..).map(|key| format!("b{key}"));
    let refused = async || {
        let answer = Answer::of(keyed(&gateway, &keys.next().unwrap(), "raw", "{}")).await;
        (answer.status == 503 && answer.json()["executed"] == "no").then_some(answer)
    };
    let answer = eventually("the store is away", refused).await;
    assert_eq!(said(&answer), problem(503, "store_unavailable", true, "no"));
    assert!(answer.retry_after().is_some());
    let calls = gateway.fake("fake").calls_of("raw").len();
    gateway.call("fake", "raw", "{}").await.tool_text();
    let answer = Answer::of(keyed(&gateway, "c", "raw", "{}")).await;
    assert_eq!(answer.status, 503);
    assert_eq!(gateway.fake("fake").calls_of("raw").len(), calls + 1);
    std::fs::rename(file.with_extension("away"), &file).unwrap();
    eventually("the store is back", async || {
        let answer = Answer::of(keyed(&gateway, "c", "raw", "{}")).await;
        (answer.status == 200).then_some(())
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn the_requests_own_id_is_given_back() {
    let gateway = Setup::new().fake("fake").start().await;
    for (tool, status) in [("raw", 200), ("nothing", 404)] {
        let call = gateway.post("fake", tool, "{}").header("X-Request-Id", "r-7");
        let answer = Answer::of(call).await;
        assert_eq!((answer.status, answer.header("x-request-id")), (status, "r-7"));
    }
    let call = gateway.post("fake", "raw", "{}").header("X-Request-Id", "x".repeat(200));
    assert!(!Answer::of(call).await.headers.contains_key("x-request-id"));
    let value = json!({"value": {"content": [], "isError": true}});
    let call = gateway.post("fake", "result", value).header("Trunkline-Tool-Errors", "fail");
    let answer = Answer::of(call).await;
    assert_eq!((answer.status, answer.header("trunkline-outcome")), (422, "tool_error"));
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_without_a_key_has_no_record() {
    let gateway = Setup::new().fake("fake").start().await;
    gateway.call("fake", "raw", "{}").await.tool_text();
    let calls = gateway.get("/v1/calls").await.json();
    assert_eq!(calls["calls"].as_array().unwrap().len(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn kept_calls_go_with_their_tenant() {
    on_both(async |database| {
        let setup = Setup::new().with_store(&database.url).fake("fake").without_anonymous();
        let gateway = setup.start().await;
        let (store, actor) = (database.open().await, Actor::cli("test"));
        let name = TenantName::parse("acme").unwrap();
        store.add_tenant(&actor, &name, &Policy::unlimited()).await.unwrap();
        let first = gateway.as_tenant("acme").await;
        Answer::of(keyed(&first, "k", "raw", "{}")).await.tool_text();
        assert!(is_replay(&Answer::of(keyed(&first, "k", "raw", "{}")).await));
        store.remove_tenant(&actor, &name).await.unwrap();
        store.add_tenant(&actor, &name, &Policy::unlimited()).await.unwrap();
        // Whoever has the name next has none of its calls.
        let second = gateway.as_tenant("acme").await;
        let again = Answer::of(keyed(&second, "k", "raw", "{}")).await;
        assert!(!is_replay(&again) && again.status == 200, "{again:?}");
        assert_eq!(second.get("/v1/calls").await.json()["calls"].as_array().unwrap().len(), 1);
        let mut connection = AnyConnection::connect(database.url.expose()).await.unwrap();
        eventually("the other's calls are deleted", async || {
            let left: (i64, i64) = sqlx::query_as(
                "SELECT (SELECT COUNT(*) FROM calls), (SELECT COUNT(*) FROM call_usage)",
            )
            .fetch_one(&mut connection)
            .await
            .unwrap();
            (left == (1, 1)).then_some(())
        })
        .await;
        gateway.stop().await;
    })
    .await;
}
