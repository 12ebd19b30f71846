//! Metrics that one part of the gateway counts in.

use std::sync::Arc;

use jiff::Timestamp;
use prometheus::{Histogram, IntCounter, IntGauge};

use super::metrics::Metrics;
use super::tools::ToolsMetrics;

/// The metrics of one server. [`Metrics`] describes each field.
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

/// The metrics of one signal that is exported.
#[derive(Clone, Debug)]
pub struct TelemetryMetrics {
    pub exported: IntCounter,
    pub dropped: IntCounter,
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

impl Metrics {
    /// Shows shared limits from now on.
    pub fn shared_limits(&self) -> SharedLimitsMetrics {
        let leases = |outcome| self.shared_limits_leases.with_label_values(&[outcome]);
        SharedLimitsMetrics {
            leases_granted: leases("granted"),
            leases_refused: leases("refused"),
            up: self.shared_limits_up.with_label_values::<&str>(&[]),
            fallbacks: self.shared_limits_fallbacks.with_label_values::<&str>(&[]),
        }
    }

    pub fn connections(&self, listener: &str) -> ConnectionMetrics {
        let now = |is| self.connections.with_label_values(&[listener, is]);
        let evicted = |reason| self.evicted_connections.with_label_values(&[listener, reason]);
        ConnectionMetrics {
            unauthenticated: now("no"),
            authenticated: now("yes"),
            evicted_for_room: evicted("room"),
            evicted_for_share: evicted("share"),
            refused: self.refused_connections.with_label_values(&[listener]),
        }
    }

    /// Shows a signal that is exported from now on.
    pub fn telemetry(&self, signal: &str) -> TelemetryMetrics {
        TelemetryMetrics {
            exported: self.exported_telemetry.with_label_values(&[signal]),
            dropped: self.dropped_telemetry.with_label_values(&[signal]),
        }
    }

    pub fn usage(&self) -> UsageMetrics {
        UsageMetrics {
            unwritten_rows: self.unwritten_usage.with_label_values::<&str>(&[]),
            lost_calls: self.lost_usage.with_label_values::<&str>(&[]),
        }
    }

    /// Shows the configuration that was just loaded for the first time.
    pub fn config(&self) -> ConfigMetrics {
        let loaded = self.config_loaded.with_label_values::<&str>(&[]);
        loaded.set(Timestamp::now().as_second());
        let reloads = |outcome| self.config_reloads.with_label_values(&[outcome]);
        ConfigMetrics { ok: reloads("ok"), failed: reloads("failed"), loaded }
    }
}
