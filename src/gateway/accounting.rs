//! Counts each call once, for metrics and for its tenant's usage, however it ends.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Call, CallError, Reply};
use crate::backend::Backend;
use crate::backend::instance::tools::Tool;
use crate::common::usage::Counts;
use crate::protocol::mcp::results::ResultKind;
use crate::telemetry::metrics::Metrics;
use crate::tenants::Tenant;

/// The accounting of one call. Dropped without [`Accounting::finish`], it counts a cancelled call.
pub(super) struct Accounting<'a> {
    metrics: &'a Metrics,
    tenant: &'a Tenant,
    arrived: Instant,
    /// Bytes of the request.
    size: usize,
    backend: Option<Arc<Backend>>,
    target: Target,
    finished: bool,
}

/// The target of the call, once it is known to exist: invented names must not become labels.
enum Target {
    Unknown,
    Tool(Arc<Tool>),
    Method(&'static str),
}

/// Keeps the call in the gauge of calls in flight until dropped.
pub(super) struct InFlightGauge(prometheus::IntGauge);

impl<'a> Accounting<'a> {
    pub(super) fn new(metrics: &'a Metrics, tenant: &'a Tenant, call: &Call) -> Self {
        let (arrived, size) = (call.arrived, call.size);
        let (backend, target) = (None, Target::Unknown);
        Self { metrics, tenant, arrived, size, backend, target, finished: false }
    }

    pub(super) fn at_backend(&mut self, backend: &Arc<Backend>) -> InFlightGauge {
        self.backend = Some(backend.clone());
        let gauge = backend.metrics().in_flight.clone();
        gauge.inc();
        InFlightGauge(gauge)
    }

    pub(super) fn at_tool(&mut self, tool: &Arc<Tool>) {
        self.target = Target::Tool(tool.clone());
    }

    pub(super) fn at_method(&mut self, method: &'static str) {
        self.target = Target::Method(method);
    }

    pub(super) fn finish(mut self, outcome: &Result<Reply, CallError>) {
        self.finished = true;
        match outcome {
            Ok(reply) => {
                self.count(reply.kind.as_str());
                self.meter(Some(reply));
            }
            // A call that the tenant's own limits refused is not part of its usage.
            Err(error) if error.is_own_limit() => {
                self.count(error.code());
                self.tenant.meter.add_refused();
            }
            Err(error) => self.failed(error.code()),
        }
    }

    fn failed(&self, outcome: &'static str) {
        self.count(outcome);
        self.meter(None);
    }

    /// Counts the outcome in the metrics.
    fn count(&self, outcome: &'static str) {
        match (&self.backend, &self.target) {
            (Some(backend), Target::Tool(tool)) => {
                tool.metrics(backend.metrics()).record(outcome, self.arrived.elapsed());
            }
            (backend, _) => {
                let server = backend.as_ref().map_or("", |backend| backend.id().as_str());
                self.metrics.count_unresolved(server, outcome);
            }
        }
    }

    /// Adds the call to the tenant's usage.
    fn meter(&self, reply: Option<&Reply>) {
        let target = match &self.target {
            Target::Tool(tool) => tool.name(),
            Target::Method(method) => method,
            Target::Unknown => return,
        };
        let Some(backend) = &self.backend else { return };
        self.tenant.meter.add(backend.id(), target, self.counts(reply));
    }

    fn counts(&self, reply: Option<&Reply>) -> Counts {
        let once = Counts { calls: 1, bytes_in: self.size as u64, ..Counts::default() };
        let Some(reply) = reply else { return Counts { errors: 1, ..once } };
        Counts {
            tool_errors: u64::from(reply.kind == ResultKind::ToolError),
            queue_us: reply.queue.as_micros() as u64,
            backend_us: reply.backend.as_micros() as u64,
            bytes_out: reply.result.len() as u64,
            ..once
        }
    }
}

impl Drop for Accounting<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.failed("cancelled");
        }
    }
}

impl Drop for InFlightGauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}
