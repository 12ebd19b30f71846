//! Traces, metrics and the call log, exported to an OpenTelemetry collector.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::{Value, json};

use crate::support::{
    Answer, Api, Collector, HttpServer, Mcp, Serving, Setup, attributes, eventually, in_time,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn serve(setup: Setup, collector: &Collector, env: &[(&str, &str)]) -> Serving {
    let env: Vec<_> = collector.env().into_iter().chain(env.iter().copied()).collect();
    setup.serve_with(&env).await
}

fn mcp(gateway: &Serving) -> Mcp {
    Api::new(gateway.addr, None).mcp("/mcp/fake")
}

async fn post(
    gateway: &Serving,
    tool: &str,
    arguments: &Value,
    headers: &[(&str, &str)],
) -> Answer {
    let url = format!("http://{}/v1/servers/fake/tools/{tool}", gateway.addr);
    let request = gateway.client.post(url).body(arguments.to_string());
    let request = headers.iter().fold(request, |it, (name, value)| it.header(*name, *value));
    Answer::of(request).await
}

fn of_kind(spans: &[Span], kind: SpanKind) -> Vec<Span> {
    spans.iter().filter(|span| span.kind == kind as i32).cloned().collect()
}

/// Checks that a span has these attributes.
fn assert_has(span: &Span, expected: &[(&str, Value)]) {
    let attributes = attributes(&span.attributes);
    for (name, value) in expected {
        assert_eq!(attributes.get(*name), Some(value), "`{name}` of {attributes:?}");
    }
}

fn trace_of_server(received: &Value) -> &str {
    received["params"]["_meta"]["traceparent"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_call_is_a_span_of_its_caller_and_each_attempt_is_a_span_that_its_server_is_told_of() {
    let collector = Collector::start().await;
    let safe = "retry = \"safe\"\nattempt_timeout = \"300ms\"\n";
    let gateway = serve(Setup::new().fake_with("fake", &[], safe), &collector, &[]).await;
    let steps = json!({"steps": ["hang", "answer"], "secret": "hunter2"});
    let (traceparent, baggage) = (traceparent("01"), ("baggage", "user=alice"));
    let headers = [
        ("traceparent", traceparent.as_str()),
        ("tracestate", "a=1"),
        ("trunkline-labels", "run=7"),
        baggage,
    ];
    let answer = post(&gateway, "steps", &steps, &headers).await;
    assert_eq!(answer.header("trunkline-attempts"), "2");
    let spans = collector.has_spans(3).await;
    let [server] = &of_kind(&spans, SpanKind::Server)[..] else { panic!("{spans:?}") };
    assert_eq!((hex(&server.trace_id), hex(&server.parent_span_id)), (TRACE.into(), PARENT.into()));
    assert_eq!((server.name.as_str(), server.trace_state.as_str()), ("tools/call steps", "a=1"));
    assert_eq!(server.flags, 0x301);
    assert!(server.status.is_none());
    let of_call = [
        ("mcp.method.name", json!("tools/call")),
        ("gen_ai.operation.name", json!("execute_tool")),
        ("gen_ai.tool.name", json!("steps")),
        ("trunkline.server", json!("fake")),
    ];
    assert_has(server, &of_call);
    assert_has(
        server,
        &[
            ("network.transport", json!("tcp")),
            ("network.protocol.name", json!("http")),
            ("trunkline.tenant", json!("local")),
            ("trunkline.call.id", json!(answer.header("trunkline-call-id"))),
            ("trunkline.attempts", json!(2)),
            ("trunkline.labels", json!(1)),
        ],
    );
    let [queue] = &server.events[..] else { panic!("{:?}", server.events) };
    assert_eq!(queue.name, "trunkline.queue");
    assert!(queue.time_unix_nano >= server.start_time_unix_nano);
    assert!(queue.time_unix_nano <= server.end_time_unix_nano);

    let mut attempts = of_kind(&spans, SpanKind::Client);
    attempts.sort_by_key(|span| span.start_time_unix_nano);
    let [hung, answered] = &attempts[..] else { panic!("{spans:?}") };
    for attempt in [hung, answered] {
        assert_eq!(
            (&attempt.trace_id, &attempt.parent_span_id),
            (&server.trace_id, &server.span_id)
        );
        assert_eq!(attempt.flags, 0x101);
        assert_has(attempt, &of_call);
        assert_has(
            attempt,
            &[("network.transport", json!("pipe")), ("mcp.protocol.version", json!("2025-11-25"))],
        );
    }
    assert!(hung.end_time_unix_nano - hung.start_time_unix_nano >= 300_000_000);
    assert!(hung.end_time_unix_nano <= answered.start_time_unix_nano);
    assert_has(hung, &[("error.type", json!("deadline_exceeded"))]);
    assert_eq!(hung.status.as_ref().unwrap().code, 2);
    assert!(answered.status.is_none());
    let received = gateway.fake("fake").calls_of("steps");
    for (attempt, received) in attempts.iter().zip(&received) {
        let child = format!("00-{TRACE}-{}-01", hex(&attempt.span_id));
        assert_eq!(trace_of_server(received), child);
        assert_eq!(received["params"]["_meta"]["tracestate"], "a=1");
        assert_eq!(received["params"]["_meta"]["baggage"], Value::Null);
    }
    let all = format!("{spans:?}");
    assert!(!all.contains("hunter2") && !all.contains("alice"), "{all}");
    let resource: BTreeMap<_, _> = collector.resources().pop().unwrap();
    assert_eq!(resource["service.name"], "trunkline");
}

#[tokio::test]
async fn requests_over_mcp_are_spans_by_the_conventions() {
    let collector = Collector::start().await;
    let gateway = serve(Setup::new().fake("fake"), &collector, &[]).await;
    let mcp = mcp(&gateway);
    let call = mcp.call("error", json!({"code": -32602})).meta("traceparent", traceparent("01"));
    // The one in `_meta` is the request's own.
    let other = format!("00-{}-{PARENT}-01", "f".repeat(32));
    call.header("traceparent", &other).send().await;
    let spans = collector.has_spans(2).await;
    let (server, client) = (of_kind(&spans, SpanKind::Server), of_kind(&spans, SpanKind::Client));
    assert_eq!(hex(&server[0].trace_id), TRACE);
    assert_has(&server[0], &[("mcp.protocol.version", json!("2026-07-28"))]);
    assert!(attributes(&server[0].attributes)["jsonrpc.request.id"].is_string());
    for span in [&server[0], &client[0]] {
        assert_has(
            span,
            &[("error.type", json!("-32602")), ("rpc.response.status_code", json!("-32602"))],
        );
    }
    // No call, but a request.
    mcp.ask("tools/list", json!({})).send().await;
    let spans = collector.has_spans(3).await;
    let list = spans.iter().find(|span| span.name == "tools/list").unwrap();
    assert_has(
        list,
        &[("mcp.method.name", json!("tools/list")), ("trunkline.tenant", json!("local"))],
    );
    assert!(list.status.is_none() && list.parent_span_id.is_empty());
}

#[tokio::test]
async fn a_tools_own_failure_and_a_refusal_are_errors_and_invented_tools_name_no_span() {
    let collector = Collector::start().await;
    let setup = Setup::new().std().with_tenant("acme", "servers = [\"*\"]\nrate = \"1/h\"");
    let gateway = serve(setup, &collector, &[]).await;
    gateway.call("std", "fail", json!({"message": "no"})).await;
    gateway.call("std", "invented", "{}").await;
    let key = gateway.setup().new_key("acme").await;
    let call = || gateway.client.post(format!("http://{}/v1/servers/std/tools/uuid", gateway.addr));
    for _ in 0..2 {
        Answer::of(call().bearer_auth(&key).body("{}")).await;
    }
    let spans = collector.has_spans(6).await;
    let mut seen: Vec<_> = of_kind(&spans, SpanKind::Server)
        .iter()
        .map(|span| {
            let error = attributes(&span.attributes).remove("error.type").unwrap_or_default();
            assert_eq!(error.is_string(), span.status.is_some());
            (span.name.clone(), error)
        })
        .collect();
    seen.sort_by_key(|(name, error)| (name.clone(), error.to_string()));
    let expected = [
        ("tools/call", json!("rate_limited")),
        ("tools/call", json!("tool_not_found")),
        ("tools/call fail", json!("tool_error")),
        ("tools/call uuid", Value::Null),
    ];
    assert_eq!(seen, expected.map(|(name, error)| (name.to_owned(), error)));
}

#[tokio::test]
async fn a_server_over_http_gets_the_attempts_span_in_its_headers_too() {
    for server in [HttpServer::legacy().await, HttpServer::modern().await] {
        let collector = Collector::start().await;
        let setup = Setup::new().http("fake", &server.url("/mcp"), "");
        let gateway = serve(setup, &collector, &[]).await;
        let sampled = traceparent("01");
        let headers = [("traceparent", sampled.as_str()), ("tracestate", "a=1")];
        post(&gateway, "echo", &json!({"text": "x"}), &headers).await;
        let spans = collector.has_spans(2).await;
        let client = &of_kind(&spans, SpanKind::Client)[0];
        assert_has(client, &[("network.transport", json!("tcp"))]);
        let seen = server.seen_of("tools/call").pop().unwrap();
        assert_eq!(seen.header("traceparent"), format!("00-{TRACE}-{}-01", hex(&client.span_id)));
        assert_eq!(seen.header("tracestate"), "a=1");
        assert_eq!(trace_of_server(&seen.message), seen.header("traceparent"));
        server.stop().await;
    }
}

#[tokio::test]
async fn a_caller_that_does_not_sample_keeps_its_own_span() {
    let collector = Collector::start().await;
    let gateway = serve(Setup::new().fake("fake"), &collector, &[]).await;
    let not_sampled = traceparent("00");
    let raw = || json!({});
    post(&gateway, "raw", &raw(), &[("traceparent", &not_sampled)]).await;
    let received = || gateway.fake("fake").calls_of("raw").pop().unwrap();
    assert_eq!(trace_of_server(&received()), not_sampled);
    // Nor is it exported: the next one is the first.
    let sampled = traceparent("01");
    post(&gateway, "raw", &raw(), &[("traceparent", &sampled)]).await;
    let spans = collector.has_spans(2).await;
    assert_eq!(of_kind(&spans, SpanKind::Server).len(), 1);
    assert_ne!(trace_of_server(&received()), sampled);

    let off = [("OTEL_TRACES_SAMPLER", "always_off")];
    let gateway = serve(Setup::new().fake("fake"), &collector, &off).await;
    post(&gateway, "raw", &raw(), &[("traceparent", &sampled)]).await;
    post(&gateway, "raw", &raw(), &[]).await;
    let received = gateway.fake("fake").calls_of("raw");
    let told: Vec<_> = received.iter().map(trace_of_server).collect();
    assert_eq!(told, [&sampled, ""]);
}

#[tokio::test]
async fn metrics_are_exported_under_the_names_that_prometheus_sees() {
    let collector = Collector::start().await;
    let gateway = serve(Setup::new().std(), &collector, &[]).await;
    gateway.call("std", "uuid", "{}").await;
    let calls = eventually("counted", async || {
        let Some(Data::Sum(sum)) = collector.metric("trunkline_calls_total")?.data else {
            panic!()
        };
        assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
        let is_ok = |attributes: &BTreeMap<_, Value>| attributes["outcome"] == "ok";
        let mut points = sum.data_points.into_iter();
        points.find(|it| {
            is_ok(&attributes(&it.attributes)) && it.value == Some(Number::AsDouble(1.0))
        })
    });
    let calls = calls.await;
    assert_eq!(attributes(&calls.attributes)["server"], "std");
    assert!(calls.start_time_unix_nano > 0 && calls.start_time_unix_nano < calls.time_unix_nano);
    let seconds = collector.metric("trunkline_call_seconds").unwrap();
    assert!(seconds.description.starts_with("Seconds from the arrival"));
    let Some(Data::Histogram(seconds)) = seconds.data else { panic!() };
    let point = seconds.data_points.iter().find(|point| point.count == 1).unwrap();
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
    assert_eq!(point.bucket_counts.iter().sum::<u64>(), 1);
    assert!(point.sum.unwrap() > 0.0);
    let Some(Data::Gauge(up)) = collector.metric("trunkline_server_up").unwrap().data else {
        panic!()
    };
    assert_eq!(up.data_points[0].value, Some(Number::AsDouble(1.0)));
}

#[tokio::test]
async fn the_call_log_goes_to_the_collector_in_place_of_standard_error() {
    let collector = Collector::start().await;
    let env = [("OTEL_TRACES_SAMPLER", "always_on")];
    let gateway = serve(Setup::new().std(), &collector, &env).await;
    let answer = gateway.call("std", "nope", json!({"secret": "hunter2"})).await;
    let logs = async || Some(collector.logs()).filter(|logs| !logs.is_empty());
    let log = eventually("logged", logs).await.pop().unwrap();
    assert_eq!((log.event_name.as_str(), log.severity_text.as_str()), ("trunkline.call", "WARN"));
    let of_call = attributes(&log.attributes);
    assert_eq!(of_call["trunkline.call.id"], answer.header("trunkline-call-id"));
    assert_eq!(of_call["error.type"], "tool_not_found");
    assert!(!format!("{log:?}").contains("hunter2"));
    let spans = collector.has_spans(1).await;
    assert_eq!((&log.trace_id, &log.span_id), (&spans[0].trace_id, &spans[0].span_id));
    let is_call = |line: &String| line.contains("\"target\":\"call\"");
    assert!(!gateway.log().iter().any(is_call), "{:?}", gateway.log());
}

#[tokio::test]
async fn requests_of_every_signal_have_the_headers_of_the_environment() {
    let collector = Collector::start().await;
    let env = [("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")];
    let gateway = serve(Setup::new().std(), &collector, &env).await;
    gateway.call("std", "nope", "{}").await;
    for signal in ["/v1/traces", "/v1/metrics", "/v1/logs"] {
        let request = async || collector.requests().into_iter().find(|(path, _)| path == signal);
        let (_, headers) = eventually(signal, request).await;
        assert_eq!(headers["authorization"], "Bearer abc", "{signal}");
    }
}

#[tokio::test]
async fn a_collector_that_is_away_is_asked_again_and_delays_nobody() {
    let collector = Collector::start().await;
    let env = [("OTEL_METRICS_EXPORTER", "none"), ("OTEL_LOGS_EXPORTER", "none")];
    let gateway = serve(Setup::new().std(), &collector, &env).await;
    collector.answer_next(&[503, 429]);
    gateway.call("std", "uuid", "{}").await;
    collector.has_spans(2).await;
    assert_eq!(collector.requests().len(), 3);
    // A request that can never be accepted is not sent again.
    collector.answer_next(&[400]);
    gateway.call("std", "uuid", "{}").await;
    let dropped = |count: f64| {
        let gateway = &gateway;
        async move {
            eventually("counted", async || {
                let metrics = Api::new(gateway.addr, None).metrics().await;
                let series = "trunkline_dropped_telemetry_total{signal=\"traces\"}";
                metrics.value(series).filter(|value| *value == count)
            })
            .await
        }
    };
    dropped(2.0).await;
    assert_eq!(collector.requests().len(), 4);
    gateway.logged("traces cannot be exported").await;
    collector.reject(1);
    gateway.call("std", "uuid", "{}").await;
    dropped(3.0).await;
    gateway.logged("traces are exported again").await;
    gateway.logged("the collector rejected 1 of traces").await;
}

#[tokio::test]
async fn the_last_records_are_sent_at_the_end_and_a_silent_collector_does_not_hold_it_up() {
    let collector = Collector::start().await;
    let late = [("OTEL_BSP_SCHEDULE_DELAY", "3600000"), ("OTEL_METRIC_EXPORT_INTERVAL", "3600000")];
    let mut gateway = serve(Setup::new().std(), &collector, &late).await;
    gateway.call("std", "uuid", "{}").await;
    gateway.signal(rustix::process::Signal::TERM);
    assert_eq!(gateway.ended().await, Some(0));
    assert_eq!(collector.spans().len(), 2);
    assert!(collector.metric("trunkline_calls_total").is_some());

    // A port that accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let env =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "1")];
    let mut gateway = Setup::new().std().serve_with(&env).await;
    for _ in 0..100 {
        assert_eq!(gateway.call("std", "uuid", "{}").await.status, 200);
    }
    gateway.signal(rustix::process::Signal::TERM);
    assert_eq!(in_time("ended", gateway.ended()).await, Some(0));
}

#[tokio::test]
async fn a_mistake_in_a_variable_is_named_and_ignored() {
    let collector = Collector::start().await;
    let env = [("OTEL_TRACES_SAMPLER", "sometimes"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
    let gateway = serve(Setup::new().std(), &collector, &env).await;
    gateway.logged("ignoring `OTEL_TRACES_SAMPLER`").await;
    gateway.logged("only `http/protobuf` is supported").await;
    gateway.call("std", "uuid", "{}").await;
    collector.has_spans(2).await;
}
