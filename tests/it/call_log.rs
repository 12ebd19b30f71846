//! The call log, and calls that were not kept, by their ids.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Answer, Api, Database, Gateway, Serving, Setup, eventually, trunkline};

const ACME: &str = "servers = [\"*\"]\nrate = \"1/h\"\nburst = 2";
const OTHER: &str = "servers = [\"*\"]";

fn setup() -> Setup {
    Setup::new().with_tenant("acme", ACME).with_tenant("other", OTHER).fake("fake")
}

/// Returns the lines of the call log about calls.
fn lines_of(log: &[String]) -> Vec<Value> {
    let lines = log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == "call").collect()
}

async fn logged(gateway: &Serving, call: &str) -> Value {
    eventually("logged", async || {
        lines_of(&gateway.log()).into_iter().find(|line| line["call"] == call)
    })
    .await
}

#[tokio::test]
async fn failures_are_logged_with_what_is_known_of_them_and_successes_are_not() {
    let gateway = setup().serve().await;
    let good = gateway.call("fake", "raw", "{}").await;
    assert_eq!(good.status, 200);
    let request =
        gateway.client.post(format!("http://{}/v1/servers/fake/tools/nope", gateway.addr));
    let request = request.header("x-request-id", "r-9").header("trunkline-labels", "run=7,task=a");
    let bad = Answer::of(request.body("{\"secret\":\"hunter2\"}")).await;
    assert_eq!(bad.status, 404);
    let line = logged(&gateway, bad.header("trunkline-call-id")).await;
    for (name, value) in [
        ("tenant", json!("local")),
        ("server", json!("fake")),
        ("tool", json!("nope")),
        ("outcome", json!("error")),
        ("code", json!("tool_not_found")),
        ("executed", json!("no")),
        ("attempts", json!(0)),
        ("request_id", json!("r-9")),
        ("labels", json!(["run=7", "task=a"])),
    ] {
        assert_eq!(line[name], value, "{line}");
    }
    assert!(!gateway.log().iter().any(|line| line.contains("hunter2")));
    let good = good.header("trunkline-call-id");
    assert!(!lines_of(&gateway.log()).iter().any(|line| line["call"] == *good));
}

#[tokio::test]
async fn all_calls_are_logged_to_a_file_that_is_opened_again_on_sighup() {
    let setup = setup();
    let path = setup.dir.path().join("calls.log");
    let file = format!("log.calls = \"all\"\nlog.file = {:?}", path.display().to_string());
    let gateway = setup.set(&file).serve().await;
    let read = || std::fs::read_to_string(&path).unwrap_or_default();
    let is_logged = async |answer: &Answer| {
        let id = answer.header("trunkline-call-id").to_owned();
        eventually("logged", async || read().contains(&id).then_some(())).await;
    };
    is_logged(&gateway.call("fake", "raw", "{}").await).await;
    let moved = path.with_extension("1");
    std::fs::rename(&path, &moved).unwrap();
    gateway.signal(Signal::HUP);
    eventually("opened again", async || path.exists().then_some(())).await;
    is_logged(&gateway.call("fake", "raw", "{}").await).await;
    assert_eq!(read().lines().count(), 1);
    let line: Value = serde_json::from_str(read().trim()).unwrap();
    assert_eq!((&line["outcome"], &line["executed"]), (&json!("ok"), &json!("yes")));
    assert!(line["backend_ms"].as_f64().unwrap() > 0.0, "{line}");
    assert!(lines_of(&gateway.log()).is_empty());
}

#[tokio::test]
async fn the_log_has_the_calls_of_its_level_and_never_their_arguments_or_results() {
    for (level, logged) in [("off", 0), ("failures", 1), ("all", 3)] {
        let setup = Setup::new().std();
        let path = setup.dir.path().join("calls.log");
        let file = format!("log.calls = {level:?}\nlog.file = {:?}", path.display().to_string());
        let mut gateway = setup.set(&file).serve().await;
        for (tool, argument) in [("echo", "text"), ("fail", "message"), ("nope", "text")] {
            let answer = gateway.call("std", tool, json!({argument: "hunter2"})).await;
            assert_eq!(answer.text().contains("hunter2"), tool != "nope", "{answer:?}");
        }
        gateway.signal(Signal::TERM);
        assert_eq!(gateway.ended().await, Some(0));
        let lines = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(lines.lines().count(), logged, "{level}: {lines}");
        assert!(!lines.contains("hunter2"), "{lines}");
    }
}

#[tokio::test]
async fn refusals_by_a_tenants_own_limits_fill_no_log() {
    let gateway = setup().serve().await;
    let key = gateway.setup().new_key("acme").await;
    for _ in 0..100 {
        let request =
            gateway.client.post(format!("http://{}/v1/servers/fake/tools/raw", gateway.addr));
        Answer::of(request.bearer_auth(&key).body("{}")).await;
    }
    let left_out = |log: &[String]| -> u64 {
        let lines = lines_of(log);
        lines.iter().filter_map(|line| line["left_out_own_limit"].as_u64()).sum()
    };
    eventually("told", async || {
        let log = gateway.log();
        let lines = lines_of(&log).iter().filter(|it| it["code"] == "rate_limited").count();
        (left_out(&log) + lines as u64 == 98).then_some(())
    })
    .await;
    assert!(left_out(&gateway.log()) > 0);
}

