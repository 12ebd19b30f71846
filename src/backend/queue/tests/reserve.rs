//! What is kept for tenants that hold nothing.

use tokio::time::sleep;

use super::*;

/// Another tenant has used the server just now, and `hog` takes whatever it gets.
async fn hogged(slots: usize) -> (Arc<Queue>, Vec<Permit>) {
    let queue = Arc::new(Queue::new(slots));
    drop(enter(&queue, "quiet").await.unwrap());
    let mut held = vec![];
    while let Ok(permit) = enter_within(&queue, "hog", MS).await {
        held.push(permit);
    }
    (queue, held)
}

#[tokio::test(start_paused = true)]
async fn no_tenant_may_hold_the_reserve_where_others_are() {
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
        let first = enter(&queue, "quiet").await.unwrap();
        let other = enter(&queue, "other").await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(enter_within(&queue, "quiet", MS).await.is_err(), "it holds one already");
        drop((first, other));
    }
    assert!(!hogs.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_slot_of_the_reserve_counts_for_what_a_tenant_may_hold() {
    let queue = Queue::new(4);
    let others = [
        enter(&queue, "a").await.unwrap(),
        enter(&queue, "b").await.unwrap(),
        enter(&queue, "c").await.unwrap(),
    ];
    let mut held = vec![enter(&queue, "hog").await.unwrap()];
    drop(others);
    while let Ok(permit) = enter_within(&queue, "hog", MS).await {
        held.push(permit);
    }
    assert_eq!(held.len(), 3, "all but a quarter");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_alone_may_use_all_slots() {
    let queue = Queue::new(8);
    drop(enter(&queue, "other").await.unwrap());
    sleep(60 * SECOND).await;
    let mut held = vec![];
    for _ in 0..8 {
        held.push(enter(&queue, "a").await.unwrap());
    }
    assert_eq!(enter(&queue, "a").await.err(), Some(QueueError::Expired));
}

#[tokio::test(start_paused = true)]
async fn the_reserve_is_given_to_those_who_wait_when_the_others_are_gone() {
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
async fn two_that_wait_or_hold_share_the_server_even_if_nobody_came_lately() {
    let (queue, held) = hogged(8).await;
    let mut quiet = vec![enter(&queue, "quiet").await.unwrap()];
    let [hogs, mut quiets] = [waiting(&queue, "hog", 0).await, waiting(&queue, "quiet", 0).await];
    sleep(60 * SECOND).await;
    assert!(!hogs.is_finished() && !quiets.is_finished());
    assert!(enter(&queue, "newcomer").await.is_ok());
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
    let mut second = vec![enter(&queue, "second").await.unwrap()];
    assert_eq!(began.elapsed(), Duration::ZERO);
    while let Ok(permit) = enter_within(&queue, "second", 60 * SECOND).await {
        second.push(permit);
    }
    assert_eq!((held.len(), second.len()), (48, 1));
    let began = Instant::now();
    let third = enter(&queue, "third").await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
    // When they have gone it may have all.
    drop((third, held));
    sleep(11 * SECOND).await;
    while let Ok(permit) = enter_within(&queue, "second", MS).await {
        second.push(permit);
    }
    assert_eq!(second.len(), 64);
}

#[tokio::test(start_paused = true)]
async fn a_slot_freed_by_the_one_that_holds_most_goes_to_others_first() {
    let (queue, mut held) = hogged(4).await;
    let _reserve = enter(&queue, "quiet").await.unwrap();
    let hogs = waiting(&queue, "hog", 0).await;
    let others = waiting(&queue, "other", 0).await;
    held.pop();
    let other = others.await.unwrap().unwrap();
    assert!(!hogs.is_finished());
    drop(other);
    assert!(hogs.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn forgotten_tenants_are_those_that_use_nothing() {
    let (queue, held) = hogged(4).await;
    let hogs = waiting(&queue, "hog", 0).await;
    sleep(20 * SECOND).await;
    drop(hogs.await.unwrap());
    sleep(20 * SECOND).await;
    for n in 0..3000 {
        drop(enter(&queue, &format!("t{n}")).await.unwrap());
        if n % 700 == 0 {
            sleep(11 * SECOND).await;
        }
    }
    let shares = queue.inner.shares.all();
    assert!(shares.len() < 1500, "{} are remembered", shares.len());
    assert!(enter_within(&queue, "hog", MS).await.is_err(), "what it holds was forgotten");
    drop(held);
    assert_at_rest(&queue, 4);
}

#[tokio::test(start_paused = true)]
async fn slots_that_are_to_be_left_free_are_not_kept_from_tenants_that_hold_none() {
    let (queue, mut held) = hogged(8).await;
    queue.set_slots_but(8, 6);
    let hogs = waiting(&queue, "hog", 0).await;
    for _ in 0..10 {
        let began = Instant::now();
        let _first = enter(&queue, "quiet").await.unwrap();
        let _other = enter(&queue, "other").await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(enter_within(&queue, "third", MS).await.is_err(), "the reserve is taken");
    }
    while held.len() > 1 {
        assert!(!hogs.is_finished(), "{} are held, and two may be", held.len());
        held.pop();
        tokio::task::yield_now().await;
    }
    assert!(hogs.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_tenant_alone_leaves_free_what_is_to_be_left_free() {
    let queue = Queue::new(8);
    queue.set_slots_but(8, 6);
    let _held = [enter(&queue, "a").await.unwrap(), enter(&queue, "a").await.unwrap()];
    assert_eq!(enter_within(&queue, "a", 60 * SECOND).await.err(), Some(QueueError::Expired));
}
