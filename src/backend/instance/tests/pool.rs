//! The choice of an instance for a call, and the count of uses.

use futures_util::FutureExt;
use tokio::time::advance;

use super::*;
use crate::backend::instance::adaptive::ConcurrencyLimit;
use crate::backend::testing::{Peer, ready};

fn pool(size: usize, limit: u32) -> (Pool, Vec<Arc<Load>>, Vec<Peer>) {
    let pool = Pool::new(size, &RunState::Starting);
    let (mut loads, mut peers) = (vec![], vec![]);
    for number in 0..size {
        let ((ready, peer), load) = (ready(), Load::new(limit, false));
        let instance = Arc::new(ReadyInstance { number, ready: ready.clone(), load: load.clone() });
        pool.set_state(number, RunState::Ready(ready), Some(instance));
        loads.push(load);
        peers.push(peer);
    }
    (pool, loads, peers)
}

fn number(permit: Option<&InstancePermit>) -> Option<usize> {
    permit.map(|permit| permit.instance().number)
}

#[tokio::test]
async fn an_instance_that_has_just_failed_a_call_does_not_get_it_again_if_there_is_another() {
    let (pool, loads, _peers) = pool(2, 2);
    for avoid in [0, 1] {
        let other = 1 - avoid;
        // However busy the other is.
        assert!(loads[other].try_begin());
        assert_eq!(number(pool.try_acquire(Some(avoid)).as_ref()), Some(other));
        loads[other].in_flight.end();
    }
    assert!(loads[1].try_begin() && loads[1].try_begin());
    assert_eq!(number(pool.try_acquire(Some(0)).as_ref()), Some(0), "the other has no room");
}

#[tokio::test]
async fn an_instance_that_should_have_no_more_for_now_comes_last() {
    let (pool, loads, _peers) = pool(2, 4);
    loads[0].set_limit(ConcurrencyLimit { usual: 4, now: 1 });
    assert_eq!((pool.slots(), pool.slots_left_free()), (8, 3));
    let permits: Vec<_> = std::iter::from_fn(|| pool.try_acquire(None)).collect();
    let numbers: Vec<_> = permits.iter().map(|permit| permit.instance().number).collect();
    // One for each; then all that the other takes; then what the first takes at most.
    assert_eq!(numbers, [0, 1, 1, 1, 1, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn it_is_idle_since_its_last_use_ended() {
    let (uses, second) = (Uses::default(), Duration::from_secs(1));
    let began = Instant::now();
    assert_eq!(uses.idle_since(), Some(began));
    assert!(uses.try_begin(2) && uses.try_begin(2) && !uses.try_begin(2));
    for left in [1, 0] {
        assert_eq!((uses.idle_since(), uses.drained().now_or_never()), (None, None));
        advance(second).await;
        uses.end();
        assert_eq!(uses.count(), left);
    }
    assert_eq!(uses.idle_since(), Some(began + 2 * second));
    assert_eq!(uses.drained().now_or_never(), Some(()));
}

#[path = "measured.rs"]
mod measured;