async fn found(gateway: &Gateway, key: &str, path: &str) -> Answer {
    gateway.with_key(key).get(path).await
}

#[tokio::test]
async fn a_failed_call_is_found_by_its_tenant_and_an_operator_and_by_nobody_else() {
    let gateway = setup().start().await;
    let (key, other) = (gateway.new_key("acme").await, gateway.new_key("other").await);
    let acme = gateway.with_key(&key);
    for _ in 0..2 {
        assert_eq!(acme.call("fake", "raw", "{}").await.status, 200);
    }
    let refused = acme.call("fake", "raw", "{}").await;
    assert_eq!(refused.status, 429);
    let id = refused.header("trunkline-call-id");
    let explain = refused.json()["explain"].as_str().unwrap().to_owned();
    assert_eq!(explain, format!("/v1/calls/{id}/explain"));
    // Asking is charged, too, so the tenant's own rate answers here.
    let admin = gateway.setup().new_admin_key().await;
    let record = found(&gateway, &admin, &format!("/admin/v1/calls/{id}")).await.json();
    assert_eq!((&record["tenant"], &record["code"]), (&json!("acme"), &json!("rate_limited")));

    let failed = gateway.with_key(&other).call("fake", "nope", "{}").await;
    let id = failed.header("trunkline-call-id").to_owned();
    let record = found(&gateway, &other, &format!("/v1/calls/{id}")).await.json();
    assert_eq!((&record["tool"], &record["code"]), (&json!("nope"), &json!("tool_not_found")));
    assert_eq!(record["key"], other[3..15]);
    let unknown = "0".repeat(32);
    let stranger = gateway.get(&format!("/v1/calls/{id}")).await;
    let nobody = gateway.get(&format!("/v1/calls/{unknown}")).await;
    assert_eq!((stranger.status, &stranger.body), (404, &nobody.body));
    let stranger = gateway.get(&format!("/v1/calls/{id}/explain")).await;
    assert_eq!((stranger.status, &stranger.body), (404, &nobody.body));
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_took_half_of_its_time_is_found_and_a_quick_one_is_not() {
    let gateway = Setup::new().std().start().await;
    for (ms, status) in [(2600, 200), (0, 404)] {
        let request = gateway.client.post(gateway.url("/v1/servers/std/tools/sleep"));
        let request = request.header("trunkline-timeout-ms", "5000");
        let answer = Answer::of(request.body(json!({"ms": ms}).to_string())).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let id = answer.header("trunkline-call-id");
        assert_eq!(gateway.get(&format!("/v1/calls/{id}")).await.status, status, "{ms} ms");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn calls_over_mcp_and_items_of_a_batch_are_found_too() {
    let gateway = setup().start().await;
    let said = gateway.mcp("/mcp/fake").call("nope", json!({})).send().await;
    // An unknown tool has the gateway's own id, also where it is refused before it is a call.
    let id = said.headers["trunkline-call-id"].to_str().unwrap().to_owned();
    assert_eq!(gateway.get(&format!("/v1/calls/{id}")).await.json()["tool"], "nope");

    let batch = json!({"calls": [
        {"id": "a", "server": "fake", "tool": "nope", "arguments": {}},
        {"id": "b", "server": "fake", "tool": "raw", "arguments": {}, "depends_on": ["a"]},
    ]});
    let request = gateway.client.post(gateway.url("/v1/batch")).body(batch.to_string());
    let answer = Answer::of(request).await.json();
    for (item, code) in [(0, "tool_not_found"), (1, "dependency_failed")] {
        let id = answer["results"][item]["call_id"].as_str().unwrap();
        assert_eq!(gateway.get(&format!("/v1/calls/{id}")).await.json()["code"], code, "{answer}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_another_replica_had_is_found_there() {
    let database = Database::sqlite();
    let [one, two] = crate::replicas::two(&database).await;
    let failed = one.call("fake", "nope", "{}").await;
    let id = failed.header("trunkline-call-id").to_owned();
    eventually("the replicas know each other", async || {
        let answer = two.get(&format!("/v1/calls/{id}")).await;
        (answer.status == 200 && answer.json()["code"] == "tool_not_found").then_some(())
    })
    .await;
    assert_eq!(two.get(&format!("/v1/calls/{id}/explain")).await.status, 200);
    assert_eq!(two.get(&format!("/v1/calls/{}", "0".repeat(32))).await.status, 404);
    crate::replicas::stop([one, two]).await;
}

#[tokio::test]
async fn a_refusal_is_explained_with_what_would_have_let_it_through() {
    let limited = "servers = [\"*\"]\n[tenants.acme.limits.\"fake/hold\"]\nmax_in_flight = 1";
    let gateway = Setup::new().with_tenant("acme", limited).fake("fake").serve().await;
    let key = gateway.setup().new_key("acme").await;
    let hold = || {
        let url = format!("http://{}/v1/servers/fake/tools/hold", gateway.addr);
        gateway.client.post(url).bearer_auth(&key).body("{}")
    };
    let held = tokio::spawn(Answer::of(hold()));
    let fake = gateway.fake("fake");
    eventually("held", async || fake.calls_of("hold").pop()).await;
    let refused = Answer::of(hold()).await.json();
    let link = refused["explain"].as_str().unwrap();
    let request = gateway.client.get(format!("http://{}{link}", gateway.addr));
    let explained = Answer::of(request.bearer_auth(&key)).await.json();
    let verdicts: Vec<_> = explained["limits"].as_array().unwrap().iter().collect();
    let last = verdicts.last().unwrap();
    assert_eq!((&last["scope"], &last["verdict"]), (&json!("fake/hold"), &json!("refused")));
    assert_eq!((&last["used"], &last["max"]), (&json!(1), &json!(1)), "{explained}");
    assert_eq!(explained["call"].get("tenant"), None);
    let text = "`max_in_flight` of `fake/hold` is 1: one more";
    assert_eq!(explained["would_have_passed"][0]["text"], text);

    let id = refused["explain"].as_str().unwrap().split('/').nth(3).unwrap().to_owned();
    let url = format!("http://{}", gateway.addr);
    let args = ["explain", &id, "--url", &url, "--key", &key];
    let shown = trunkline(gateway.setup(), &args).await;
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(text) && shown.contains("fake/hold"), "{shown}");
    held.abort();
}

/// Returns the explanation of a call that was answered with this status, as its tenant sees it.
async fn explained(caller: &Api, refused: &Answer, status: u16) -> Value {
    assert_eq!(refused.status, status, "{refused:?}");
    caller.get(refused.json()["explain"].as_str().expect("a link")).await.json()
}

#[tokio::test]
async fn a_call_that_waited_is_told_how_many_were_before_it_and_no_names() {
    let setup = Setup::new().with_tenant("acme", OTHER).with_tenant("bolt", OTHER);
    let setup = setup.fake_with("fake", &[], "max_in_flight = 1");
    let gateway = setup.start().await;
    let (acme, bolt) = (gateway.as_tenant("acme").await, gateway.as_tenant("bolt").await);
    let mut calls = vec![bolt.spawn_call("fake", "hold", "{}")];
    let fake = gateway.fake("fake");
    eventually("held", async || fake.calls_of("hold").pop()).await;
    for caller in [&bolt, &bolt, &acme] {
        calls.push(caller.spawn_call("fake", "raw", "{}"));
        gateway.has_in_flight("fake", calls.len() as f64).await;
    }
    let late = acme.call_within_ms(200, "fake", "raw", json!({})).await;
    let explained = explained(&acme, &late, 504).await;
    let queue = &explained["queue"];
    assert_eq!(queue["ahead"], json!({"own": 1, "others": 2}), "{explained}");
    assert_eq!(queue["slots"], json!({"all": 1, "taken": 1, "own": 0}), "{explained}");
    assert!(queue["waited_ms"].as_f64().is_some_and(|ms| ms >= 100.0), "{explained}");
    // A quarter of the slots may be kept for others: five calls need seven slots.
    let text = "`instances` of server `fake` is 1: 6 more";
    assert_eq!(explained["would_have_passed"][0]["text"], text);
    assert!(!explained.to_string().contains("bolt"), "{explained}");
    let admin = gateway.with_key(&gateway.setup().new_admin_key().await);
    let path = format!("/admin/v1/calls/{}/explain", late.header("trunkline-call-id"));
    assert_eq!(admin.get(&path).await.json()["call"]["tenant"], "acme");
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    gateway.stop().await;
}

#[tokio::test]
async fn an_attempt_is_explained_by_the_choice_of_its_instance_and_a_server_that_is_down() {
    let setup = Setup::new().fake_with("fake", &[], "instances = 2");
    let setup = setup.raw_server("gone", "command = \"/no/such/program\"");
    let gateway = setup.start().await;
    let ready = async || gateway.server("fake").await.json()["ready"].as_u64();
    eventually("two", async || (ready().await == Some(2)).then_some(())).await;
    let down = eventually("down", async || {
        Some(gateway.call("gone", "raw", "{}").await).filter(|answer| answer.status == 503)
    });
    let gone = explained(&gateway, &down.await, 503).await;
    assert_eq!((&gone["call"]["server"], &gone["attempts"]), (&json!("gone"), &json!([])));
    let held = gateway.spawn_call("fake", "hold", "{}");
    eventually("held", async || gateway.fake("fake").calls_of("hold").pop()).await;
    let late = gateway.call_within_ms(200, "fake", "hold", json!({})).await;
    let attempt = explained(&gateway, &late, 504).await["attempts"][0].clone();
    assert_eq!(attempt["why"], "the least busy of 2: 0 other calls in flight there");
    held.abort();
    gateway.stop().await;
}
