//! The metrics of the configuration.

use jiff::Timestamp;
use prometheus::{IntCounter, IntGauge};

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
