//! The results, and how they are shown.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::drive::Tally;
use crate::target::{CpuTimes, Kind};
use crate::usage::Memory;

/// One target in one round. What could not be seen is not a number.
#[derive(Clone, Serialize)]
pub struct Measured {
    target: Kind,
    calls: f64,
    calls_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    /// Of the process that was called.
    cpu_us_per_call: f64,
    /// Of the server that the gateway runs.
    server_cpu_us_per_call: f64,
    client_cpu_us_per_call: f64,
    /// How much of the machine was busy with something else. Above a few, the other numbers are
    /// noise.
    elsewhere_percent: f64,
    rss_idle_mb: f64,
    rss_loaded_mb: f64,
    rss_peak_mb: f64,
    errors: u64,
    mismatches: u64,
    left_over: u64,
}

#[derive(Default, Serialize)]
pub struct Report {
    rounds: Vec<Measured>,
    /// The processor time of queue and accounting as a part of each call's, with a key or without.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_and_usage_us: Option<f64>,
}

/// The least part of the calls per second that must be left with keys, limits, queue and usage.
const KEPT_MIN: f64 = 0.9;

impl Measured {
    pub fn new(
        target: Kind,
        tally: &Tally,
        duration: Duration,
        (before, after): (CpuTimes, CpuTimes),
        (idle, loaded): (Option<Memory>, Option<Memory>),
    ) -> Self {
        let latencies = &tally.latencies;
        let calls = tally.calls as f64;
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0;
        let used = |of: fn(&CpuTimes) -> Option<Duration>| {
            let used = of(&after).zip(of(&before)).map(|(after, before)| after - before);
            used.map_or(f64::NAN, |used| used.as_secs_f64())
        };
        let per_call = |of| used(of) * 1e6 / calls;
        let ours =
            [used(|times| times.target), used(|times| times.server), used(|times| times.client)];
        let ours: f64 = ours.into_iter().filter(|time| !time.is_nan()).sum();
        let processors =
            std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
        let all = processors * duration.as_secs_f64();
        Self {
            target,
            calls,
            calls_per_s: calls / duration.as_secs_f64(),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: latencies.max() as f64 / 1000.0,
            cpu_us_per_call: per_call(|times| times.target),
            server_cpu_us_per_call: per_call(|times| times.server),
            client_cpu_us_per_call: per_call(|times| times.client),
            elsewhere_percent: (used(|times| times.machine) - ours) / all * 100.0,
            rss_idle_mb: idle.map_or(f64::NAN, |memory| memory.now),
            rss_loaded_mb: loaded.map_or(f64::NAN, |memory| memory.now),
            rss_peak_mb: loaded.map_or(f64::NAN, |memory| memory.peak),
            errors: tally.errors,
            mismatches: tally.mismatches,
            left_over: tally.left_over,
        }
    }

    /// The median of each number, the sum of what must not happen.
    fn median(rounds: &[&Self]) -> Option<Self> {
        let middle = |of: fn(&Self) -> f64| median(rounds.iter().copied().map(of));
        let sum = |of: fn(&Self) -> u64| rounds.iter().copied().map(of).sum();
        Some(Self {
            target: rounds.first()?.target,
            calls: middle(|it| it.calls),
            calls_per_s: middle(|it| it.calls_per_s),
            p50_us: middle(|it| it.p50_us),
            p99_us: middle(|it| it.p99_us),
            p999_us: middle(|it| it.p999_us),
            max_us: middle(|it| it.max_us),
            cpu_us_per_call: middle(|it| it.cpu_us_per_call),
            server_cpu_us_per_call: middle(|it| it.server_cpu_us_per_call),
            client_cpu_us_per_call: middle(|it| it.client_cpu_us_per_call),
            elsewhere_percent: middle(|it| it.elsewhere_percent),
            rss_idle_mb: middle(|it| it.rss_idle_mb),
            rss_loaded_mb: middle(|it| it.rss_loaded_mb),
            rss_peak_mb: middle(|it| it.rss_peak_mb),
            errors: sum(|it| it.errors),
            mismatches: sum(|it| it.mismatches),
            left_over: sum(|it| it.left_over),
        })
    }
}

impl Report {
    pub fn add(&mut self, measured: Measured) {
        self.rounds.push(measured);
    }

    pub fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    pub fn print_summary(&self) {
        for kind in [Kind::Floor, Kind::Rest, Kind::Batch, Kind::Mcp, Kind::Limited, Kind::Keyed] {
            if let Some(measured) = self.median(kind) {
                print_row("median", &measured);
            }
        }
        for (kind, with) in [
            (Kind::Rest, Kind::Floor),
            (Kind::Mcp, Kind::Floor),
            (Kind::Mcp, Kind::Rest),
            (Kind::Limited, Kind::Rest),
            (Kind::Keyed, Kind::Rest),
            (Kind::Batch, Kind::Rest),
        ] {
            self.print_comparison(kind, with);
        }
        if let (Some(apart), Some(kept)) = (self.queue_and_usage_us, self.kept()) {
            let verdict = if kept >= KEPT_MIN { "pass" } else { "FAIL" };
            println!();
            println!("queue and usage, in both         {apart:8.2} µs");
            println!("throughput    limited / rest without these {kept:.3}   {verdict}");
        }
    }

