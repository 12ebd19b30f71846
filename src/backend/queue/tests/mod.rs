//! Turns, bounds and shares, on virtual time; and the lock-free part, on real threads.

mod bounds;
mod rate_gate;
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
    TenantId::parse(name).unwrap()
}

async fn enter(queue: &Queue, name: &str) -> Result<Permit, QueueError> {
    enter_within(queue, name, SECOND).await
}

async fn enter_within(queue: &Queue, name: &str, time: Duration) -> Result<Permit, QueueError> {
    queue.line_up(&tenant(name), 1, 0).slot(MS, Instant::now() + time).await
}

/// A call that has to wait, and does so already.
async fn waiting(
    queue: &Arc<Queue>,
    name: &'static str,
    bytes: usize,
) -> JoinHandle<Result<Permit, QueueError>> {
    let before = in_line_of(queue, name);
    let task = tokio::spawn({
        let queue = queue.clone();
        async move {
            queue.line_up(&tenant(name), 1, bytes).slot(MS, Instant::now() + 3600 * SECOND).await
        }
    });
    until(|| in_line_of(queue, name) != before || task.is_finished()).await;
    task
}

/// Lets others go on until something is true.
async fn until(is_true: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if is_true() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came true");
}

fn in_line(queue: &Queue) -> usize {
    queue.inner.waiting.lock().line.calls
}

fn in_line_of(queue: &Queue, name: &str) -> usize {
    let number = queue.inner.shares.of(&tenant(name)).number;
    queue.inner.waiting.lock().line.tenants.get(&number).map_or(0, |waiting| waiting.calls.len())
}

/// Nobody waits or holds anything, and nothing else is left of those who did.
fn assert_at_rest(queue: &Queue, slots: i64) {
    let inner = &queue.inner;
    let (open, reserved, waiting) = inner.slots.counts();
    assert_eq!((open + reserved, waiting), (slots, 0));
    assert_eq!(open, i64::from(inner.slots.limit()));
    for share in inner.shares.all() {
        assert!(share.is_unused(), "{share:?}");
    }
    let waiting = inner.waiting.lock();
    assert!(waiting.line.tenants.is_empty() && waiting.since.is_none());
    assert_eq!((waiting.line.calls, waiting.line.bytes, waiting.line.tenants_waiting()), (0, 0, 0));
}
