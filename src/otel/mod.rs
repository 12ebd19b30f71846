//! Exports traces, metrics and the call log to an OpenTelemetry collector (OTLP, as protobuf over
//! HTTP). `OTEL_*` variables configure it (`config::Otel`).
//!
//! ```text
//! events ──▶ Spans ────▶ queue ──▶ spans ──┐
//! call log ────────────▶ queue ──▶ logs ───┼──▶ Exporter::send: retries, counts what is lost
//! Metrics, every minute ─────────▶ metrics ┘
//! ```
//!
//! - [`queue`]: a bounded queue with a share for each tenant
//! - [`spans`], [`logs`], [`metrics`]: the three signals, as protobuf
//! - [`message`]: writes protobuf; [`attributes`]: what all signals have
//! - [`export`]: sends a request, and sends it again
//!
//! No call waits for any of this: a record that finds its queue full is dropped, and counted.

mod attributes;
mod export;
mod logs;
mod message;
mod metrics;
mod queue;
mod spans;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use prometheus::proto::MetricFamily;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::attributes::Resource;
pub use self::export::ExportError;
use self::export::Exporter;
use self::queue::RecordQueue;
use crate::config::{Batching, Otel, OtlpTarget};
use crate::events::call_log::WriteEntry;
use crate::events::span::{Sampler, Share};
use crate::events::{Event, Events, Kinds, Sink};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::tasks::restart_on_panic;

/// The end of the process waits this long for the last records to be sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads all metrics.
pub type ReadMetrics = Arc<dyn Fn() -> Vec<MetricFamily> + Send + Sync>;

/// The signals that are exported.
pub struct Telemetry {
    traces: Option<Arc<Records>>,
    logs: Option<Arc<Records>>,
    metrics: Option<Arc<MetricsTask>>,
    stop: CancellationToken,
}

/// The exports that run.
pub struct RunningTelemetry {
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// Spans or log records on their way.
struct Records {
    queue: RecordQueue,
    exporter: Exporter,
    delay: Duration,
    batch_max: usize,
    encode: fn(&Resource, Vec<queue::Record>) -> (Vec<u8>, u64),
    resource: Arc<Resource>,
}

struct MetricsTask {
    exporter: Exporter,
    resource: Arc<Resource>,
    interval: Duration,
}

/// Returns the sampler that the configuration asks for.
pub fn sampler(config: &Otel) -> Sampler {
    let sampling = &config.sampling;
    let share = Share::of(f64::from(sampling.per_billion) / 1e9);
    match (&config.traces, sampling.is_parent_based) {
        (None, _) => Sampler::Off,
        (Some(_), true) => Sampler::ParentBased(share),
        (Some(_), false) => Sampler::Own(share),
    }
}

impl Telemetry {
    /// Has the configured signals heard from now on.
    pub fn open(config: &Otel, metrics: &Metrics, events: &Events) -> Result<Self, ExportError> {
        let resource = Arc::new(Resource::new(&config.resource));
        let stop = CancellationToken::new();
        let exporter = |target: &OtlpTarget, signal| {
            Exporter::new(target, metrics.telemetry(signal), signal, stop.clone())
        };
        let records = |target: &Option<OtlpTarget>, signal, batching: &Batching, encode| {
            let Some(target) = target else { return Ok(None) };
            Ok(Some(Arc::new(Records {
                queue: RecordQueue::new(batching.queue_max, metrics.telemetry(signal).dropped),
                exporter: exporter(target, signal)?,
                delay: batching.delay,
                batch_max: batching.batch_max,
                encode,
                resource: resource.clone(),
            })))
        };
        let traces = records(&config.traces, "traces", &config.spans, spans::request)?;
        let logs = records(&config.logs, "logs", &config.records, logs::request)?;
        let metrics = match &config.metrics {
            None => None,
            Some(target) => {
                let (exporter, resource) = (exporter(target, "metrics")?, resource.clone());
                let interval = config.metrics_interval;
                Some(Arc::new(MetricsTask { exporter, resource, interval }))
            }
        };
        if let Some(traces) = &traces {
            events.attach(Kinds::TRACED, traces.clone());
        }
        Ok(Self { traces, logs, metrics, stop })
    }

    /// Returns the place of the call log's entries, if logs are exported.
    pub fn log(&self) -> Option<WriteEntry> {
        let logs = self.logs.clone()?;
        Some(Box::new(move |entry| logs.queue.push(entry.tenant(), queue::Record::of(entry))))
    }

    /// Starts the exports. `metrics` count panics, `read` reads what is exported.
    pub fn start(self, metrics: &Metrics, read: ReadMetrics) -> RunningTelemetry {
        let tasks = TaskTracker::new();
        let spawn = |name, mut run: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>| {
            let metrics = metrics.clone();
            tasks.spawn(async move {
                restart_on_panic(&metrics, name, &mut run, |run| run()).await;
            });
        };
        for records in [self.traces, self.logs].into_iter().flatten() {
            let run = move || {
                let records = records.clone();
                async move { records.run().await }.boxed()
            };
            spawn("otlp", Box::new(run));
        }
        if let Some(task) = self.metrics {
            let run = move || {
                let (task, read) = (task.clone(), read.clone());
                async move { task.run(&read).await }.boxed()
            };
            spawn("otlp", Box::new(run));
        }
        tasks.close();
        RunningTelemetry { stop: self.stop, tasks }
    }
}

impl RunningTelemetry {
    /// Sends what is left, after the last call.
    pub async fn stop(self) {
        self.stop.cancel();
        let _ = timeout(FLUSH_TIMEOUT, self.tasks.wait()).await;
    }
}

impl Sink for Records {
    fn hear(&self, event: &Event) {
        let tenant = match event {
            Event::CallEnded(call) => &call.tenant,
            Event::RequestEnded(request) => &request.tenant,
            _ => return,
        };
        self.queue.push(tenant, queue::Record::Event(event.clone()));
    }
}

impl Records {
    /// Sends records until stopped, and then what is left.
    async fn run(&self) {
        let stop = self.exporter.stop();
        while !stop.is_cancelled() {
            let filled = self.queue.wait(self.batch_max, self.delay);
            if stop.run_until_cancelled(filled).await.is_some() {
                self.send(self.queue.take(self.batch_max)).await;
            }
        }
        let mut sending = vec![];
        loop {
            let batch = self.queue.take(self.batch_max);
            if batch.is_empty() {
                break;
            }
            sending.push(self.send(batch));
        }
        join_all(sending).await;
    }

    async fn send(&self, records: Vec<queue::Record>) {
        let (request, count) = (self.encode)(&self.resource, records);
        self.exporter.send(request, count).await;
    }
}

impl MetricsTask {
    /// Sends all metrics at each interval until stopped, and then once more.
    async fn run(&self, read: &ReadMetrics) {
        let stop = self.exporter.stop();
        loop {
            let is_last = stop.run_until_cancelled(sleep(self.interval)).await.is_none();
            let (request, points) = metrics::request(&self.resource, &read());
            self.exporter.send(request, points).await;
            if is_last {
                return;
            }
        }
    }
}
