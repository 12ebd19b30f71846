//! Counts a call once, however it ends.

use std::sync::Arc;

use tokio::time::Instant;

use super::{CallError, Reply};
use crate::backend::Backend;
use crate::backend::instance::tools::Tool;
use crate::protocol::mcp::results::ResultKind;
use crate::store::Counts;
use crate::telemetry::metrics::Metrics;
use crate::tenants::Tenant;

/// Follows one call; what it does not learn by [`Record::finish`] it records as cancelled when dropped.
pub(super) struct Record<'a> {
    metrics: &'a Metrics,
    tenant: &'a Tenant,
    arrived: Instant,
    /// Bytes of the request.
    size: usize,
    server: Option<Arc<Backend>>,
    asked: Asked,
    finished: bool,
}

/// What was asked for, as far as it is known to exist: names that a caller made up are not kept.
enum Asked {
    Unknown,
    Tool(Arc<Tool>),
    Method(&'static str),
}

/// Holds the gauge of calls in flight up.
pub(super) struct InFlight(prometheus::IntGauge);

impl<'a> Record<'a> {
    pub(super) fn new(
        metrics: &'a Metrics,
        tenant: &'a Tenant,
        arrived: Instant,
        size: usize,
    ) -> Self {
        let (server, asked) = (None, Asked::Unknown);
        Self { metrics, tenant, arrived, size, server, asked, finished: false }
    }

    pub(super) fn at_server(&mut self, server: &Arc<Backend>) -> InFlight {
        self.server = Some(server.clone());
        let gauge = server.metrics().in_flight.clone();
        gauge.inc();
        InFlight(gauge)
    }

    pub(super) fn at_tool(&mut self, tool: &Arc<Tool>) {
        self.asked = Asked::Tool(tool.clone());
    }

    pub(super) fn at_method(&mut self, method: &'static str) {
        self.asked = Asked::Method(method);
    }

    pub(super) fn finish(mut self, outcome: &Result<Reply, CallError>) {
        self.finished = true;
        match outcome {
            Ok(reply) => {
                self.count(reply.kind.as_str());
                self.meter(Some(reply));
            }
            // Whichever of its limits it was, and whether or not the tool was known by then: it was never a call.
            Err(error) if error.is_own_limit() => self.count(error.code()),
            Err(error) => self.failed(error.code()),
        }
    }

    fn failed(&self, outcome: &'static str) {
        self.count(outcome);
        self.meter(None);
    }

    /// For monitoring.
    fn count(&self, outcome: &'static str) {
        match (&self.server, &self.asked) {
            (Some(server), Asked::Tool(tool)) => {
                tool.metrics(server.metrics()).record(outcome, self.arrived.elapsed());
            }
            (server, _) => {
                let server = server.as_ref().map_or("", |server| server.id().as_str());
                self.metrics.count_unresolved(server, outcome);
            }
        }
    }

    /// For the tenant.
    fn meter(&self, reply: Option<&Reply>) {
        let asked = match &self.asked {
            Asked::Tool(tool) => tool.name(),
            Asked::Method(method) => method,
            Asked::Unknown => return,
        };
        let Some(server) = &self.server else { return };
        self.tenant.meter.add(server.id(), asked, self.counts(reply));
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

impl Drop for Record<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.failed("cancelled");
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
