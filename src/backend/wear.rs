//! Whether a server that is well is to be replaced all the same (`recycle`).

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::pool::Load;
use super::run::Run;
use crate::config::Recycle;

/// How often to look.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Done when the run has served its time; says why.
pub(super) async fn worn(recycle: &Recycle, run: &Run, load: &Load, since: Instant) -> String {
    if *recycle == Recycle::default() {
        return pending().await;
    }
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        if let Some(calls) = recycle.calls.filter(|calls| load.begun() >= *calls) {
            return format!("it has had {calls} calls");
        }
        if recycle.age.is_some_and(|age| since.elapsed() >= age) {
            return format!("it is {} s old", since.elapsed().as_secs());
        }
        if let Some(most) = recycle.memory
            && let Some(memory) = run.memory().filter(|memory| *memory >= most)
        {
            return format!("it uses {} MiB of memory", memory >> 20);
        }
    }
}