    pub fn note_apart(&mut self, queue_and_usage_us: f64) {
        self.queue_and_usage_us = Some(queue_and_usage_us);
    }

    /// The part of the calls in a second that is left with keys, limits, the queue and usage. Calls
    /// without keys and limits have the queue and usage too: without these they would take so much
    /// less.
    fn kept(&self) -> Option<f64> {
        let apart = self.queue_and_usage_us?;
        let kept = self.of(Kind::Limited).zip(self.of(Kind::Rest)).map(|(limited, rest)| {
            let without = (rest.cpu_us_per_call - apart) / rest.cpu_us_per_call;
            limited.calls_per_s / rest.calls_per_s * without
        });
        Some(median(kept))
    }

    /// Of each round on its own, so that a machine that gets faster or slower over the rounds does
    /// not matter.
    fn print_comparison(&self, kind: Kind, with: Kind) {
        let pairs = || self.of(kind).zip(self.of(with));
        if pairs().next().is_none() {
            return;
        }
        let throughput = median(pairs().map(|(it, with)| it.calls_per_s / with.calls_per_s));
        let cpu = median(pairs().map(|(it, with)| it.cpu_us_per_call / with.cpu_us_per_call));
        let p50 = median(pairs().map(|(it, with)| it.p50_us - with.p50_us));
        let (kind, with) = (kind.name(), with.name());
        println!();
        println!("throughput    {kind:>5} / {with:5}   {throughput:8.2}");
        println!("CPU per call  {kind:>5} / {with:5}   {cpu:8.2}");
        println!("p50           {kind:>5} - {with:5}   {p50:8.0} µs");
    }

    pub fn exit_code(&self) -> ExitCode {
        let is_bad = |it: &Measured| it.errors + it.mismatches > 0 || it.calls == 0.0;
        let costs_much = self.kept().is_some_and(|kept| kept.is_nan() || kept < KEPT_MIN);
        let is_bad = costs_much || self.rounds.iter().any(is_bad);
        if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    fn median(&self, target: Kind) -> Option<Measured> {
        Measured::median(&self.of(target).collect::<Vec<_>>())
    }

    fn of(&self, target: Kind) -> impl Iterator<Item = &Measured> {
        self.rounds.iter().filter(move |it| it.target == target)
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}

/// The names of what [`print_row`] shows.
pub fn print_header() {
    println!(
        "{:7} {:7} {:>8} {:>8}  {:^35}  {:^21} {:>6}  {:^18}  {:>6} {:>7}",
        "", "", "", "", "latency, µs", "CPU per call, µs", "busy", "memory, MB", "", "not"
    );
    println!(
        "{:7} {:7} {:>8} {:>8}  {:>7} {:>7} {:>8} {:>10}  {:>7} {:>6} \
         {:>6} {:>6}  {:>5} {:>6} {:>5}  {:>6} {:>7}",
        "round",
        "target",
        "calls",
        "calls/s",
        "p50",
        "p99",
        "p99.9",
        "max",
        "target",
        "server",
        "client",
        "else",
        "idle",
        "loaded",
        "peak",
        "errors",
        "its own"
    );
}

/// One line of the table. The memory is the target's.
pub fn print_row(round: &str, it: &Measured) {
    let target = it.target.name();
    let number = |value: f64| if value.is_nan() { "-".to_owned() } else { format!("{value:.1}") };
    print!("{round:7} {target:7} {:>8.0} {:>8.0}  ", it.calls, it.calls_per_s);
    print!("{:>7.0} {:>7.0} {:>8.0} {:>10.0}  ", it.p50_us, it.p99_us, it.p999_us, it.max_us);
    let cpu = [it.cpu_us_per_call, it.server_cpu_us_per_call, it.client_cpu_us_per_call];
    let [target, server, client] = cpu.map(number);
    print!("{target:>7} {server:>6} {client:>6} {:>5.0}%  ", it.elsewhere_percent);
    let [idle, loaded, peak] = [it.rss_idle_mb, it.rss_loaded_mb, it.rss_peak_mb].map(number);
    println!("{idle:>5} {loaded:>6} {peak:>5}  {:>6} {:>7}", it.errors, it.mismatches);
    if it.left_over > 0 {
        println!("{:8}{} calls were due and never sent: the rate is too high", "", it.left_over);
    }
}
