//! The bounds on waiting calls, and eviction.

use std::future::pending;

use tokio::task::JoinSet;

use super::*;

const MIB: usize = 1024 * 1024;

/// Starts so many waiting calls of one tenant.
async fn crowd(
    queue: &Arc<Queue>,
    name: &'static str,
    calls: usize,
    bytes: usize,
) -> JoinSet<Result<(), QueueError>> {
    let before = waiting_calls(queue);
    let mut tasks = JoinSet::new();
    for _ in 0..calls {
        let queue = queue.clone();
        tasks.spawn(async move {
            let entry = queue.enqueue(&tenant(name), 1, bytes);
            entry.acquire(MS, Instant::now() + 3600 * SECOND).await.map(drop)
        });
    }
    until(|| waiting_calls(queue) == before + calls).await;
    tasks
}

/// Returns how many were evicted until now.
async fn evicted(tasks: &mut JoinSet<Result<(), QueueError>>) -> usize {
    tokio::time::sleep(MS).await;
    let mut evicted = 0;
    while let Some(outcome) = tasks.try_join_next() {
        assert_eq!(outcome.unwrap(), Err(QueueError::Full));
        evicted += 1;
    }
    evicted
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_with_the_deadline_and_leaves_no_trace() {
    let queue = Queue::new(1, QueueOptions::default());
    let permit = acquire(&queue, "a").await.unwrap();
    let entry = queue.enqueue(&tenant("b"), 1, 5);
    let began = Instant::now();
    let outcome = entry.acquire(MS, began + 30 * SECOND).await;
    assert_eq!(outcome.err(), Some(QueueError::Expired));
    assert_eq!(began.elapsed(), 30 * SECOND);
    drop(permit);
    assert_at_rest(&queue, 1);
    assert!(acquire(&queue, "b").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_stops_waiting_passes_its_slot_on() {
    let queue = Queue::new(1, QueueOptions::default());
    let permit = acquire(&queue, "a").await.unwrap();
    let mut given_up = vec![];
    for _ in 0..4000 {
        given_up.push(waiting(&queue, "a", 0).await);
    }
    let last = waiting(&queue, "a", 0).await;
    // Each gets its slot before it is gone, and does not run any more.
    drop(permit);
    given_up.iter().for_each(JoinHandle::abort);
    assert!(last.await.unwrap().is_ok());
    assert_at_rest(&queue, 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_of_the_longest_queue_is_evicted_for_a_tenant_with_less() {
    let queue = Queue::new(1, QueueOptions::default());
    let permit = acquire(&queue, "flood").await.unwrap();
    let mut flood = crowd(&queue, "flood", WAITING_MAX, 0).await;
    assert_eq!(acquire(&queue, "flood").await.err(), Some(QueueError::Full));
    assert_eq!(evicted(&mut flood).await, 0);
    let quiet = waiting(&queue, "quiet", 0).await;
    assert_eq!(waiting_calls(&queue), WAITING_MAX);
    assert_eq!(evicted(&mut flood).await, 1);
    drop(permit);
    assert!(quiet.await.unwrap().is_ok());
    flood.join_all().await;
    assert_at_rest(&queue, 1);
}

#[tokio::test(start_paused = true)]
async fn when_all_have_the_same_nobody_is_evicted() {
    let queue = Queue::new(1, QueueOptions::default());
    let _permit = acquire(&queue, "first").await.unwrap();
    let mut a = crowd(&queue, "a", WAITING_MAX / 2, 0).await;
    let mut b = crowd(&queue, "b", WAITING_MAX / 2, 0).await;
    for name in ["a", "b"] {
        assert_eq!(acquire(&queue, name).await.err(), Some(QueueError::Full));
    }
    assert_eq!((evicted(&mut a).await, evicted(&mut b).await), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn as_many_calls_are_evicted_as_a_large_call_needs() {
    let queue = Queue::new(1, QueueOptions::default());
    let _permit = acquire(&queue, "flood").await.unwrap();
    let mut flood = crowd(&queue, "flood", 64, MIB).await;
    let mut many_small = crowd(&queue, "many-small", 1000, 0).await;
    let large = waiting(&queue, "quiet", 20 * MIB).await;
    assert_eq!(evicted(&mut flood).await, 20);
    assert_eq!(evicted(&mut many_small).await, 0, "they would have made no room");
    assert!(!large.is_finished());
    assert_eq!(queue.backlog.lock().round_robin.bytes, WAITING_BYTES_MAX);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_evicted_in_vain() {
    let queue = Queue::new(1, QueueOptions::default());
    let _permit = acquire(&queue, "flood").await.unwrap();
    let mut flood = crowd(&queue, "flood", 64, MIB).await;
    for bytes in [40 * MIB, WAITING_BYTES_MAX + 1] {
        let entry = queue.enqueue(&tenant("quiet"), 1, bytes);
        assert_eq!(entry.acquire(MS, Instant::now()).await.err(), Some(QueueError::Full));
    }
    assert_eq!(evicted(&mut flood).await, 0);
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_the_servers_start_are_evicted_too() {
    let queue = Queue::new(1, QueueOptions::default());
    let mut flood = JoinSet::new();
    for _ in 0..WAITING_MAX {
        let queue = queue.clone();
        flood.spawn(async move {
            queue.enqueue(&tenant("flood"), 1, 0).wait_for(pending::<()>()).await
        });
    }
    until(|| waiting_calls(&queue) == WAITING_MAX).await;
    let starting = tokio::time::sleep(SECOND);
    let mut quiet = queue.enqueue(&tenant("quiet"), 1, 0);
    assert_eq!(quiet.wait_for(starting).await, Ok(()));
    assert_eq!(waiting_calls(&queue), WAITING_MAX - 1);
    assert_eq!(flood.try_join_next().unwrap().unwrap(), Err(QueueError::Full));
    assert!(quiet.acquire(MS, Instant::now() + SECOND).await.is_ok());
    flood.shutdown().await;
    assert_at_rest(&queue, 1);
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_ready_is_not_waited_for() {
    let queue = Queue::new(1, QueueOptions::default());
    let mut entry = queue.enqueue(&tenant("a"), 1, WAITING_BYTES_MAX + 1);
    assert_eq!(entry.wait_for(async { 7 }).await, Ok(7));
    assert_eq!(entry.wait_for(pending::<()>()).await, Err(QueueError::Full), "it is too large");
}
