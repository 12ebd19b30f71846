//! An OpenTelemetry collector, which reads by the official definitions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Response, Uri};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use prost::Message;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::eventually;

pub struct Collector {
    endpoint: String,
    played: Arc<Played>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Played {
    requests: Mutex<Vec<(String, HeaderMap)>>,
    resources: Mutex<Vec<BTreeMap<String, Value>>>,
    spans: Mutex<Vec<Span>>,
    logs: Mutex<Vec<LogRecord>>,
    metrics: Mutex<Vec<Metric>>,
    /// The next answers; afterwards it accepts.
    statuses: Mutex<VecDeque<u16>>,
    rejected: Mutex<i64>,
}

/// Returns attributes by their names.
pub fn attributes(pairs: &[KeyValue]) -> BTreeMap<String, Value> {
    let value = |any: &Any| match any {
        Any::StringValue(text) => json!(text),
        Any::IntValue(number) => json!(number),
        Any::DoubleValue(number) => json!(number),
        Any::ArrayValue(list) => json!(list.values.len()),
        other => panic!("{other:?}"),
    };
    let pair = |pair: &KeyValue| {
        let any = pair.value.as_ref().unwrap().value.as_ref().unwrap();
        (pair.key.clone(), value(any))
    };
    pairs.iter().map(pair).collect()
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let played = Arc::<Played>::default();
        let app = Router::new().fallback(take).with_state(played.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { endpoint, played, serving }
    }

    /// The variables that have a gateway send everything here, at once.
    pub fn env(&self) -> Vec<(&str, &str)> {
        vec![
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &self.endpoint),
            ("OTEL_BSP_SCHEDULE_DELAY", "1"),
            ("OTEL_BLRP_SCHEDULE_DELAY", "1"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "50"),
        ]
    }

    /// Answers the next requests with these statuses.
    pub fn answer_next(&self, statuses: &[u16]) {
        self.played.statuses.lock().extend(statuses);
    }

    /// Rejects so many spans of each request.
    pub fn reject(&self, spans: i64) {
        *self.played.rejected.lock() = spans;
    }

    /// Paths and headers of all requests.
    pub fn requests(&self) -> Vec<(String, HeaderMap)> {
        self.played.requests.lock().clone()
    }

    pub fn resources(&self) -> Vec<BTreeMap<String, Value>> {
        self.played.resources.lock().clone()
    }

    pub fn spans(&self) -> Vec<Span> {
        self.played.spans.lock().clone()
    }

    pub fn logs(&self) -> Vec<LogRecord> {
        self.played.logs.lock().clone()
    }

    /// The latest of each metric.
    pub fn metric(&self, name: &str) -> Option<Metric> {
        self.played.metrics.lock().iter().rev().find(|metric| metric.name == name).cloned()
    }

    pub async fn has_spans(&self, count: usize) -> Vec<Span> {
        let spans = async || Some(self.spans()).filter(|spans| spans.len() >= count);
        eventually("exported", spans).await
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn take(
    State(played): State<Arc<Played>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<axum::body::Body> {
    played.requests.lock().push((uri.path().to_owned(), headers));
    let status = played.statuses.lock().pop_front().unwrap_or(200);
    let mut answer = vec![];
    if status == 200 {
        match uri.path() {
            "/v1/traces" => {
                let request = ExportTraceServiceRequest::decode(body).unwrap();
                for of_resource in request.resource_spans {
                    let resource = of_resource.resource.unwrap();
                    played.resources.lock().push(attributes(&resource.attributes));
                    let spans = of_resource.scope_spans.into_iter().flat_map(|it| it.spans);
                    played.spans.lock().extend(spans);
                }
                let rejected_spans = *played.rejected.lock();
                let error_message = "no room".to_owned();
                let partial = ExportTracePartialSuccess { rejected_spans, error_message };
                let partial_success = (rejected_spans > 0).then_some(partial);
                answer = ExportTraceServiceResponse { partial_success }.encode_to_vec();
            }
            "/v1/logs" => {
                let request = ExportLogsServiceRequest::decode(body).unwrap();
                let scopes = request.resource_logs.into_iter().flat_map(|it| it.scope_logs);
                played.logs.lock().extend(scopes.flat_map(|it| it.log_records));
            }
            "/v1/metrics" => {
                let request = ExportMetricsServiceRequest::decode(body).unwrap();
                let scopes = request.resource_metrics.into_iter().flat_map(|it| it.scope_metrics);
                played.metrics.lock().extend(scopes.flat_map(|it| it.metrics));
            }
            other => panic!("{other}"),
        }
    }
    Response::builder().status(status).body(answer.into()).unwrap()
}
