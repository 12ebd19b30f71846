//! Metrics that one part of the gateway counts in.

use std::sync::Arc;

use jiff::Timestamp;
use prometheus::{Histogram, IntCounter, IntGauge};

use super::tools::ToolsMetrics;

/// The metrics of one server. [`Metrics`](super::metrics::Metrics) describes each field.
#[derive(Clone, Debug)]
pub struct ServerMetrics {
    pub queue_seconds: Histogram,
    pub in_flight: IntGauge,
    pub restarts: IntCounter,
    pub retries: IntCounter,
    pub cancelled: IntCounter,
    pub late_answers: IntCounter,
    pub unknown_answers: IntCounter,
    pub garbage_lines: IntCounter,
    pub too_long_lines: IntCounter,
    pub refused_requests: IntCounter,
    pub dropped_notifications: IntCounter,
    pub identity_alarms: IntCounter,
    pub tools: Arc<ToolsMetrics>,
}

/// The metrics of one shared server's readiness.
#[derive(Clone, Debug)]
pub struct UpMetrics {
    pub up: IntGauge,
    pub down_since: IntGauge,
    pub instances: IntGauge,
    pub slots: IntGauge,
    pub stalled: IntGauge,
    pub suspects: IntGauge,
    pub quarantined_tenants: IntGauge,
    pub serial: IntGauge,
}

#[derive(Clone, Debug)]
pub struct SharedLimitsMetrics {
    pub up: IntGauge,
    pub fallbacks: IntCounter,
    pub leases_granted: IntCounter,
    pub leases_refused: IntCounter,
}

/// The metrics of one listener's connections.
#[derive(Clone, Debug)]
pub struct ConnectionMetrics {
    pub unauthenticated: IntGauge,
    pub authenticated: IntGauge,
    pub evicted_for_room: IntCounter,
    pub evicted_for_share: IntCounter,
    pub refused: IntCounter,
}

#[derive(Clone, Debug)]
pub struct UsageMetrics {
    pub unwritten_rows: IntGauge,
    pub lost_calls: IntCounter,
}

#[derive(Clone, Debug)]
pub struct ConfigMetrics {
    pub ok: IntCounter,
    pub failed: IntCounter,
    pub loaded: IntGauge,
}

impl ConfigMetrics {
    pub fn note_loaded(&self) {
        self.ok.inc();
        self.loaded.set(Timestamp::now().as_second());
    }
}
