//! Metrics of a server's tools.
//!
//! Tool names come from the server and may change at any time. So a tool is shown from its first
//! call until no list has it any more, and only so many tools of a server are told apart.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};

/// Calls of further tools of a server are counted together, under [`NO_NAME`].
const TOOLS_MAX: usize = 1_000;
/// Failures whose series begin at 0, with the server or the tool. Prometheus sees no increase in a
/// series that begins at 1.
pub(super) const USUAL_FAILURES: [&str; 6] = [
    "backend_error",
    "backend_exited",
    "cancelled",
    "deadline_exceeded",
    "overloaded",
    "server_unavailable",
];
/// The label for tools that are unknown, or not told apart.
pub(super) const NO_NAME: &str = "";

/// The tools of one server, shared by all of its instances.
#[derive(Debug)]
pub struct ToolsMetrics {
    pub(super) server: String,
    pub(super) calls: IntCounterVec,
    pub(super) backend_seconds: HistogramVec,
    pub(super) total_seconds: HistogramVec,
    pub(super) by_name: Mutex<HashMap<String, Arc<ToolMetrics>>>,
}

#[derive(Debug)]
pub struct ToolMetrics {
    calls: IntCounterVec,
    labels: [String; 2],
    ok: IntCounter,
    tool_error: IntCounter,
    /// By other outcomes.
    others: Mutex<HashMap<&'static str, IntCounter>>,
    backend_seconds: Histogram,
    total_seconds: Histogram,
}

impl ToolsMetrics {
    /// Shows a tool from now on. Holding the handle keeps the tool from being forgotten.
    pub fn of(&self, tool: &str) -> Arc<ToolMetrics> {
        let mut by_name = self.by_name.lock();
        let has_capacity = by_name.contains_key(tool) || by_name.len() < TOOLS_MAX;
        let name = if has_capacity { tool } else { NO_NAME };
        by_name.entry(name.to_owned()).or_insert_with(|| Arc::new(self.show(name))).clone()
    }

    fn show(&self, tool: &str) -> ToolMetrics {
        let server = self.server.as_str();
        let of_outcome =
            |outcome| (outcome, self.calls.with_label_values(&[server, tool, outcome]));
        ToolMetrics {
            calls: self.calls.clone(),
            labels: [server.to_owned(), tool.to_owned()],
            ok: self.calls.with_label_values(&[server, tool, "ok"]),
            tool_error: self.calls.with_label_values(&[server, tool, "tool_error"]),
            others: Mutex::new(USUAL_FAILURES.map(of_outcome).into()),
            backend_seconds: self.backend_seconds.with_label_values(&[server, tool]),
            total_seconds: self.total_seconds.with_label_values(&[server, tool]),
        }
    }

    /// Forgets the tools that are not listed. A tool that another list or call still holds stays
    /// until the next time; one that comes back starts at zero.
    pub fn forget_unless(&self, is_listed: impl Fn(&str) -> bool) {
        self.by_name.lock().retain(|name, tool| {
            let stays = name == NO_NAME || is_listed(name) || Arc::strong_count(tool) > 1;
            if !stays {
                self.hide(tool);
            }
            stays
        });
    }

    fn hide(&self, tool: &ToolMetrics) {
        let [server, name] = &tool.labels;
        for seconds in [&self.backend_seconds, &self.total_seconds] {
            let _ = seconds.remove_label_values(&[server, name]);
        }
        let others = tool.others.lock();
        for outcome in ["ok", "tool_error"].iter().chain(others.keys()) {
            let _ = self.calls.remove_label_values(&[server.as_str(), name, outcome]);
        }
    }
}

impl ToolMetrics {
    pub fn record(&self, outcome: &'static str, total: Duration) {
        match outcome {
            "ok" => self.ok.inc(),
            "tool_error" => self.tool_error.inc(),
            other => {
                let [server, tool] = &self.labels;
                let count = || self.calls.with_label_values(&[server.as_str(), tool, other]);
                self.others.lock().entry(other).or_insert_with(count).inc();
            }
        }
        self.total_seconds.observe(total.as_secs_f64());
    }

