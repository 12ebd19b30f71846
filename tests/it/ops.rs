//! The endpoints of load balancers and monitoring.

use serde_json::json;

use crate::support::{Api, RawHttp, Setup, eventually, failed, refused};

#[tokio::test]
async fn the_gateway_is_ready_when_every_server_has_been_tried() {
    let gateway = Setup::new()
        .std()
        .fake_with("slow", &["start=slow"], "")
        .fake_with("failing", &["start=fail"], "")
        .fake_with("lazy", &[], "start = \"lazy\"")
        .start_at_once()
        .await;
    let answer = gateway.readyz().await;
    assert_eq!((answer.status, answer.text().split(':').next()), (503, Some("starting")));
    let health = gateway.get("/healthz").await;
    assert_eq!((health.status, health.text().as_str()), (200, "ok\n"));
    gateway.ready().await;
    assert_eq!(gateway.server("slow").await.json()["state"], "ready");
    assert_ne!(gateway.server("failing").await.json()["state"], "ready");
    assert_eq!(gateway.server("lazy").await.json()["state"], "idle");
    gateway.stop().await;
}

/// `std` and two servers of which one does not start.
fn with_one_failing() -> Setup {
    let setup = Setup::new().std().fake_with("failing", &["start=fail"], "");
    setup.fake_with("lazy", &[], "start = \"lazy\"")
}

#[tokio::test]
async fn operators_see_which_servers_are_not_ready() {
    let gateway = with_one_failing().start().await;
    let down_since = gateway.server("failing").await.json()["down_since"].clone();
    let second = &down_since.as_str().unwrap()[..19];
    let answer = gateway.readyz().await;
    let (status, text) = (answer.status, answer.text());
    assert_eq!((status, text.lines().next(), text.lines().count()), (200, Some("ready"), 2));
    let line = text.lines().nth(1).unwrap();
    let state = line.strip_prefix("failing: ").unwrap();
    assert!(state.starts_with("backoff") || state.starts_with("quarantined"), "{text}");
    let why = format!(", down since {second}Z: it ended with exit code 3");
    assert!(line.ends_with(&why), "{line} does not end with {why}");
    gateway.stop().await;
}

#[tokio::test]
async fn callers_see_how_many_servers_are_not_ready_where_operators_have_a_port_of_their_own() {
    let gateway = with_one_failing().set("ops_listen = \"127.0.0.1:0\"").start().await;
    let answer = gateway.readyz().await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "ready\n1 of 2 servers is not\n"));
    let operator = Api::new(gateway.ops_addr.unwrap(), None);
    let text = operator.readyz().await.text();
    assert!(text.starts_with("ready\nfailing: "), "{text}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_tool_is_counted_from_its_first_call_until_its_server_has_it_no_more() {
    let gateway = Setup::new().fake("fake").start().await;
    let fake = gateway.fake("fake");
    let calls = async |tool: &str| {
        let series = format!("trunkline_call_seconds_count{{server=\"fake\",tool={tool:?}}}");
        gateway.metrics().await.value(&series)
    };
    fake.set_extra_tools("fresh");
    gateway.call("fake", "exit", "").await.problem();
    eventually("fresh", async || {
        (gateway.call("fake", "fresh", "").await.status == 200).then_some(())
    })
    .await;
    assert_eq!((calls("fresh").await, calls("raw").await), (Some(1.0), None));

    fake.set_extra_tools("");
    gateway.call("fake", "change", "").await.tool_text();
    eventually("forgotten", async || calls("fresh").await.is_none().then_some(())).await;
    // Those that it has still are not, not even by its end.
    assert_eq!((calls("exit").await, calls("change").await), (Some(1.0), Some(1.0)));
    gateway.stop().await;
}

