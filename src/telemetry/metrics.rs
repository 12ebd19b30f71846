//! Every metric, declared in one place. A field's comment is its help text on `/metrics` and in
//! `docs/reference/metrics.md`.
//!
//! Handles are looked up once, when a server becomes known ([`ServerMetrics`]) or a tool is called
//! first ([`ToolMetrics`](super::tools::ToolMetrics)); a call that ends well then only touches
//! atomics.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::proto::MetricFamily;
use prometheus::{
    CounterVec, Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

pub use super::metric_groups::{
    ConfigMetrics, ConnectionMetrics, ServerMetrics, SharedLimitsMetrics, TelemetryMetrics,
    UpMetrics, UsageMetrics,
};
use super::process::Process;
use super::tenants::TenantLabels;
use super::tools::{NO_NAME, ToolsMetrics, USUAL_FAILURES};

/// From well under a local tool's time to the longest deadline that a caller can name.
const SECONDS_BUCKETS: [f64; 18] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
    30.0, 120.0, 600.0, 3600.0,
];

/// One metric as the reference lists it (`docs/reference/metrics.md`).
pub struct Description {
    /// Name, without the suffixes that a histogram adds.
    pub name: &'static str,
    /// Prometheus type: `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Labels, in the order of the declaration.
    pub labels: &'static [&'static str],
    /// Help text, as on `/metrics`.
    pub help: &'static str,
}

