//! A run that takes calls, and the reasons why it stops. One that is well is replaced all the same
//! when it is due (`recycle`).

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rand::RngExt;
use tokio::time::{Instant, sleep};

use super::CHECK_EVERY;
use crate::backend::connection::CloseReason;
use crate::backend::instance::pool::Load;
use crate::backend::instance::run::Run;
use crate::backend::{Backend, Ready};
use crate::config::Recycle;

/// Measuring memory reads every process of the machine. Also, a run that uses too much from its
/// start is not replaced all the time.
const MEASURE_EVERY: Duration = Duration::from_secs(15);

/// Runs that began together do not end together: each ends earlier by up to this part of `age`.
const AGE_SPREAD: f64 = 0.1;

pub(super) struct ServingRun {
    /// Without its tools: those of its start would be kept as long as it runs.
    pub(super) run: Run,
    /// With the tools that it has now.
    pub(super) ready: ArcSwap<Ready>,
    pub(super) load: Arc<Load>,
    pub(super) since: Instant,
    /// The age at which it is recycled.
    pub(super) lifetime: Option<Duration>,
    /// No recycling before this time.
    pub(super) stays_until: Option<Instant>,
}

impl ServingRun {
    pub(super) fn new(backend: &Backend, mut run: Run) -> Self {
        let ready = Arc::new(run.ready.without_tools());
        let ready = ArcSwap::new(std::mem::replace(&mut run.ready, ready));
        let load = Load::new(backend.config.max_in_flight, backend.config.adaptive);
        let lifetime = lifetime(&backend.config.recycle);
        Self { run, ready, load, since: Instant::now(), lifetime, stays_until: None }
    }

    /// Waits until the run is due for recycling; says why.
    pub(super) async fn due(&self, recycle: &Recycle) -> String {
        tokio::select! {
            why = used_up(recycle.calls, self.lifetime, &self.load, self.since) => why,
            why = too_large(recycle.memory, &self.run) => why,
            () = self.load.asked_to_replace() => "an operator asked for it".to_owned(),
        }
    }
}

/// Why a run takes no more calls.
pub(super) enum StopReason {
    Stopped,
    /// The run ended, or had to be ended.
    Failed(CloseReason),
    /// The connection is lost; calls in flight may go on.
    Disconnected(String),
    /// The run is well, and due for recycling.
    Recycled(String),
}

impl StopReason {
    pub(super) fn failure(&self) -> Option<String> {
        match self {
            Self::Failed(end) => Some(end.to_string()),
            Self::Disconnected(reason) => Some(reason.clone()),
            Self::Stopped | Self::Recycled(_) => None,
        }
    }
}

/// Draws the age at which one run is recycled, at most `recycle.age`.
fn lifetime(recycle: &Recycle) -> Option<Duration> {
    recycle.age.map(|age| age.mul_f64(1.0 - rand::rng().random_range(0.0..=AGE_SPREAD)))
}

async fn used_up(
    calls: Option<u64>,
    lifetime: Option<Duration>,
    load: &Load,
    since: Instant,
) -> String {
    if calls.is_none() && lifetime.is_none() {
        return pending().await;
    }
    loop {
        if let Some(calls) = calls.filter(|calls| load.begun() >= *calls) {
            return format!("it has had {calls} calls");
        }
        if lifetime.is_some_and(|lifetime| since.elapsed() >= lifetime) {
            return format!("it is {} s old", since.elapsed().as_secs());
        }
        sleep(CHECK_EVERY).await;
    }
}

async fn too_large(limit: Option<u64>, run: &Run) -> String {
    let Some(limit) = limit else { return pending().await };
    loop {
        sleep(MEASURE_EVERY).await;
        if let Some(memory) = run.memory().await.filter(|memory| *memory >= limit) {
            return format!("it uses {} MiB of memory", memory >> 20);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn runs_that_began_together_go_one_after_another_and_none_gets_too_old() {
        let (began, hour) = (Instant::now(), Duration::from_secs(60 * 60));
        let recycle = Recycle { age: Some(hour), ..Recycle::default() };
        let mut runs = JoinSet::new();
        for _ in 0..8 {
            let lifetime = lifetime(&recycle);
            runs.spawn(async move {
                used_up(None, lifetime, &Load::new(1, false), began).await;
                began.elapsed()
            });
        }
        let gone = runs.join_all().await;
        let (first, last) = (gone[0], gone[7]);
        assert!(first >= hour * 9 / 10 && last <= hour + CHECK_EVERY, "{gone:?}");
        assert!(last - first > Duration::from_secs(10), "{gone:?}");
    }
}
