//! Metrics that others count, and that are read for each answer of `/metrics`.

use std::time::Duration;

use super::metrics::Metrics;

impl Metrics {
    /// Shows a budget of bytes: what is held now, and how often there was no room.
    pub fn show_budget(&self, budget: &str, held: usize, refused: u64) {
        let held = i64::try_from(held).unwrap_or(i64::MAX);
        self.held_bytes.with_label_values(&[budget]).set(held);
        let refusals = self.budget_refusals.with_label_values(&[budget]);
        refusals.inc_by(refused.saturating_sub(refusals.get()));
    }

    /// Shows how many events listeners have lost in all.
    pub fn show_lost_events(&self, lost: u64) {
        let shown = self.lost_events.with_label_values::<&str>(&[]);
        shown.inc_by(lost.saturating_sub(shown.get()));
    }

    /// Shows for how long the call that has waited longest for a server has waited.
    pub fn show_longest_wait(&self, server: &str, wait: Duration) {
        self.longest_wait.with_label_values(&[server]).set(wait.as_secs_f64());
    }
}
