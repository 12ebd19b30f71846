//! Writes the report: one page of Markdown with figures.

use std::fmt::{Display, Write};
use std::time::Duration;

use anyhow::Error;

/// One case.
pub struct Case {
    number: u8,
    title: &'static str,
    lines: Vec<String>,
    failed: bool,
    took: Duration,
}

impl Case {
    /// Nothing is known of it yet.
    pub fn new(number: u8, title: &'static str) -> Self {
        Self { number, title, lines: vec![], failed: false, took: Duration::ZERO }
    }

    /// A figure that nothing is asked of.
    pub fn note(&mut self, what: &str, seen: impl Display) {
        self.lines.push(format!("{what}: {seen}"));
    }

    /// A figure, and whether it is good.
    pub fn check(&mut self, what: &str, seen: impl Display, aim: impl Display, is_good: bool) {
        let verdict = if is_good { "" } else { " **FAIL**" };
        self.lines.push(format!("{what}: **{seen}** ({aim}){verdict}"));
        self.failed |= !is_good;
    }

    /// Fails unless nothing was found.
    pub fn none(&mut self, what: &str, count: usize) {
        self.check(what, count, "none", count == 0);
    }

    /// Fails unless the count is exact.
    pub fn all(&mut self, what: &str, count: usize, of: usize) {
        self.check(what, count, format!("of {of}"), count == of);
    }

    /// Fails if the time is longer.
    pub fn within(&mut self, what: &str, took: Duration, most: Duration) {
        let aim = format!("at most {}", seconds(most));
        self.check(what, seconds(took), aim, took <= most);
    }

    /// Notes that a case could not be carried out to its end.
    pub fn broke_off(&mut self, error: &Error) {
        self.lines.push(format!("it broke off: {error:#} **FAIL**"));
        self.failed = true;
    }

    /// How long all of it took.
    pub fn took(&mut self, time: Duration) {
        self.took = time;
    }

    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Describes the outcome in one line.
    pub fn headline(&self) -> String {
        let verdict = if self.failed { "FAIL" } else { "pass" };
        let Self { number, title, .. } = self;
        format!("{number}. {title}: {verdict}, {}", seconds(self.took))
    }

    /// Its part of the page.
    fn text(&self) -> String {
        let mut text = format!("## {}\n\n", self.headline());
        for line in &self.lines {
            let _ = writeln!(text, "- {line}");
        }
        text
    }
}

/// A time as one reads it.
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// The whole page.
pub fn page(cases: &[Case], took: Duration) -> String {
    let failed = cases.iter().filter(|case| case.has_failed()).count();
    let verdict = match failed {
        0 => format!("all {} cases pass", cases.len()),
        failed => format!("{failed} of {} cases FAIL", cases.len()),
    };
    let mut text = format!("# End to end: {verdict}, {}\n", seconds(took));
    for case in cases {
        let _ = write!(text, "\n{}", case.text());
    }
    text
}
