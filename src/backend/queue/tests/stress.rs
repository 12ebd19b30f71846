//! Many threads at once: nothing is lost, and nobody ever holds too much.

use std::sync::atomic::{AtomicU32, AtomicUsize};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::task::{JoinSet, yield_now};

use super::*;

pub(super) const SLOTS: usize = 8;
const TENANTS: usize = 6;

#[derive(Default)]
pub(super) struct Watch {
    held: [AtomicU32; TENANTS],
    all: AtomicU32,
    served: AtomicUsize,
}

/// Makes calls that hold their slot for a moment. Some stop waiting at once, some after a moment,
/// some wait for something else first.
pub(super) async fn caller(queue: Arc<Queue>, watch: Arc<Watch>, n: usize, limit: u32) {
    let mut random = StdRng::seed_from_u64(n as u64);
    let number = n % TENANTS;
    let tenant = tenant(&format!("t{number}"));
    for _ in 0..2000 {
        let mut entry = queue.enqueue(&tenant, 1 + number as u32, 10);
        if random.random_ratio(1, 10) {
            entry.wait_for(yield_now()).await.unwrap();
        }
        let wait_max = match random.random_range(0..10) {
            0 => Duration::ZERO,
            1 => Duration::from_micros(random.random_range(0..2000)),
            _ => 60 * SECOND,
        };
        let slot = entry.acquire(Duration::from_micros(50), Instant::now() + 60 * SECOND);
        let Ok(permit) = tokio::time::timeout(wait_max, slot).await else { continue };
        let permit = permit.unwrap();
        let (all, held) = (&watch.all, &watch.held[number]);
        assert!(all.fetch_add(1, Ordering::SeqCst) < SLOTS as u32, "more than there are");
        assert!(held.fetch_add(1, Ordering::SeqCst) < limit, "more than one tenant may have");
        for _ in 0..random.random_range(0..4) {
            yield_now().await;
        }
        watch.served.fetch_add(1, Ordering::Relaxed);
        held.fetch_sub(1, Ordering::SeqCst);
        all.fetch_sub(1, Ordering::SeqCst);
        drop(permit);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_between_many_threads() {
    let queue = Queue::new(SLOTS, QueueOptions::default());
    // From here on it is shared.
    drop(acquire(&queue, "t0").await.unwrap());
    drop(acquire(&queue, "t1").await.unwrap());
    let (watch, limit) = (Arc::new(Watch::default()), queue.slots.limit());
    let mut callers = JoinSet::new();
    for n in 0..60 {
        callers.spawn(caller(queue.clone(), watch.clone(), n, limit));
    }
    let all = tokio::time::timeout(50 * SECOND, callers.join_all()).await;
    assert!(all.is_ok(), "somebody waits for ever");
    assert!(watch.served.load(Ordering::Relaxed) > 60_000);
    assert_at_rest(&queue, SLOTS as i64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tenants_that_come_and_go_by_the_thousand_hold_what_they_hold() {
    let queue = Queue::new(64, QueueOptions::default());
    let mut callers = JoinSet::new();
    for n in 0..16 {
        let queue = queue.clone();
        callers.spawn(async move {
            for round in 0..300 {
                let permit = acquire(&queue, &format!("t{n}-{round}")).await.unwrap();
                yield_now().await;
                drop(permit);
            }
        });
    }
    callers.join_all().await;
    assert_at_rest(&queue, 64);
}
