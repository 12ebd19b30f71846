//! How many may wait, and who gives way.

use std::future::pending;

use tokio::task::JoinSet;

use super::*;

const MIB: usize = 1024 * 1024;

/// So many calls of one tenant that wait.
async fn crowd(
    queue: &Arc<Queue>,
    name: &'static str,
    calls: usize,
    bytes: usize,
) -> JoinSet<Result<(), QueueError>> {
    let before = in_line(queue);
    let mut tasks = JoinSet::new();
    for _ in 0..calls {
        let queue = queue.clone();
        tasks.spawn(async move {
            let place = queue.line_up(&tenant(name), 1, bytes);
            place.slot(MS, Instant::now() + 3600 * SECOND).await.map(drop)
        });
    }
    until(|| in_line(queue) == before + calls).await;
    tasks
}

/// How many were sent away until now.
async fn sent_away(tasks: &mut JoinSet<Result<(), QueueError>>) -> usize {
    tokio::time::sleep(MS).await;
    let mut sent_away = 0;
    while let Some(outcome) = tasks.try_join_next() {
        assert_eq!(outcome.unwrap(), Err(QueueError::Full));
        sent_away += 1;
    }
    sent_away
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_with_the_deadline_and_leaves_no_trace() {
    let queue = Queue::new(1);
    let permit = enter(&queue, "a").await.unwrap();
    let place = queue.line_up(&tenant("b"), 1, 5);
    let began = Instant::now();
    let outcome = place.slot(MS, began + 30 * SECOND).await;
    assert_eq!(outcome.err(), Some(QueueError::Expired));
    assert_eq!(began.elapsed(), 30 * SECOND);
    drop(permit);
    assert_at_rest(&queue, 1);
    assert!(enter(&queue, "b").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_in_line_passes_its_slot_on() {
    let queue = Arc::new(Queue::new(1));
    let permit = enter(&queue, "a").await.unwrap();
    let mut given_up = vec![];
    for _ in 0..4000 {
        given_up.push(waiting(&queue, "a", 0).await);
    }
    let last = waiting(&queue, "a", 0).await;
    // Each has its slot before it is gone, and does not run any more.
    drop(permit);
    given_up.iter().for_each(JoinHandle::abort);
    assert!(last.await.unwrap().is_ok());
    assert_at_rest(&queue, 1);
}

#[tokio::test(start_paused = true)]
async fn the_longest_line_gives_way_to_a_tenant_with_less() {
    let queue = Arc::new(Queue::new(1));
    let permit = enter(&queue, "flood").await.unwrap();
    let mut flood = crowd(&queue, "flood", WAITING_MAX, 0).await;
    assert_eq!(enter(&queue, "flood").await.err(), Some(QueueError::Full));
    assert_eq!(sent_away(&mut flood).await, 0);
    let quiet = waiting(&queue, "quiet", 0).await;
    assert_eq!(in_line(&queue), WAITING_MAX);
    assert_eq!(sent_away(&mut flood).await, 1);
    drop(permit);
    assert!(quiet.await.unwrap().is_ok());
    flood.join_all().await;
    assert_at_rest(&queue, 1);
}

#[tokio::test(start_paused = true)]
async fn when_all_have_the_same_nobody_gives_way() {
    let queue = Arc::new(Queue::new(1));
    let _permit = enter(&queue, "first").await.unwrap();
    let mut a = crowd(&queue, "a", WAITING_MAX / 2, 0).await;
    let mut b = crowd(&queue, "b", WAITING_MAX / 2, 0).await;
    for name in ["a", "b"] {
        assert_eq!(enter(&queue, name).await.err(), Some(QueueError::Full));
    }
    assert_eq!((sent_away(&mut a).await, sent_away(&mut b).await), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn as_many_give_way_as_a_large_call_needs() {
    let queue = Arc::new(Queue::new(1));
    let _permit = enter(&queue, "flood").await.unwrap();
    let mut flood = crowd(&queue, "flood", 64, MIB).await;
    let mut many_small = crowd(&queue, "many-small", 1000, 0).await;
    let large = waiting(&queue, "quiet", 20 * MIB).await;
    assert_eq!(sent_away(&mut flood).await, 20);
    assert_eq!(sent_away(&mut many_small).await, 0, "they would have made no room");
    assert!(!large.is_finished());
    assert_eq!(queue.inner.waiting.lock().line.bytes, WAITING_BYTES_MAX);
}

#[tokio::test(start_paused = true)]
async fn nobody_gives_way_in_vain() {
    let queue = Arc::new(Queue::new(1));
    let _permit = enter(&queue, "flood").await.unwrap();
    let mut flood = crowd(&queue, "flood", 64, MIB).await;
    for bytes in [40 * MIB, WAITING_BYTES_MAX + 1] {
        let place = queue.line_up(&tenant("quiet"), 1, bytes);
        assert_eq!(place.slot(MS, Instant::now()).await.err(), Some(QueueError::Full));
    }
    assert_eq!(sent_away(&mut flood).await, 0);
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_the_servers_start_give_way_too() {
    let queue = Arc::new(Queue::new(1));
    let mut flood = JoinSet::new();
    for _ in 0..WAITING_MAX {
        let queue = queue.clone();
        flood.spawn(
            async move { queue.line_up(&tenant("flood"), 1, 0).first(pending::<()>()).await },
        );
    }
    until(|| in_line(&queue) == WAITING_MAX).await;
    let starting = tokio::time::sleep(SECOND);
    let mut quiet = queue.line_up(&tenant("quiet"), 1, 0);
    assert_eq!(quiet.first(starting).await, Ok(()));
    assert_eq!(in_line(&queue), WAITING_MAX - 1);
    assert_eq!(flood.try_join_next().unwrap().unwrap(), Err(QueueError::Full));
    assert!(quiet.slot(MS, Instant::now() + SECOND).await.is_ok());
    flood.shutdown().await;
    assert_at_rest(&queue, 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_there_already_is_not_waited_for() {
    let queue = Queue::new(1);
    let mut place = queue.line_up(&tenant("a"), 1, WAITING_BYTES_MAX + 1);
    assert_eq!(place.first(async { 7 }).await, Ok(7));
    assert_eq!(place.first(pending::<()>()).await, Err(QueueError::Full), "it is too large");
}
