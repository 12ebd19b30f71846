//! Whether a server that is well is to be replaced all the same (`recycle`).

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::pool::Load;
use super::run::Run;
use crate::config::Recycle;

/// How often to look.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same for memory, which takes a look at every process of the machine. One that uses too much from the beginning is
/// not replaced all the time.
const WEIGH_EVERY: Duration = Duration::from_secs(15);

/// Done when the run has served its time; says why.
pub(super) async fn worn(recycle: &Recycle, run: &Run, load: &Load, since: Instant) -> String {
    tokio::select! {
        why = used_up(recycle, load, since) => why,
        why = too_large(recycle.memory, run) => why,
    }
}

async fn used_up(recycle: &Recycle, load: &Load, since: Instant) -> String {
    if recycle.calls.is_none() && recycle.age.is_none() {
        return pending().await;
    }
    loop {
        if let Some(calls) = recycle.calls.filter(|calls| load.begun() >= *calls) {
            return format!("it has had {calls} calls");
        }
        if recycle.age.is_some_and(|age| since.elapsed() >= age) {
            return format!("it is {} s old", since.elapsed().as_secs());
        }
        sleep(LOOK_EVERY).await;
    }
}

async fn too_large(most: Option<u64>, run: &Run) -> String {
    let Some(most) = most else { return pending().await };
    loop {
        sleep(WEIGH_EVERY).await;
        if let Some(memory) = run.memory().await.filter(|memory| *memory >= most) {
            return format!("it uses {} MiB of memory", memory >> 20);
        }
    }
}