#[tokio::test]
async fn metrics_count_what_happened() {
    let gateway = Setup::new().std().fake("fake").start().await;
    for _ in 0..3 {
        gateway.call("std", "echo", json!({"text": "x"})).await.tool_text();
    }
    gateway.call("std", "fail", json!({"message": "x"})).await;
    gateway.call("std", "no_such_tool", "").await;
    let late = gateway.call_within_ms(200, "fake", "later", json!({"ms": 600})).await;
    assert_eq!(late.problem(), failed(504, "deadline_exceeded"));
    let held = gateway.spawn_call("fake", "hold", "{}");
    let late_answers = "trunkline_late_answers_total{server=\"fake\"}";
    eventually("the late answer", async || {
        let metrics = gateway.metrics().await;
        let held = metrics.value("trunkline_calls_in_flight{server=\"fake\"}") == Some(1.0);
        (held && metrics.value(late_answers) == Some(1.0)).then_some(())
    })
    .await;

    let metrics = gateway.metrics().await;
    for (series, value) in [
        ("trunkline_calls_total{outcome=\"ok\",server=\"std\",tool=\"echo\"}", 3.0),
        ("trunkline_calls_total{outcome=\"tool_error\",server=\"std\",tool=\"fail\"}", 1.0),
        ("trunkline_calls_total{outcome=\"tool_not_found\",server=\"std\",tool=\"\"}", 1.0),
        (
            "trunkline_calls_total{outcome=\"deadline_exceeded\",server=\"fake\",tool=\"later\"}",
            1.0,
        ),
        ("trunkline_call_seconds_count{server=\"std\",tool=\"echo\"}", 3.0),
        ("trunkline_call_backend_seconds_count{server=\"std\",tool=\"echo\"}", 3.0),
        ("trunkline_call_queue_seconds_count{server=\"std\"}", 4.0),
        ("trunkline_call_seconds_bucket{server=\"fake\",tool=\"later\",le=\"0.1\"}", 0.0),
        ("trunkline_call_seconds_bucket{server=\"fake\",tool=\"later\",le=\"+Inf\"}", 1.0),
        ("trunkline_calls_in_flight{server=\"std\"}", 0.0),
        ("trunkline_server_up{server=\"std\"}", 1.0),
        ("trunkline_server_down_since_timestamp_seconds{server=\"std\"}", 0.0),
        ("trunkline_server_restarts_total{server=\"std\"}", 0.0),
        ("trunkline_cancelled_calls_total{server=\"fake\"}", 1.0),
        ("trunkline_cancelled_calls_total{server=\"std\"}", 0.0),
        ("trunkline_dropped_lines_total{reason=\"too_long\",server=\"std\"}", 0.0),
        ("trunkline_identity_alarms_total{server=\"std\"}", 0.0),
    ] {
        assert_eq!(metrics.value(series), Some(value), "{series}\n{}", metrics.0);
    }
    held.abort();
    gateway.stop().await;
}

#[tokio::test]
async fn names_that_callers_make_up_are_not_kept() {
    let gateway = Setup::new().std().start().await;
    gateway.call("std", "made_up_tool", "").await;
    gateway.call("made_up_server", "echo", "").await;
    let metrics = gateway.metrics().await;
    assert!(!metrics.0.contains("made_up"), "{}", metrics.0);
    gateway.stop().await;
}

#[tokio::test]
async fn operators_can_have_a_port_of_their_own() {
    let gateway = Setup::new().set("ops_listen = \"127.0.0.1:0\"").std().start().await;
    assert_eq!(gateway.get("/metrics").await.problem(), refused(404, "not_found"));
    let mut operator = RawHttp::connect(gateway.ops_addr.unwrap()).await;
    operator.send("GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let response = operator.response().await;
    assert!(response.contains("content-type: text/plain; version=0.0.4"), "{response}");
    assert!(response.contains("trunkline_server_up{server=\"std\"} 1"), "{response}");
    operator.send_call("/v1/servers/std/tools/uuid", "{}").await;
    assert!(operator.response().await.starts_with("HTTP/1.1 404 "));
    gateway.stop().await;
}
