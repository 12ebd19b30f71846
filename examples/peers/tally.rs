//! Counts the answers, the failures and the time they took.

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::request::Verdict;

/// Longer than any call may take.
const LATENCY_MAX_US: u64 = 100_000_000;

pub struct Tally {
    begin: Instant,
    end: Instant,
    /// In microseconds.
    latencies: Histogram<u64>,
    wrong: u64,
    failed: u64,
    /// The first failure and the first wrong answer.
    first: [Option<String>; 2],
    last_answer: Instant,
    /// The longest time in which no call was answered.
    longest_gap: Duration,
}

impl Tally {
    pub fn new(begin: Instant) -> Result<Self> {
        Ok(Self {
            begin,
            end: begin,
            latencies: Histogram::new_with_max(LATENCY_MAX_US, 3)?,
            wrong: 0,
            failed: 0,
            first: [None, None],
            last_answer: begin,
            longest_gap: Duration::ZERO,
        })
    }

    pub fn count(&mut self, verdict: Verdict, took: Duration) {
        match verdict {
            Verdict::Own => {
                let now = Instant::now();
                self.longest_gap = self.longest_gap.max(now - self.last_answer);
                self.last_answer = now;
                let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                self.latencies.saturating_record(micros);
            }
            Verdict::Failed(why) => {
                self.failed += 1;
                self.first[0].get_or_insert(why);
            }
            Verdict::Wrong(what) => {
                self.wrong += 1;
                self.first[1].get_or_insert(what);
            }
        }
    }

    /// Notes that the calls have ended.
    pub fn end(&mut self) {
        self.end = Instant::now();
        self.longest_gap = self.longest_gap.max(self.end - self.last_answer);
    }

    pub fn to_json(&self) -> Value {
        let seconds = (self.end - self.begin).as_secs_f64();
        let answered = self.latencies.len();
        let millis = |quantile| self.latencies.value_at_quantile(quantile) as f64 / 1000.0;
        let short = |text: &Option<String>| {
            text.as_ref().map(|text| text.chars().take(300).collect::<String>())
        };
        json!({
            "answered": answered,
            "seconds": seconds,
            "calls_per_s": answered as f64 / seconds,
            "p50_ms": millis(0.5),
            "p99_ms": millis(0.99),
            "max_ms": self.latencies.max() as f64 / 1000.0,
            "wrong": self.wrong,
            "failed": self.failed,
            "longest_gap_ms": self.longest_gap.as_secs_f64() * 1000.0,
            "since_last_answer_ms": (self.end - self.last_answer).as_secs_f64() * 1000.0,
            "first_failure": short(&self.first[0]),
            "first_wrong": short(&self.first[1]),
        })
    }
}