    pub fn record_backend(&self, backend: Duration) {
        self.backend_seconds.observe(backend.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics::Metrics;
    use super::*;

    const A_SECOND: Duration = Duration::from_secs(1);

    /// Returns the lines of `/metrics` about tools that have counted anything.
    fn lines(metrics: &Metrics) -> Vec<String> {
        let text = String::from_utf8(metrics.render()).unwrap();
        let lines = text.lines().filter(|line| line.contains("tool=") && !line.ends_with(" 0"));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn a_failure_is_an_increase_of_a_series_that_began_at_zero() {
        let metrics = Metrics::new();
        let tool = metrics.server("std").tools.of("echo");
        let text = String::from_utf8(metrics.render()).unwrap();
        for (tool, outcome) in [("", "overloaded"), ("echo", "overloaded"), ("echo", "cancelled")] {
            let series = format!("outcome=\"{outcome}\",server=\"std\",tool=\"{tool}\"}} 0");
            assert!(text.contains(&series), "{series}");
        }
        tool.record("overloaded", A_SECOND);
        let series = "trunkline_calls_total{outcome=\"overloaded\",server=\"std\",tool=\"echo\"} 1";
        assert!(lines(&metrics).contains(&series.to_owned()));
    }

    #[test]
    fn a_tool_is_forgotten_when_it_is_not_listed_any_more() {
        let metrics = Metrics::new();
        let tools = metrics.server("std").tools;
        for (name, outcome) in [("stays", "ok"), ("goes", "ok"), ("goes", "cancelled")] {
            let tool = tools.of(name);
            tool.record(outcome, A_SECOND);
            tool.record_backend(A_SECOND);
        }
        assert!(lines(&metrics).iter().any(|line| line.contains("tool=\"goes\"")));
        tools.forget_unless(|name| name == "stays");
        let left = lines(&metrics);
        assert!(!left.is_empty() && left.iter().all(|line| line.contains("tool=\"stays\"")));

        tools.of("goes").record("ok", A_SECOND);
        let anew = "trunkline_calls_total{outcome=\"ok\",server=\"std\",tool=\"goes\"} 1";
        assert!(lines(&metrics).contains(&anew.to_owned()));
    }

    #[test]
    fn a_tool_that_another_instance_of_the_server_has_is_not_forgotten() {
        let metrics = Metrics::new();
        let others = metrics.server("std").tools.of("echo");
        others.record("ok", A_SECOND);
        metrics.server("std").tools.forget_unless(|_| false);
        others.record("ok", A_SECOND);
        let both = "trunkline_calls_total{outcome=\"ok\",server=\"std\",tool=\"echo\"} 2";
        assert!(lines(&metrics).contains(&both.to_owned()));

        drop(others);
        metrics.forget_tools("std");
        assert_eq!(lines(&metrics), [""; 0]);
    }

    #[test]
    fn only_so_many_tools_of_a_server_are_told_apart() {
        let metrics = Metrics::new();
        let tools = metrics.server("std").tools;
        for number in 0..TOOLS_MAX + 10 {
            tools.of(&number.to_string()).record("ok", A_SECOND);
        }
        tools.of("0").record("ok", A_SECOND);
        metrics.server("other").tools.of("x").record("ok", A_SECOND);
        let count = |server: &str, name: &str| {
            let start = format!(
                "trunkline_calls_total{{outcome=\"ok\",server=\"{server}\",tool=\"{name}\"}} "
            );
            lines(&metrics).iter().find_map(|line| line.strip_prefix(&start).map(str::to_owned))
        };
        assert_eq!(count("std", NO_NAME).as_deref(), Some("10"));
        assert_eq!(
            (count("std", "0").as_deref(), count("std", "1").as_deref()),
            (Some("2"), Some("1"))
        );
        assert_eq!((count("std", "1000"), count("other", "x").as_deref()), (None, Some("1")));

        // There is room for new ones again.
        tools.forget_unless(|name| name == "0");
        tools.of("1000").record("ok", A_SECOND);
        assert_eq!(count("std", "1000").as_deref(), Some("1"));
        assert_eq!(count("std", NO_NAME).as_deref(), Some("10"));
    }
}
