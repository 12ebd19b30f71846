//! Counts the outcomes of the storm and prints them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use trunkline::telemetry::metrics::{Metrics, ServerMetrics};

/// Faults that are described; the rest are only counted.
const FAULTS_SHOWN_MAX: usize = 8;

/// Declares the counters; the text is their name in the table.
macro_rules! tally {
    ($($name:ident = $text:literal,)*) => {
        /// Counts over all rounds of one run.
        #[derive(Default)]
        pub struct Tally {
            $(pub $name: Counter,)*
            faults: Mutex<Vec<String>>,
            faults_count: Counter,
        }

        impl Tally {
            fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$(($text, self.$name.get()),)*]
            }
        }
    };
}

tally! {
    calls = "calls",
    ok = "ok",
    tool_errors = "tool errors",
    server_errors = "server errors",
    cancelled = "cancelled",
    expired = "expired",
    ended = "child ended",
    too_large = "too large",
    protocol = "protocol errors",
    refused = "refused",
    unavailable = "unavailable (not among the calls)",
    streams = "answered by a stream (MCP)",
    progress_events = "progress events (MCP)",
    log_lines = "log lines (MCP)",
    subscriptions = "subscriptions (MCP)",
    updates = "updates of subscribed resources (MCP)",
    unread = "answers that were not read to their end (MCP, modern)",
    read_late = "answers that were read late (MCP)",
    hung_up = "given up by hanging up (MCP, modern)",
    fell_silent = "given up by saying so (MCP, legacy)",
    given_up = "given up, as the gateway counts",
    remade = "tenants removed and added again",
    removed = "calls that ended with their tenant (MCP)",
    mismatches = "mismatches",
    alarms = "identity alarms of the gateway",
    late_answers = "late answers",
    unknown_answers = "unknown answers",
    garbage_lines = "garbage lines",
    refused_requests = "refused server requests",
    restarts = "restarts",
    kills = "SIGKILLs",
}

/// A number that many add to.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Tally {
    /// Something that must not be.
    pub fn fault(&self, fault: String) {
        self.faults_count.add(1);
        let mut faults = self.faults.lock();
        if faults.len() < FAULTS_SHOWN_MAX {
            faults.push(fault);
        }
    }

    /// An answer that reached the wrong call. What that means depends on the run.
    pub fn mismatch(&self, expected: &str, got: &str) {
        self.mismatches.add(1);
        if self.mismatches.get() <= FAULTS_SHOWN_MAX as u64 {
            println!("    mismatch: the call {expected} got {got}");
        }
    }

    /// Takes over what a gateway has counted for one server.
    pub fn add(&self, server: &ServerMetrics) {
        self.alarms.add(server.identity_alarms.get());
        self.late_answers.add(server.late_answers.get());
        self.unknown_answers.add(server.unknown_answers.get());
        self.garbage_lines.add(server.garbage_lines.get());
        self.refused_requests.add(server.refused_requests.get());
        self.restarts.add(server.restarts.get());
    }

    /// Takes over how many calls were given up by their callers.
    pub fn add_given_up(&self, metrics: &Metrics) {
        let text = String::from_utf8(metrics.render()).expect("metrics are text");
        let given_up = text.lines().filter(|line| {
            line.starts_with("trunkline_calls_total{") && line.contains("outcome=\"cancelled\"")
        });
        for line in given_up {
            let count = line.rsplit(' ').next().and_then(|count| count.parse().ok());
            self.given_up.add(count.expect("a whole number"));
        }
    }

    /// How many calls got an answer whose mark could be compared.
    pub fn answered(&self) -> u64 {
        self.ok.get() + self.tool_errors.get() + self.server_errors.get()
    }

    /// How many things were wrong.
    pub fn faults(&self) -> u64 {
        self.faults_count.get()
    }

    /// One line on the way.
    pub fn progress(&self, elapsed: Duration) {
        let (calls, mismatches) = (self.calls.get(), self.mismatches.get());
        println!("  {:>5.1} s  {calls:>9} calls, {mismatches} mismatches", elapsed.as_secs_f64());
    }

    /// Everything, at the end.
    pub fn summary(&self, elapsed: Duration) {
        for (name, count) in self.rows() {
            println!("  {count:>9}  {name}");
        }
        let seconds = elapsed.as_secs_f64();
        println!("  {:>9.0}  calls/s in {seconds:.1} s", self.calls.get() as f64 / seconds);
        for fault in &*self.faults.lock() {
            println!("    fault: {fault}");
        }
        let hidden = self.faults().saturating_sub(FAULTS_SHOWN_MAX as u64);
        if hidden > 0 {
            println!("    and {hidden} faults more");
        }
    }
}
