//! The reserve for tenants that hold few slots or none.

use tokio::time::sleep;

use super::*;

fn shared(slots: usize) -> Arc<Queue> {
    Queue::new(slots, QueueOptions::default())
}

/// Makes a queue that another tenant has just used, and of which `hog` holds all it can get.
async fn hogged(slots: usize) -> (Arc<Queue>, Vec<SlotPermit>) {
    let queue = shared(slots);
    drop(acquire(&queue, "quiet").await.unwrap());
    let mut held = vec![];
    while let Ok(permit) = acquire_within(&queue, "hog", MS).await {
        held.push(permit);
    }
    (queue, held)
}

#[tokio::test(start_paused = true)]
async fn no_tenant_may_hold_the_reserve() {
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
    let queue = shared(4);
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
async fn a_tenant_alone_may_not_use_the_reserve_because_it_may_not_stay_alone() {
    // Nor for calls that end so soon that the last of three slots would be lent to them.
    for deadline in [MS, SECOND, 60 * SECOND] {
        for (slots, expected) in [(4, 3), (5, 4), (8, 6), (64, 48)] {
            let queue = shared(slots);
            drop(acquire(&queue, "other").await.unwrap());
            sleep(60 * SECOND).await;
            let mut held = vec![];
            while let Ok(permit) = acquire_within(&queue, "a", deadline).await {
                held.push(permit);
            }
            assert_eq!(held.len(), expected, "of {slots}, within {deadline:?}");
            let waits = waiting(&queue, "a", 0).await;
            sleep(60 * SECOND).await;
            assert!(!waits.is_finished());
            let began = Instant::now();
            let _newcomer = acquire(&queue, "newcomer").await.unwrap();
            assert_eq!(began.elapsed(), Duration::ZERO);
            waits.abort();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_one_tenant_that_can_use_a_backend_may_use_all_slots() {
    let queue = Queue::new(8, QueueOptions { is_shared: false, ..QueueOptions::default() });
    let mut held = vec![];
    while let Ok(permit) = acquire(&queue, "a").await {
        held.push(permit);
    }
    assert_eq!(held.len(), 8);
}

#[tokio::test(start_paused = true)]
async fn the_last_of_two_or_three_slots_is_lent_to_short_calls_of_a_tenant_that_is_alone() {
    for slots in [2, 3] {
        let (queue, held) = hogged(slots).await;
        let began = Instant::now();
        let lent = acquire_within(&queue, "hog", 20 * SECOND).await.unwrap();
        let took = began.elapsed();
        assert!(took > 9 * SECOND && took < 11 * SECOND, "{took:?}");
        drop(lent);
        let long = waiting(&queue, "hog", 0).await;
        sleep(60 * SECOND).await;
        assert!(!long.is_finished(), "it may hold the slot for an hour");
        long.abort();
        let _ = long.await;
        let began = Instant::now();
        let _lent = acquire(&queue, "hog").await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO, "nobody else has come since");
        drop(held);
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_slot_is_not_lent_while_another_tenant_waits_or_holds_one() {
    let (queue, held) = hogged(3).await;
    let quiet = acquire(&queue, "quiet").await.unwrap();
    sleep(60 * SECOND).await;
    assert!(acquire_within(&queue, "hog", 20 * SECOND).await.is_err());
    drop(quiet);
    let began = Instant::now();
    let _newcomer = acquire(&queue, "newcomer").await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn the_reserve_is_kept_as_long_as_another_holds_slots_however_silent() {
    let (queue, held) = hogged(64).await;
    sleep(11 * SECOND).await;
    // The whole reserve is for those who hold little, except one slot for a newcomer.
    let began = Instant::now();
    let mut second = vec![];
    for _ in 0..15 {
        second.push(acquire(&queue, "second").await.unwrap());
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(acquire_within(&queue, "second", 60 * SECOND).await.is_err());
    let third = acquire(&queue, "third").await.unwrap();
    assert_eq!(held.len(), 48);
    drop((third, held));
    while let Ok(permit) = acquire_within(&queue, "second", 60 * SECOND).await {
        second.push(permit);
    }
    assert_eq!(second.len(), 48, "a quarter is kept, now for the others");
}

#[tokio::test(start_paused = true)]
async fn tenants_that_hold_little_divide_the_reserve() {
    let (queue, _held) = hogged(64).await;
    let call = |name: &'static str| {
        let queue = queue.clone();
        tokio::spawn(async move {
            let permit = acquire_within(&queue, name, 3600 * SECOND).await.unwrap();
            sleep(SECOND).await;
            drop(permit);
        })
    };
    // One holds some already when the other comes; each has more calls than fit at once.
    let began = Instant::now();
    let one: Vec<_> = (0..20).map(|_| call("one")).collect();
    sleep(MS).await;
    let other: Vec<_> = (0..20).map(|_| call("other")).collect();
    for call in one.into_iter().chain(other) {
        call.await.unwrap();
    }
    // 40 calls of 1 s in 15 slots take three rounds; one after the other they would take 20.
    assert!(began.elapsed() <= 4 * SECOND, "{:?}", began.elapsed());
    let mut parts = vec![];
    for name in ["one", "other"] {
        let mut held = vec![];
        while let Ok(permit) = acquire_within(&queue, name, 2 * SECOND).await {
            held.push(permit);
        }
        parts.push(held);
    }
    assert_eq!(parts[0].len(), 15, "alone with the hog it may have all but one");
    assert_eq!(parts[1].len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_last_slot_of_the_reserve_is_a_newcomers_whatever_is_the_part_of_others() {
    let (queue, _held) = hogged(64).await;
    let mut few = vec![];
    for name in [["one"; 14].as_slice(), &["other"]].concat() {
        few.push(acquire(&queue, name).await.unwrap());
    }
    assert!(acquire(&queue, "other").await.is_err(), "it has less than its part, and one is left");
    let began = Instant::now();
    let _newcomer = acquire(&queue, "newcomer").await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
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
    let queue = shared(8);
    queue.set_slots(8, 6);
    let _held = [acquire(&queue, "a").await.unwrap(), acquire(&queue, "a").await.unwrap()];
    assert_eq!(acquire_within(&queue, "a", 60 * SECOND).await.err(), Some(QueueError::Expired));
}
