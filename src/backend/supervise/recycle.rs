//! Whether a run that is well is to be replaced all the same (`recycle`).

use std::future::pending;
use std::time::Duration;

use rand::RngExt;
use tokio::time::{Instant, sleep};

use super::CHECK_EVERY;
use super::serving_run::ServingRun;
use crate::backend::instance::pool::Load;
use crate::backend::instance::run::Run;
use crate::config::Recycle;

/// Measuring memory reads every process of the machine. Also, a run that uses too much from its
/// start is not replaced all the time.
const MEASURE_EVERY: Duration = Duration::from_secs(15);

/// Runs that began together do not end together: each ends earlier by up to this part of `age`.
const AGE_SPREAD: f64 = 0.1;

/// Draws the age at which one run is recycled, at most `recycle.age`.
pub(super) fn lifetime(recycle: &Recycle) -> Option<Duration> {
    recycle.age.map(|age| age.mul_f64(1.0 - rand::rng().random_range(0.0..=AGE_SPREAD)))
}

/// Waits until a run is due for recycling; says why.
pub(super) async fn due(recycle: &Recycle, serving: &ServingRun) -> String {
    let ServingRun { run, load, since, lifetime, .. } = serving;
    tokio::select! {
        why = used_up(recycle.calls, *lifetime, load, *since) => why,
        why = too_large(recycle.memory, run) => why,
    }
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
