//! Metrics of tenants. The busiest get a label of their own, the others share one.
//!
//! Calls touch nothing here: tenants count for themselves, and each answer of `/metrics` adds what
//! they have counted since the one before. A tenant keeps its label until it is removed, so that
//! its series do not jump to `other` and back.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use parking_lot::Mutex;

use super::metrics::Metrics;

/// Tenants with a label of their own. The help text of `trunkline_tenant_calls_total` names it.
const TENANTS_MAX: usize = 50;
/// The label of all others. A tenant of this name is one of them.
pub const OTHER: &str = "other";

/// Counts the calls of one tenant: those in all, and those of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantCounts {
    pub ok: u64,
    pub tool_errors: u64,
    pub errors: u64,
    pub refused: u64,
    pub in_flight: i64,
    pub waiting: i64,
}

/// One tenant, as `/metrics` is told of it.
#[derive(Clone, Debug)]
pub struct TenantReading {
    /// Tells it from other tenants of its name.
    pub unique: String,
    pub name: String,
    pub counts: TenantCounts,
}

/// The tenants that were shown, by their unique texts.
#[derive(Debug, Default)]
pub(super) struct TenantLabels(Mutex<HashMap<String, Shown>>);

#[derive(Debug, Default)]
struct Shown {
    name: String,
    has_label: bool,
    counts: TenantCounts,
}

impl TenantCounts {
    fn calls(&self) -> u64 {
        self.ok + self.tool_errors + self.errors + self.refused
    }
}

impl Shown {
    fn label(&self) -> &str {
        if self.has_label { &self.name } else { OTHER }
    }
}

impl Metrics {
    /// Shows all tenants that there are now.
    pub fn show_tenants(&self, mut tenants: Vec<TenantReading>) {
        let mut shown = self.tenants.0.lock();
        self.forget_tenants(&mut shown, &tenants);
        // The busiest first, for the labels that are free.
        tenants.sort_by_key(|tenant| Reverse(tenant.counts.calls()));
        let mut free = TENANTS_MAX - shown.values().filter(|shown| shown.has_label).count();
        let mut now: BTreeMap<&str, (i64, i64)> = BTreeMap::from([(OTHER, (0, 0))]);
        for TenantReading { unique, name, counts } in &tenants {
            let shown = shown.entry(unique.clone()).or_default();
            if !shown.has_label && free > 0 && counts.calls() > 0 && name != OTHER {
                (shown.has_label, shown.name) = (true, name.clone());
                free -= 1;
                // Its series begin at zero, so that Prometheus sees its first calls as an increase.
                self.add_calls(name, counts, counts);
            } else {
                self.add_calls(shown.label(), &shown.counts, counts);
                shown.counts = *counts;
            }
            let label = if shown.has_label { name } else { OTHER };
            let (in_flight, waiting) = now.entry(label).or_default();
            *in_flight += counts.in_flight;
            *waiting += counts.waiting;
        }
        for (label, (in_flight, waiting)) in now {
            self.tenant_in_flight.with_label_values(&[label]).set(in_flight);
            self.tenant_waiting.with_label_values(&[label]).set(waiting);
        }
    }

    fn add_calls(&self, label: &str, before: &TenantCounts, now: &TenantCounts) {
        for (outcome, before, now) in [
            ("ok", before.ok, now.ok),
            ("tool_error", before.tool_errors, now.tool_errors),
            ("error", before.errors, now.errors),
        ] {
            let calls = self.tenant_calls.with_label_values(&[label, outcome]);
            calls.inc_by(now.saturating_sub(before));
        }
        let refusals = self.tenant_refusals.with_label_values(&[label]);
        refusals.inc_by(now.refused.saturating_sub(before.refused));
    }

    /// Hides tenants that are gone. Whoever gets their name next begins at zero.
    fn forget_tenants(&self, shown: &mut HashMap<String, Shown>, tenants: &[TenantReading]) {
        let there: HashSet<&str> = tenants.iter().map(|tenant| tenant.unique.as_str()).collect();
        shown.retain(|unique, shown| {
            let stays = there.contains(unique.as_str());
            if !stays && shown.has_label {
                let name = shown.name.as_str();
                for outcome in ["ok", "tool_error", "error"] {
                    let _ = self.tenant_calls.remove_label_values(&[name, outcome]);
                }
                let _ = self.tenant_refusals.remove_label_values(&[name]);
                for gauge in [&self.tenant_in_flight, &self.tenant_waiting] {
                    let _ = gauge.remove_label_values(&[name]);
                }
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(name: &str, generation: u32, ok: u64) -> TenantReading {
        let counts = TenantCounts { ok, in_flight: 1, ..TenantCounts::default() };
        TenantReading { unique: format!("{name}@{generation}"), name: name.to_owned(), counts }
    }

    /// Returns the calls that ended well, by label.
    fn calls(metrics: &Metrics) -> BTreeMap<String, u64> {
        let text = String::from_utf8(metrics.render()).unwrap();
        let start = "trunkline_tenant_calls_total{outcome=\"ok\",tenant=\"";
        let series = text.lines().filter_map(|line| line.strip_prefix(start)?.split_once("\"} "));
        series.map(|(label, value)| (label.to_owned(), value.parse().unwrap())).collect()
    }

    #[test]
    fn the_busiest_have_labels_and_keep_them() {
        let metrics = Metrics::new();
        let many = |calls: fn(u64) -> u64| {
            let numbers = 0..TENANTS_MAX as u64 + 10;
            numbers.map(|number| reading(&format!("t{number}"), 1, calls(number))).collect()
        };
        metrics.show_tenants(many(|number| number + 1));
        let first = calls(&metrics);
        assert_eq!((first.len(), first["other"], first["t10"]), (TENANTS_MAX + 1, 55, 0));
        assert!(!first.contains_key("t9"));
        metrics.show_tenants(many(|number| number + 1));
        assert_eq!((calls(&metrics)["other"], calls(&metrics)["t10"]), (55, 11));

        // Others are busier now, and no label moves.
        metrics.show_tenants(many(|number| 1000 + number));
        let second = calls(&metrics);
        assert_eq!(second.keys().collect::<Vec<_>>(), first.keys().collect::<Vec<_>>());
        assert_eq!((second["t10"], second["other"]), (1010, 10_045));
        let text = String::from_utf8(metrics.render()).unwrap();
        assert!(text.contains("trunkline_tenant_calls_in_flight{tenant=\"other\"} 10\n"));
    }

    #[test]
    fn a_tenant_that_gets_the_name_of_another_begins_at_zero() {
        let metrics = Metrics::new();
        let show = |tenants: &[TenantReading]| {
            metrics.show_tenants(tenants.to_vec());
            metrics.show_tenants(tenants.to_vec());
        };
        show(&[reading("acme", 1, 5), reading("idle", 1, 0)]);
        assert_eq!(calls(&metrics), [("acme".to_owned(), 5), (OTHER.to_owned(), 0)].into());
        show(&[reading("acme", 2, 2)]);
        assert_eq!(calls(&metrics)["acme"], 2);
        metrics.show_tenants(vec![]);
        assert!(!calls(&metrics).contains_key("acme"));
    }

    #[test]
    fn a_tenant_called_other_is_one_of_the_others() {
        let metrics = Metrics::new();
        metrics.show_tenants(vec![reading(OTHER, 1, 5)]);
        metrics.show_tenants(vec![]);
        assert_eq!(calls(&metrics), [(OTHER.to_owned(), 5)].into());
    }
}
