//! The reserve for tenants that hold no slots.

use tokio::time::sleep;

use super::*;

/// Makes a queue that another tenant has just used, and of which `hog` holds all it can get.
async fn hogged(slots: usize) -> (Arc<Queue>, Vec<SlotPermit>) {
    let queue = Queue::new(slots);
    drop(acquire(&queue, "quiet").await.unwrap());
    let mut held = vec![];
    while let Ok(permit) = acquire_within(&queue, "hog", MS).await {
        held.push(permit);
    }
    (queue, held)
}

#[tokio::test(start_paused = true)]
async fn no_tenant_may_hold_the_reserve_of_a_shared_backend() {
    for (slots, expected) in [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (16, 12), (64, 48)] {
        let (queue, held) = hogged(slots).await;
        assert_eq!(held.len(), expected, "of {slots}");
        drop(held);
        assert_at_rest(&queue, slots as i64);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_holds_none_has_its_slot_at_once_though_another_waits() {
    let (queue, _held) = hogged(8).await;
    let hogs = waiting(&queue, "hog", 0).await;
    for _ in 0..100 {
        let began = Instant::now();
        let first = acquire(&queue, "quiet").await.unwrap();
        let other = acquire(&queue, "other").await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(acquire_within(&queue, "quiet", MS).await.is_err(), "it holds one already");
        drop((first, other));
    }
    assert!(!hogs.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_slot_of_the_reserve_counts_for_what_a_tenant_may_hold() {
    let queue = Queue::new(4);
    let others = [
        acquire(&queue, "a").await.unwrap(),
        acquire(&queue, "b").await.unwrap(),
        acquire(&queue, "c").await.unwrap(),
    ];
    let mut held = vec![acquire(&queue, "hog").await.unwrap()];
    drop(others);
    while let Ok(permit) = acquire_within(&queue, "hog", MS).await {
        held.push(permit);
    }
    assert_eq!(held.len(), 3, "all but a quarter");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_alone_may_use_all_slots() {
    let queue = Queue::new(8);
    drop(acquire(&queue, "other").await.unwrap());
    sleep(60 * SECOND).await;
    let mut held = vec![];
    for _ in 0..8 {
        held.push(acquire(&queue, "a").await.unwrap());
    }
    assert_eq!(acquire(&queue, "a").await.err(), Some(QueueError::Expired));
}

#[tokio::test(start_paused = true)]
async fn the_reserve_is_given_to_waiting_calls_when_the_other_tenants_are_gone() {
    let (queue, _held) = hogged(8).await;
    let began = Instant::now();
    let [first, second, third] = [
        waiting(&queue, "hog", 0).await,
        waiting(&queue, "hog", 0).await,
        waiting(&queue, "hog", 0).await,
    ];
    let _permits = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
    let took = began.elapsed();
    assert!(took > 9 * SECOND && took < 11 * SECOND, "{took:?}");
    sleep(SECOND).await;
    assert!(!third.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_backend_is_shared_while_two_tenants_wait_or_hold_slots_even_if_nobody_asked_lately() {
    let (queue, held) = hogged(8).await;
    let mut quiet = vec![acquire(&queue, "quiet").await.unwrap()];
    let [hogs, mut quiets] = [waiting(&queue, "hog", 0).await, waiting(&queue, "quiet", 0).await];
    sleep(60 * SECOND).await;
    assert!(!hogs.is_finished() && !quiets.is_finished());
    assert!(acquire(&queue, "newcomer").await.is_ok());
    sleep(60 * SECOND).await;
    // When one gives up, it still holds a slot: the other is not alone.
    quiets.abort();
    assert!((&mut quiets).await.is_err());
    sleep(60 * SECOND).await;
    assert!(!hogs.is_finished());
    let began = Instant::now();
    quiet.clear();
    let _permit = hogs.await.unwrap().unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn the_reserve_is_kept_as_long_as_another_holds_slots_however_silent() {
    let (queue, held) = hogged(64).await;
    sleep(11 * SECOND).await;
    // It may have one at once, and none beside it: the hog has not gone.
    let began = Instant::now();
    let mut second = vec![acquire(&queue, "second").await.unwrap()];
    assert_eq!(began.elapsed(), Duration::ZERO);
    while let Ok(permit) = acquire_within(&queue, "second", 60 * SECOND).await {
        second.push(permit);
    }
    assert_eq!((held.len(), second.len()), (48, 1));
    let began = Instant::now();
    let third = acquire(&queue, "third").await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
    // When they have gone it may have all.
    drop((third, held));
    sleep(11 * SECOND).await;
    while let Ok(permit) = acquire_within(&queue, "second", MS).await {
        second.push(permit);
    }
    assert_eq!(second.len(), 64);
}

#[tokio::test(start_paused = true)]
async fn a_slot_released_by_the_tenant_that_holds_most_goes_to_others_first() {
    let (queue, mut held) = hogged(4).await;
    let _reserve = acquire(&queue, "quiet").await.unwrap();
    let hogs = waiting(&queue, "hog", 0).await;
    let others = waiting(&queue, "other", 0).await;
    held.pop();
    let other = others.await.unwrap().unwrap();
    assert!(!hogs.is_finished());
    drop(other);
    assert!(hogs.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn only_tenants_that_use_nothing_are_forgotten() {
    let (queue, held) = hogged(4).await;
    let hogs = waiting(&queue, "hog", 0).await;
    sleep(20 * SECOND).await;
    drop(hogs.await.unwrap());
    sleep(20 * SECOND).await;
    for n in 0..3000 {
        drop(acquire(&queue, &format!("t{n}")).await.unwrap());
        if n % 700 == 0 {
            sleep(11 * SECOND).await;
        }
    }
    let shares = queue.shares.all();
    assert!(shares.len() < 1500, "{} are remembered", shares.len());
    assert!(acquire_within(&queue, "hog", MS).await.is_err(), "its slots were forgotten");
    drop(held);
    assert_at_rest(&queue, 4);
}

#[tokio::test(start_paused = true)]
async fn slots_left_free_are_given_to_tenants_that_hold_none() {
    let (queue, mut held) = hogged(8).await;
    queue.set_slots(8, 6);
    let hogs = waiting(&queue, "hog", 0).await;
    for _ in 0..10 {
        let began = Instant::now();
        let _first = acquire(&queue, "quiet").await.unwrap();
        let _other = acquire(&queue, "other").await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(acquire_within(&queue, "third", MS).await.is_err(), "the reserve is taken");
    }
    while held.len() > 1 {
        assert!(!hogs.is_finished(), "{} are held, and two may be", held.len());
        held.pop();
        tokio::task::yield_now().await;
    }
    assert!(hogs.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_tenant_alone_does_not_get_the_slots_left_free() {
    let queue = Queue::new(8);
    queue.set_slots(8, 6);
    let _held = [acquire(&queue, "a").await.unwrap(), acquire(&queue, "a").await.unwrap()];
    assert_eq!(acquire_within(&queue, "a", 60 * SECOND).await.err(), Some(QueueError::Expired));
}
