//! The order in which tenants are served.

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::*;

/// Has these calls wait one by one for a single slot. Returns the order in which they are served,
/// by the first letters of their tenants.
async fn order_of(queue: &Arc<Queue>, calls: impl Iterator<Item = &'static str>) -> String {
    let first = acquire(queue, "first").await.unwrap();
    let order = Arc::new(Mutex::new(String::new()));
    let mut tasks = JoinSet::new();
    for name in calls {
        let waiting = waiting(queue, name, 0).await;
        let order = order.clone();
        tasks.spawn(async move {
            let _permit = waiting.await.unwrap().unwrap();
            order.lock().push_str(&name[..1]);
            sleep(MS).await;
        });
    }
    drop(first);
    tasks.join_all().await;
    Arc::try_unwrap(order).unwrap().into_inner()
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_tenant_are_served_in_the_order_they_came() {
    let queue = Queue::new(1, QueueOptions::default());
    let first = acquire(&queue, "a").await.unwrap();
    let order = Arc::new(Mutex::new(vec![]));
    let mut tasks = JoinSet::new();
    for n in 0..20 {
        let (queue, order) = (queue.clone(), order.clone());
        tasks.spawn(async move {
            let _permit = acquire(&queue, "a").await.unwrap();
            order.lock().push(n);
        });
        tokio::task::yield_now().await;
    }
    drop(first);
    tasks.join_all().await;
    assert_eq!(*order.lock(), (0..20).collect::<Vec<_>>());
    assert_at_rest(&queue, 1);
}

#[tokio::test(start_paused = true)]
async fn tenants_take_turns_however_many_calls_one_of_them_has() {
    let queue = Queue::new(1, QueueOptions::default());
    let calls = ["flood"; 8].into_iter().chain(["b", "c", "b", "c"]);
    assert_eq!(order_of(&queue, calls).await, "fbcfbcffffff");
    assert_at_rest(&queue, 1);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_comes_later_is_next() {
    let queue = Queue::new(1, QueueOptions::default());
    let permit = acquire(&queue, "flood").await.unwrap();
    let mut flood = vec![];
    for _ in 0..50 {
        flood.push(waiting(&queue, "flood", 0).await);
    }
    drop(permit);
    let mut flood = flood.into_iter();
    for _ in 0..20 {
        let permit = flood.next().unwrap().await.unwrap();
        sleep(MS).await;
        drop(permit);
    }
    let running = flood.next().unwrap().await.unwrap();
    let quiet = waiting(&queue, "quiet", 0).await;
    drop(running);
    let _permit = quiet.await.unwrap().unwrap();
    assert_eq!(waiting_calls(&queue), 29, "the flood has had its turn first");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_comes_later_does_not_make_up_for_the_time_it_was_away() {
    let queue = Queue::new(1, QueueOptions::default());
    let calls = ["early"; 40].into_iter().chain(["b"; 20]);
    assert_eq!(order_of(&queue, calls).await, "eb".repeat(20) + &"e".repeat(20));
    assert_eq!(order_of(&queue, ["early", "new", "early", "new"].into_iter()).await, "enen");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_took_longer_than_expected_is_paid_for_by_its_tenant() {
    let queue = Queue::new(1, QueueOptions::default());
    let permit = acquire(&queue, "slow").await.unwrap();
    let calls = [
        waiting(&queue, "slow", 0).await,
        waiting(&queue, "quick", 0).await,
        waiting(&queue, "slow", 0).await,
    ];
    let quick: Vec<_> =
        [waiting(&queue, "quick", 0).await, waiting(&queue, "quick", 0).await].into();
    // Taken when nobody waited, but while it ran, somebody did.
    sleep(100 * MS).await;
    drop(permit);
    let [slow, first_quick, last_slow] = calls;
    for call in [first_quick].into_iter().chain(quick) {
        let permit = call.await.unwrap().unwrap();
        assert!(!slow.is_finished(), "it has not paid yet");
        sleep(MS).await;
        drop(permit);
    }
    drop(slow.await.unwrap());
    drop(last_slow.await.unwrap());
    assert_at_rest(&queue, 1);
}

#[tokio::test(start_paused = true)]
async fn time_that_nobody_else_wanted_is_free() {
    let queue = Queue::new(1, QueueOptions::default());
    for _ in 0..100 {
        let _permit = acquire(&queue, "flood").await.unwrap();
        sleep(100 * MS).await;
    }
    assert_eq!(order_of(&queue, ["flood", "b", "flood", "b"].into_iter()).await, "fbfb");
}

#[tokio::test(start_paused = true)]
async fn the_debt_of_a_tenant_is_kept_while_it_does_not_wait_and_forgotten_when_it_is_idle() {
    for (pause, expected) in [(5 * SECOND, "bbdd"), (15 * SECOND, "dbdb")] {
        let queue = Queue::new(1, QueueOptions::default());
        let permit = acquire(&queue, "debtor").await.unwrap();
        let other = waiting(&queue, "b", 0).await;
        sleep(SECOND).await;
        drop(permit);
        drop(other.await.unwrap());
        sleep(pause).await;
        let calls = ["debtor", "b", "debtor", "b"].into_iter();
        assert_eq!(order_of(&queue, calls).await, expected, "after {pause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_takes_a_slot_past_waiting_calls() {
    let queue = Queue::new(1, QueueOptions::default());
    let first = acquire(&queue, "a").await.unwrap();
    let waiting = waiting(&queue, "b", 0).await;
    drop(first);
    // The slot is b's already, though b has not run yet.
    assert_eq!(acquire_within(&queue, "a", MS).await.err(), Some(QueueError::Expired));
    assert!(waiting.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_hundred_times_the_weight_is_a_hundred_times_the_turns() {
    let queue = Queue::new(1, QueueOptions::default());
    let first = acquire(&queue, "first").await.unwrap();
    let order = Arc::new(Mutex::new(vec![]));
    let mut tasks = JoinSet::new();
    for n in 0..1010 {
        let (queue, order) = (queue.clone(), order.clone());
        let (name, weight) = if n < 505 { ("heavy", 100) } else { ("light", 1) };
        tasks.spawn(async move {
            let entry = queue.enqueue(&tenant(name), weight, 0);
            let _permit = entry.acquire(10 * MS, Instant::now() + 3600 * SECOND).await.unwrap();
            order.lock().push(weight);
            sleep(10 * MS).await;
        });
    }
    until(|| waiting_calls(&queue) == 1010).await;
    drop(first);
    tasks.join_all().await;
    let light = order.lock()[..505].iter().filter(|&&weight| weight == 1).count();
    assert_eq!(light, 5);
}

/// A tenant whose calls hang asks no more. Its early requests must not give it the reserve.
#[tokio::test(start_paused = true)]
async fn a_tenant_whose_calls_hang_does_not_get_the_reserve_as_long_as_others_come() {
    let queue = Queue::new(8, QueueOptions::default());
    drop(acquire(&queue, "quiet").await.unwrap());
    let mut hung = JoinSet::new();
    for _ in 0..16 {
        let queue = queue.clone();
        hung.spawn(async move {
            let entry = queue.enqueue(&tenant("hog"), 1, 0);
            let _permit = entry.acquire(MS, Instant::now() + Duration::from_secs(3600)).await;
            sleep(Duration::from_secs(3600)).await;
        });
    }
    for _ in 0..60 {
        sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        drop(acquire(&queue, "quiet").await.unwrap());
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_tenant_take_turns_by_their_fairness_key() {
    let queue = Queue::new(1, QueueOptions::default());
    let first = acquire(&queue, "a").await.unwrap();
    let order = Arc::new(Mutex::new(vec![]));
    let mut tasks = JoinSet::new();
    let mut number = 0;
    let mut start = |key: &'static str| {
        let (queue, order, n) = (queue.clone(), order.clone(), number);
        number += 1;
        tasks.spawn(async move {
            let entry = queue.enqueue(&tenant("a"), 1, 0).keyed(FairnessKey::named(key));
            let _permit = entry.acquire(MS, Instant::now() + 3600 * SECOND).await.unwrap();
            order.lock().push(n);
        });
    };
    for _ in 0..1000 {
        start("backlog");
    }
    start("single");
    until(|| waiting_calls(&queue) == 1001).await;
    drop(first);
    tasks.join_all().await;
    // A turn, not the backlog.
    assert_eq!(order.lock()[..3], [0, 1000, 1]);
    assert_at_rest(&queue, 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_with_a_fairness_key_can_leave_the_queue() {
    let queue = Queue::new(1, QueueOptions::default());
    let _first = acquire(&queue, "a").await.unwrap();
    let entry = queue.enqueue(&tenant("a"), 1, 0).keyed(FairnessKey::named("run"));
    let expired = entry.acquire(MS, Instant::now() + SECOND).await;
    assert_eq!(expired.err(), Some(QueueError::Expired));
    assert_eq!(waiting_calls(&queue), 0);
}
