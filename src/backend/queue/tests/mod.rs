//! Turns, bounds and shares on virtual time; the lock-free part on real threads.

mod bounds;
mod line;
mod pauses;
mod rate_gate;
mod remedies;
mod reserve;
mod resize;
mod scenarios;
mod stress;
mod turns;

use tokio::task::JoinHandle;

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn tenant(name: &str) -> TenantId {
    TenantId::testing(name)
}

async fn acquire(queue: &Arc<Queue>, name: &str) -> Result<SlotPermit, QueueError> {
    acquire_within(queue, name, SECOND).await
}

async fn acquire_within(
    queue: &Arc<Queue>,
    name: &str,
    time: Duration,
) -> Result<SlotPermit, QueueError> {
    queue.enqueue(&tenant(name), 1, 0).acquire(MS, Instant::now() + time).await
}

/// Starts a call that has to wait, and returns when it waits.
async fn waiting(
    queue: &Arc<Queue>,
    name: &'static str,
    bytes: usize,
) -> JoinHandle<Result<SlotPermit, QueueError>> {
    let before = waiting_calls_of(queue, name);
    let task = tokio::spawn({
        let queue = queue.clone();
        async move {
            queue.enqueue(&tenant(name), 1, bytes).acquire(MS, Instant::now() + 3600 * SECOND).await
        }
    });
    until(|| waiting_calls_of(queue, name) != before || task.is_finished()).await;
    task
}

/// Has the server refuse a call of a tenant.
fn refuse(queue: &Arc<Queue>, name: &str, until: Instant) {
    let (queue, share) = (queue.clone(), queue.shares.of(&tenant(name)));
    TenantPause { queue, share }.pause_until(until);
}

/// Has the server refuse calls of two tenants.
fn pause_all(queue: &Arc<Queue>, until: Instant) {
    refuse(queue, "one", until);
    refuse(queue, "another", until);
}

/// Lets other tasks run until something is true.
async fn until(is_true: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if is_true() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came true");
}

fn waiting_calls(queue: &Arc<Queue>) -> usize {
    queue.backlog.lock().round_robin.calls
}

fn waiting_calls_of(queue: &Arc<Queue>, name: &str) -> usize {
    let number = queue.shares.of(&tenant(name)).number;
    queue.backlog.lock().round_robin.tenants.get(&number).map_or(0, |queue| queue.calls.len())
}

/// Asserts that nobody waits or holds a slot, and that nothing else is left behind.
fn assert_at_rest(queue: &Arc<Queue>, slots: i64) {
    let (open, reserved, waiting) = queue.slots.counts();
    assert_eq!((open + reserved, waiting), (slots, 0));
    assert_eq!(open, i64::from(queue.slots.limit()));
    for share in queue.shares.all() {
        assert!(share.is_unused(), "{share:?}");
    }
    let backlog = queue.backlog.lock();
    let round_robin = &backlog.round_robin;
    assert!(round_robin.tenants.is_empty() && backlog.contended_since.is_none());
    assert!(round_robin.is_empty());
    assert_eq!((round_robin.calls, round_robin.bytes), (0, 0));
}
