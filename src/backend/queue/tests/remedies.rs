//! Generated calls that found no slot in time: with the instances that their explanation asks for,
//! they do.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::backend::queue::{Queue, QueueOptions};
use crate::common::ids::TenantId;
use crate::events::Ahead;
use crate::events::explanation::more_instances;

const REFUSALS: usize = 300;

#[derive(Clone, Debug)]
struct Made {
    at: Duration,
    takes: Duration,
    patience: Duration,
    tenant: String,
}

/// Makes the calls; returns those that had no slot by their deadline, with what was before them.
async fn make(slots: usize, calls: &[Made]) -> Vec<(usize, Ahead)> {
    let queue = Queue::new(slots, QueueOptions::default());
    let begin = Instant::now();
    let mut made = JoinSet::new();
    for (number, call) in calls.iter().cloned().enumerate() {
        let queue = queue.clone();
        made.spawn(async move {
            sleep_until(begin + call.at).await;
            let (mut ahead, deadline) = (None, Instant::now() + call.patience);
            let tenant = TenantId::testing(&call.tenant);
            let entry = queue.enqueue(&tenant, 1, 1);
            let slot = entry.acquire_or_wait(call.takes, deadline, |seen| ahead = Some(seen)).await;
            match slot {
                Ok(slot) => {
                    // Its deadline ends it, as it ends the waiting.
                    sleep_until(deadline.min(Instant::now() + call.takes)).await;
                    drop(slot);
                    None
                }
                Err(_) => Some((number, ahead.expect("it waited"))),
            }
        });
    }
    made.join_all().await.into_iter().flatten().collect()
}

#[tokio::test(start_paused = true)]
async fn with_more_instances_a_call_that_waited_in_vain_finds_a_slot() {
    let mut rng = StdRng::seed_from_u64(19);
    let (mut tried, ms) = (0, Duration::from_millis);
    while tried < REFUSALS {
        let (instances, each) = (rng.random_range(1..3), rng.random_range(1..6));
        let mut at = Duration::ZERO;
        let mut next = || {
            at += ms(rng.random_range(0..40));
            Made {
                at,
                takes: ms(rng.random_range(10..400)),
                patience: ms(rng.random_range(20..200)),
                tenant: format!("tenant-{}", rng.random_range(0..4)),
            }
        };
        let calls: Vec<_> = (0..40).map(|_| next()).collect();
        let slots = |instances: u32| (instances * each) as usize;
        for (number, ahead) in make(slots(instances), &calls).await {
            tried += 1;
            let more = more_instances(ahead, each);
            let refused = make(slots(instances + more), &calls).await;
            let is_served = refused.iter().all(|(other, _)| *other != number);
            assert!(is_served, "{number} of {calls:?}: {ahead:?}, {more} more than {instances}");
        }
    }
}
