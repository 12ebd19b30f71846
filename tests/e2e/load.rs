//! Callers that go on until they are told to stop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::caller::Caller;
use crate::calls::{Call, Outcome};
use crate::docker::eventually;

/// The time for any number of calls that is waited for.
const REACHED_WITHIN: Duration = Duration::from_secs(60);

/// The work of a caller: its n-th call.
pub type Work = fn(u64) -> Call;

/// Calls that are being made.
pub struct Load {
    stop: CancellationToken,
    right: Arc<AtomicU64>,
    callers: JoinSet<Seen>,
}

#[derive(Default)]
pub struct Seen {
    pub calls: u64,
    pub failures: Vec<Failure>,
    /// The longest that a call took.
    pub longest: Duration,
}

/// A call that did not get its answer.
pub struct Failure {
    pub caller: usize,
    pub began: Instant,
    pub ended: Instant,
    pub outcome: Outcome,
}

impl Load {
    /// Each caller makes one call after another.
    pub fn start(callers: Vec<(Caller, Work)>) -> Self {
        let mut load =
            Self { stop: CancellationToken::new(), right: Arc::default(), callers: JoinSet::new() };
        for (n, (caller, work)) in callers.into_iter().enumerate() {
            let (stop, right) = (load.stop.clone(), load.right.clone());
            load.callers.spawn(go_on(n, caller, work, stop, right));
        }
        load
    }

    /// How many calls have got their answer.
    pub fn right(&self) -> u64 {
        self.right.load(Ordering::Relaxed)
    }

    /// Waits until so many more have.
    pub async fn more(&self, calls: u64) -> Result<()> {
        let wanted = self.right() + calls;
        let what = format!("{calls} further calls");
        eventually(&what, REACHED_WITHIN, async || (self.right() >= wanted).then_some(())).await
    }

    /// No further calls; those under way go on.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Stops the callers and waits for their calls.
    pub async fn end(self) -> Result<Seen> {
        self.stop();
        let mut all = Seen::default();
        for seen in self.callers.join_all().await {
            all.calls += seen.calls;
            all.longest = all.longest.max(seen.longest);
            all.failures.extend(seen.failures);
        }
        Ok(all)
    }
}

impl Seen {
    /// How many of the failures are such.
    pub fn count(&self, is_such: impl Fn(&Failure) -> bool) -> usize {
        self.failures.iter().filter(|failure| is_such(failure)).count()
    }

    /// How the failures were told.
    pub fn kinds(&self) -> String {
        kinds(self.failures.iter().map(|failure| &failure.outcome))
    }
}

/// Every kind there is, and how often.
pub fn kinds<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> String {
    let mut counts = BTreeMap::new();
    for outcome in outcomes {
        *counts.entry(outcome.kind()).or_insert(0) += 1;
    }
    let shown: Vec<_> = counts.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
    if shown.is_empty() { "nothing".to_owned() } else { shown.join(", ") }
}

async fn go_on(
    caller_number: usize,
    caller: Caller,
    work: Work,
    stop: CancellationToken,
    right: Arc<AtomicU64>,
) -> Seen {
    let mut seen = Seen::default();
    // Each begins elsewhere in what is to be done.
    let mut n = caller_number as u64;
    while !stop.is_cancelled() {
        let began = Instant::now();
        let outcome = caller.call(&work(n)).await;
        let ended = Instant::now();
        n += 1;
        seen.calls += 1;
        seen.longest = seen.longest.max(ended - began);
        match outcome {
            Outcome::Right => drop(right.fetch_add(1, Ordering::Relaxed)),
            outcome => seen.failures.push(Failure { caller: caller_number, began, ended, outcome }),
        }
    }
    seen
}