/// Declares the metrics struct; the `#[doc]` lines of a field become the metric's help.
macro_rules! metrics {
    ($(
        $(#[doc = $help:literal])+
        $field:ident: $type:ident = $name:literal [$($label:literal),*];
    )*) => {
        /// All metrics of one gateway.
        #[derive(Clone, Debug)]
        pub struct Metrics {
            registry: Registry,
            /// By their server's name.
            tools: Arc<Mutex<HashMap<String, Arc<ToolsMetrics>>>>,
            pub(super) tenants: Arc<TenantLabels>,
            pub(super) process: Process,
            $( $(#[doc = $help])+ pub(super) $field: $type, )*
        }

        impl Metrics {
            /// A fresh set, all at zero.
            pub fn new() -> Self {
                let registry = Registry::new();
                $(
                    let help = concat!($($help),+).trim();
                    let $field = metrics!(@make $type, $name, help, &[$($label),*]);
                    registry.register(Box::new($field.clone())).expect("names are unique");
                )*
                let (tools, tenants) = (Arc::default(), Arc::default());
                let process = Process::started_now();
                Self { registry, tools, tenants, process, $($field),* }
            }

            /// Describes every metric, in the order of the declaration.
            pub fn descriptions() -> Vec<Description> {
                vec![$(Description {
                    name: $name,
                    kind: metrics!(@kind $type),
                    labels: &[$($label),*],
                    help: concat!($($help),+).trim(),
                }),*]
            }
        }
    };
    (@make HistogramVec, $name:literal, $help:expr, $labels:expr) => {
        HistogramVec::new(
            HistogramOpts::new($name, $help).buckets(SECONDS_BUCKETS.to_vec()),
            $labels,
        )
        .expect("the declaration is valid")
    };
    (@make $type:ident, $name:literal, $help:expr, $labels:expr) => {
        $type::new(Opts::new($name, $help), $labels).expect("the declaration is valid")
    };
    (@kind HistogramVec) => { "histogram" };
    (@kind IntGaugeVec) => { "gauge" };
    (@kind GaugeVec) => { "gauge" };
    (@kind IntCounterVec) => { "counter" };
    (@kind CounterVec) => { "counter" };
}

metrics! {
    /// Calls by outcome: ok, tool_error, cancelled, or an error code.
    calls: IntCounterVec = "trunkline_calls_total" ["server", "tool", "outcome"];
    /// Seconds that a call waited before it was handed to its server.
    queue_seconds: HistogramVec = "trunkline_call_queue_seconds" ["server"];
    /// Seconds from handing a call to its server until the answer.
    backend_seconds: HistogramVec = "trunkline_call_backend_seconds" ["server", "tool"];
    /// Seconds from the arrival of a call until it ended.
    total_seconds: HistogramVec = "trunkline_call_seconds" ["server", "tool"];
    /// Calls that wait for their server or run there.
    in_flight: IntGaugeVec = "trunkline_calls_in_flight" ["server"];
    /// Seconds for which the call that has waited longest for its server waits now; 0 if none does.
    longest_wait: GaugeVec = "trunkline_longest_wait_seconds" ["server"];
    /// Calls of a tenant that reached a tool, by outcome: ok, tool_error or error. The busiest 50
    /// tenants have a label of their own, until they are removed; `other` stands for the rest, and
    /// for all without `ops_listen`.
    tenant_calls: IntCounterVec = "trunkline_tenant_calls_total" ["tenant", "outcome"];
    /// Calls that a tenant's own limits refused.
    tenant_refusals: IntCounterVec = "trunkline_tenant_refusals_total" ["tenant"];
    /// Calls of a tenant that wait or run, those that their callers have left included.
    tenant_in_flight: IntGaugeVec = "trunkline_tenant_calls_in_flight" ["tenant"];
    /// Calls of a tenant that wait for their server.
    tenant_waiting: IntGaugeVec = "trunkline_tenant_calls_waiting" ["tenant"];
    /// 1 while an instance of the server is ready, else 0. Servers with `sharing = "shared"` only.
    up: IntGaugeVec = "trunkline_server_up" ["server"];
    /// Unix time since which no instance of the server is ready; failed starts do not change it.
    /// 0 while one is ready, and for a lazy server that was never called.
    /// Servers with `sharing = "shared"` only.
    down_since: IntGaugeVec = "trunkline_server_down_since_timestamp_seconds" ["server"];
    /// Tools of a pinned server that are held back until their definition is approved.
    held_tools: IntGaugeVec = "trunkline_held_tools" ["server"];
    /// Starts of instances after the first of each: after failures, failed starts included, and by
    /// `recycle`.
    restarts: IntCounterVec = "trunkline_server_restarts_total" ["server"];
    /// Instances of the server that are ready. Servers with `sharing = "shared"` only.
    instances: IntGaugeVec = "trunkline_server_instances" ["server"];
    /// Calls that the ready instances take at once, as `adaptive` has set it.
    /// Servers with `sharing = "shared"` only.
    slots: IntGaugeVec = "trunkline_server_slots" ["server"];
    /// Instances at which no call has ended for the server's `timeout` (or `max_timeout`), although
    /// calls wait for a slot. Servers with `sharing = "shared"` only.
    stalled: IntGaugeVec = "trunkline_server_stalled_instances" ["server"];
    /// Tenants whose calls run in a process of their own, because the server has ended during them.
    /// Servers with `sharing = "shared"` only.
    suspects: IntGaugeVec = "trunkline_server_suspects" ["server"];
    /// Tenants whose calls to the server are refused, because they kept ending it.
    /// Servers with `sharing = "shared"` only.
    quarantined_tenants: IntGaugeVec = "trunkline_server_quarantined_tenants" ["server"];
    /// Ready instances that look serial: while calls run, they answer no ping within 100 ms. Each
    /// call there delays all tenants. Servers with `sharing = "shared"` only.
    serial: IntGaugeVec = "trunkline_server_serial_instances" ["server"];
    /// Attempts at calls after the first.
    retries: IntCounterVec = "trunkline_retries_total" ["server"];
    /// Calls cancelled after they were sent: the deadline passed, or the caller went away.
    cancelled: IntCounterVec = "trunkline_cancelled_calls_total" ["server"];
    /// Answers that nobody waits for any more, and second answers to one call.
    late_answers: IntCounterVec = "trunkline_late_answers_total" ["server"];
    /// Answers with an id that was never issued: a broken server, or a forgery.
    unknown_answers: IntCounterVec = "trunkline_unknown_answers_total" ["server"];
    /// Lines of a server's standard output that were dropped, by reason: garbage or too_long.
    dropped_lines: IntCounterVec = "trunkline_dropped_lines_total" ["server", "reason"];
    /// Requests of a server to its client, refused because its connection is shared.
    refused_requests: IntCounterVec = "trunkline_refused_server_requests_total" ["server"];
    /// Answers withheld because they belonged to another call. Any value above 0 is a bug: report
    /// it.
    identity_alarms: IntCounterVec = "trunkline_identity_alarms_total" ["server"];
    /// 1 while the server of `[limits] shared` can be reached, else 0.
    shared_limits_up: IntGaugeVec = "trunkline_shared_limits_up" [];
    /// Calls judged by this replica's part of the limits, because the shared ones were out of
    /// reach.
    shared_limits_fallbacks: IntCounterVec = "trunkline_shared_limits_fallbacks_total" [];
    /// Requests of this replica for a larger lease on a shared limit, by outcome: granted, or
    /// refused at least in part.
    shared_limits_leases: IntCounterVec = "trunkline_shared_limits_leases_total" ["outcome"];
    /// Requests forwarded to the replica that owns their session, by outcome: answered, gone (that
    /// replica no longer exists), refused (it did not accept this one as a replica), broken (it
    /// ended during the request), or late.
    forwarded: IntCounterVec = "trunkline_forwarded_requests_total" ["outcome"];
    /// Cancelled requests that are unknown here and may run in another replica, by outcome: sent
    /// (to all other replicas), or refused, because their tenant had too many under way.
    cancel_notices: IntCounterVec = "trunkline_cancel_notices_total" ["outcome"];
    /// Open connections by listener (callers, operators, replicas) and by whether a request on them
    /// has authenticated: yes or no.
    connections: IntGaugeVec = "trunkline_connections" ["listener", "authenticated"];
    /// Connections that had to leave for others, by listener and reason: room (unauthenticated, and
    /// a newcomer needed its place), or share (its tenant had the most, and another needed one).
    evicted_connections: IntCounterVec =
        "trunkline_evicted_connections_total" ["listener", "reason"];
    /// Connections closed at once, because their peer had `max_connections_per_peer` already.
    refused_connections: IntCounterVec = "trunkline_refused_connections_total" ["listener"];
    /// Ended MCP sessions that were forgotten before their tokens expired, because there were too
    /// many: all sessions of their tenants that are as old end, too. Without `[replicas]` only:
    /// with it, the store is asked.
    forgotten_sessions: IntCounterVec = "trunkline_forgotten_sessions_total" [];
    /// 1 while all that the gateway reads from the store and writes to it succeeds, else 0:
    /// `/readyz` says what does not.
    store_up: IntGaugeVec = "trunkline_store_up" [];
    /// Rows of usage that the store did not accept so far. They are kept and written later.
    unwritten_usage: IntGaugeVec = "trunkline_unwritten_usage_rows" [];
    /// Calls whose usage is lost, because the store refused a value of their row.
    lost_usage: IntCounterVec = "trunkline_lost_usage_calls_total" [];
    /// Attempts to deliver callbacks by outcome: delivered, failed, or given_up, the last attempt.
    callbacks: IntCounterVec = "trunkline_callback_attempts_total" ["outcome"];
    /// Reloads of the configuration by outcome: ok, or failed, which changes nothing.
    config_reloads: IntCounterVec = "trunkline_config_reloads_total" ["outcome"];
    /// Unix time at which the configuration in force was read.
    config_loaded: IntGaugeVec = "trunkline_config_loaded_timestamp_seconds" [];
    /// Panics of the gateway's own tasks, which then began again. Any value above 0 is a bug:
    /// report it.
    task_panics: IntCounterVec = "trunkline_task_panics_total" ["task"];
    /// Bytes that are held for tenants, by budget: unsent (answers that callers have not taken),
    /// requests (bodies of requests that are not answered), or keeping (answers on their way to the
    /// store that find no room among the unsent ones).
    held_bytes: IntGaugeVec = "trunkline_held_bytes" ["budget"];
    /// Requests refused, and answers dropped, because a budget of bytes was full.
    budget_refusals: IntCounterVec = "trunkline_held_bytes_refusals_total" ["budget"];
    /// Responses that were ended because their callers took no byte for a minute.
    stuck_responses: IntCounterVec = "trunkline_stuck_responses_total" [];
    /// Notifications of a server that were dropped, because the caller did not read them in time.
    dropped_notifications: IntCounterVec = "trunkline_dropped_notifications_total" ["server"];
    /// 1, with the version of the program and the commit that it was built from, if known.
    build_info: IntGaugeVec = "trunkline_build_info" ["version", "commit"];
    /// Processor time of the gateway itself, without its servers' processes, in seconds.
    cpu_seconds: CounterVec = "process_cpu_seconds_total" [];
    /// Memory of the gateway itself that is in use, in bytes.
    resident_memory: IntGaugeVec = "process_resident_memory_bytes" [];
    /// File descriptors that the gateway has open.
    open_fds: IntGaugeVec = "process_open_fds" [];
    /// File descriptors that the gateway may have open.
    max_fds: IntGaugeVec = "process_max_fds" [];
    /// Unix time at which the gateway started.
    start_time: GaugeVec = "process_start_time_seconds" [];
    /// Events that listeners did not hear, because they did not read the ones before in time.
    lost_events: IntCounterVec = "trunkline_lost_events_total" [];
    /// Spans, log records and data points that an OpenTelemetry collector has accepted, by signal:
    /// traces, logs or metrics.
    exported_telemetry: IntCounterVec = "trunkline_exported_telemetry_total" ["signal"];
    /// Spans, log records and data points that were not exported, by signal: the collector was away
    /// for too long or rejected them, or their queue was full, which counts a call once.
    dropped_telemetry: IntCounterVec = "trunkline_dropped_telemetry_total" ["signal"];
    /// Log lines that were dropped: standard error was not read, or could not be written.
    dropped_log_lines: IntCounterVec = "trunkline_dropped_log_lines_total" [];
}

impl Metrics {
    pub fn server(&self, server: &str) -> ServerMetrics {
        let dropped = |reason| self.dropped_lines.with_label_values(&[server, reason]);
        for outcome in USUAL_FAILURES {
            self.calls.with_label_values(&[server, NO_NAME, outcome]);
        }
        ServerMetrics {
            queue_seconds: self.queue_seconds.with_label_values(&[server]),
            in_flight: self.in_flight.with_label_values(&[server]),
            restarts: self.restarts.with_label_values(&[server]),
            retries: self.retries.with_label_values(&[server]),
            cancelled: self.cancelled.with_label_values(&[server]),
            late_answers: self.late_answers.with_label_values(&[server]),
            unknown_answers: self.unknown_answers.with_label_values(&[server]),
            garbage_lines: dropped("garbage"),
            too_long_lines: dropped("too_long"),
            refused_requests: self.refused_requests.with_label_values(&[server]),
            dropped_notifications: self.dropped_notifications.with_label_values(&[server]),
            identity_alarms: self.identity_alarms.with_label_values(&[server]),
            tools: self.tools_of(server),
        }
    }

    /// Shows a shared server from now on.
    pub fn up(&self, server: &str) -> UpMetrics {
        UpMetrics {
            up: self.up.with_label_values(&[server]),
            down_since: self.down_since.with_label_values(&[server]),
            instances: self.instances.with_label_values(&[server]),
            slots: self.slots.with_label_values(&[server]),
            stalled: self.stalled.with_label_values(&[server]),
            suspects: self.suspects.with_label_values(&[server]),
            quarantined_tenants: self.quarantined_tenants.with_label_values(&[server]),
            serial: self.serial.with_label_values(&[server]),
        }
    }

    /// Hides a server that is no longer shared, or is gone: it is not down.
    pub fn forget_up(&self, server: &str) {
        let Self { up, down_since, instances, slots, stalled, serial, .. } = self;
        let (suspects, quarantined) = (&self.suspects, &self.quarantined_tenants);
        for gauge in [up, down_since, instances, slots, stalled, serial, suspects, quarantined] {
            // Missing unless it was shared once.
            let _ = gauge.remove_label_values(&[server]);
        }
    }

    /// Shows a pinned server from now on.
    pub fn held_tools(&self, server: &str) -> IntGauge {
        self.held_tools.with_label_values(&[server])
    }

    pub fn forwarded(&self, outcome: &str) -> IntCounter {
        self.forwarded.with_label_values(&[outcome])
    }

    pub fn cancel_notices(&self, outcome: &str) -> IntCounter {
        self.cancel_notices.with_label_values(&[outcome])
    }

    pub fn task_panics(&self, task: &str) -> IntCounter {
        self.task_panics.with_label_values(&[task])
    }

    pub fn dropped_log_lines(&self) -> IntCounter {
        self.dropped_log_lines.with_label_values::<&str>(&[])
    }

    pub fn stuck_responses(&self) -> IntCounter {
        self.stuck_responses.with_label_values::<&str>(&[])
    }

    pub fn forgotten_sessions(&self) -> IntCounter {
        self.forgotten_sessions.with_label_values::<&str>(&[])
    }

    pub fn store_up(&self) -> IntGauge {
        self.store_up.with_label_values::<&str>(&[])
    }

    fn tools_of(&self, server: &str) -> Arc<ToolsMetrics> {
        let new = || ToolsMetrics {
            server: server.to_owned(),
            calls: self.calls.clone(),
            backend_seconds: self.backend_seconds.clone(),
            total_seconds: self.total_seconds.clone(),
            by_name: Mutex::default(),
        };
        self.tools.lock().entry(server.to_owned()).or_insert_with(|| Arc::new(new())).clone()
    }

    /// Hides the tools of a server that is gone.
    pub fn forget_tools(&self, server: &str) {
        self.tools_of(server).forget_unless(|_| false);
        let _ = self.longest_wait.remove_label_values(&[server]);
    }

    /// Counts a call that failed before its tool was known. Names that a caller made up must not
    /// become labels: they could fill the memory.
    pub fn count_unresolved(&self, server: &str, outcome: &str) {
        self.calls.with_label_values(&[server, NO_NAME, outcome]).inc();
    }

    pub fn count_callback(&self, outcome: &str) {
        self.callbacks.with_label_values(&[outcome]).inc();
    }

    /// Reads all metrics.
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.show_process();
        self.registry.gather()
    }

    /// Renders all metrics in Prometheus' text format.
    pub fn render(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(8 * 1024);
        TextEncoder::new()
            .encode(&self.gather(), &mut text)
            .expect("writing to memory does not fail");
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[path = "tests/metrics.rs"]
mod tests;
