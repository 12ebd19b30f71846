//! Counts a call once, however it ends.

use std::sync::Arc;

use tokio::time::Instant;

use crate::backend::Backend;
use crate::backend::tools::Tool;
use crate::telemetry::metrics::Metrics;

/// Follows one call; what it does not learn by [`Record::finish`] it records as cancelled when dropped.
pub(super) struct Record<'a> {
    metrics: &'a Metrics,
    arrived: Instant,
    server: Option<Arc<Backend>>,
    tool: Option<Arc<Tool>>,
    finished: bool,
}

/// Holds the gauge of calls in flight up.
pub(super) struct InFlight(prometheus::IntGauge);

impl<'a> Record<'a> {
    pub(super) fn new(metrics: &'a Metrics, arrived: Instant) -> Self {
        Self { metrics, arrived, server: None, tool: None, finished: false }
    }

    pub(super) fn at_server(&mut self, server: &Arc<Backend>) -> InFlight {
        self.server = Some(server.clone());
        let gauge = server.metrics().in_flight.clone();
        gauge.inc();
        InFlight(gauge)
    }

    pub(super) fn at_tool(&mut self, tool: &Arc<Tool>) {
        self.tool = Some(tool.clone());
    }

    pub(super) fn finish(mut self, outcome: &str) {
        self.finished = true;
        self.write(outcome);
    }

    fn write(&self, outcome: &str) {
        match (&self.tool, &self.server) {
            (Some(tool), _) => tool.metrics.record(outcome, self.arrived.elapsed()),
            (None, Some(server)) => self.metrics.count_unresolved(server.id().as_str(), outcome),
            (None, None) => self.metrics.count_unresolved("", outcome),
        }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.write("cancelled");
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
