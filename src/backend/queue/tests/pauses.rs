//! Pauses of one tenant, and when they become pauses of all.

use tokio::time::sleep;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_refused_tenant_waits_and_nobody_else_does() {
    let queue = Queue::new(8, QueueOptions::default());
    let began = Instant::now();
    let running: Vec<_> = [acquire(&queue, "a").await, acquire(&queue, "b").await].into();
    refuse(&queue, "a", began + 10 * SECOND);
    let waits = waiting(&queue, "a", 0).await;
    drop(running);
    for _ in 0..9 {
        for name in ["b", "c"] {
            let now = Instant::now();
            assert!(acquire(&queue, name).await.is_ok());
            assert_eq!(now.elapsed(), Duration::ZERO);
        }
        sleep(SECOND).await;
    }
    assert!(!waits.is_finished());
    assert!(waits.await.unwrap().is_ok());
    assert_eq!(began.elapsed(), 10 * SECOND);
    assert!(!queue.slots.has_waiting(), "the pause is over");
    assert_at_rest(&queue, 8);
}

#[tokio::test(start_paused = true)]
async fn calls_that_waited_before_their_tenant_was_refused_are_held_back_too() {
    let queue = Queue::new(1, QueueOptions::default());
    let began = Instant::now();
    let running = acquire(&queue, "b").await.unwrap();
    let held_back = waiting(&queue, "a", 0).await;
    let next = waiting(&queue, "b", 0).await;
    refuse(&queue, "a", began + 5 * SECOND);
    drop(running);
    assert!(next.await.unwrap().is_ok());
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(held_back.await.unwrap().is_ok());
    assert_eq!(began.elapsed(), 5 * SECOND);
    assert_at_rest(&queue, 1);
}

#[tokio::test(start_paused = true)]
async fn all_wait_only_if_a_second_tenant_is_refused_within_the_pause() {
    let queue = Queue::new(8, QueueOptions::default());
    let began = Instant::now();
    refuse(&queue, "a", began + SECOND);
    sleep(2 * SECOND).await;
    refuse(&queue, "b", began + 4 * SECOND);
    assert!(acquire(&queue, "c").await.is_ok(), "the first pause was over");
    assert_eq!(began.elapsed(), 2 * SECOND);
    refuse(&queue, "a", began + 3 * SECOND);
    let waits = [waiting(&queue, "c", 0).await, waiting(&queue, "a", 0).await];
    let held_back = waiting(&queue, "b", 0).await;
    for waits in waits {
        assert!(waits.await.unwrap().is_ok());
        assert_eq!(began.elapsed(), 3 * SECOND);
    }
    assert!(held_back.await.unwrap().is_ok());
    assert_eq!(began.elapsed(), 4 * SECOND);
    assert_at_rest(&queue, 8);
}

#[tokio::test(start_paused = true)]
async fn one_tenant_that_is_refused_again_and_again_pauses_nobody_else() {
    let queue = Queue::new(8, QueueOptions::default());
    let began = Instant::now();
    let _running = acquire(&queue, "b").await.unwrap();
    for _ in 0..5 {
        refuse(&queue, "a", Instant::now() + 10 * SECOND);
        for name in ["b", "c"] {
            let now = Instant::now();
            assert!(acquire(&queue, name).await.is_ok());
            assert_eq!(now.elapsed(), Duration::ZERO);
        }
        sleep(SECOND).await;
    }
    assert!(waiting(&queue, "a", 0).await.await.unwrap().is_ok());
    assert_eq!(began.elapsed(), 14 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_never_shortened() {
    let queue = Queue::new(8, QueueOptions::default());
    let began = Instant::now();
    refuse(&queue, "a", began + 5 * SECOND);
    refuse(&queue, "a", began + SECOND);
    assert!(waiting(&queue, "a", 0).await.await.unwrap().is_ok());
    assert_eq!(began.elapsed(), 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn the_gate_opens_for_others_while_a_tenant_waits_for_the_end_of_its_pause() {
    let gate = Some(Arc::new(RateGate::new("10/s".parse().unwrap())));
    let queue = Queue::new(8, QueueOptions { gate, ..QueueOptions::default() });
    let began = Instant::now();
    refuse(&queue, "a", began + 9 * SECOND);
    let held_back = waiting(&queue, "a", 0).await;
    let calls = [waiting(&queue, "b", 0).await, waiting(&queue, "c", 0).await];
    for call in calls {
        assert!(call.await.unwrap().is_ok());
    }
    assert!(began.elapsed() <= SECOND / 5, "{:?}", began.elapsed());
    assert!(held_back.await.unwrap().is_ok());
    assert_eq!(began.elapsed(), 9 * SECOND);
    assert_at_rest(&queue, 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_when_tenants_are_refused_all_the_time() {
    use super::stress::{SLOTS, Watch, caller};
    let queue = Queue::new(SLOTS, QueueOptions::default());
    drop(acquire(&queue, "t0").await.unwrap());
    drop(acquire(&queue, "t1").await.unwrap());
    let (watch, limit) = (Arc::new(Watch::default()), queue.slots.limit());
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..60 {
        callers.spawn(caller(queue.clone(), watch.clone(), n, limit));
    }
    let refusing = tokio::spawn({
        let queue = queue.clone();
        async move {
            for n in 0.. {
                sleep(5 * MS).await;
                refuse(&queue, ["t0", "t1", "t2"][n % 3], Instant::now() + 7 * MS);
            }
        }
    });
    let all = tokio::time::timeout(50 * SECOND, callers.join_all()).await;
    refusing.abort();
    let _ = refusing.await;
    assert!(all.is_ok(), "somebody waits for ever");
    sleep(10 * MS).await;
    assert!(acquire(&queue, "t0").await.is_ok());
    assert_at_rest(&queue, SLOTS as i64);
}
