//! Which copy takes a call.

use super::*;
use crate::backend::instance::adaptive::Limit;
use crate::backend::testing::{Peer, ready};

/// So many copies that each take so many calls.
fn pool(copies: usize, limit: u32) -> (Pool, Vec<Arc<Load>>, Vec<Peer>) {
    let pool = Pool::new(copies, &State::Starting);
    let (mut loads, mut peers) = (vec![], vec![]);
    for number in 0..copies {
        let ((ready, peer), load) = (ready(), Load::new(limit, false));
        let copy = Arc::new(Copy { number, ready: ready.clone(), load: load.clone() });
        pool.enter(number, State::Ready(ready), Some(copy));
        loads.push(load);
        peers.push(peer);
    }
    (pool, loads, peers)
}

fn number(lease: Option<&Lease>) -> Option<usize> {
    lease.map(|lease| lease.copy().number)
}

#[tokio::test]
async fn a_copy_that_has_just_failed_a_call_does_not_get_it_again_if_there_is_another() {
    let (pool, loads, _peers) = pool(2, 2);
    for avoid in [0, 1] {
        let other = 1 - avoid;
        // However busy the other is.
        assert!(loads[other].try_begin());
        assert_eq!(number(pool.take(Some(avoid)).as_ref()), Some(other));
        loads[other].end();
    }
    assert!(loads[1].try_begin() && loads[1].try_begin());
    assert_eq!(number(pool.take(Some(0)).as_ref()), Some(0), "the other has no place");
}

#[tokio::test]
async fn a_copy_that_should_have_no_more_for_now_comes_last() {
    let (pool, loads, _peers) = pool(2, 4);
    loads[0].set_limit(Limit { usual: 4, now: 1 });
    assert_eq!((pool.slots(), pool.slots_left_free()), (8, 3));
    let leases: Vec<_> = std::iter::from_fn(|| pool.take(None)).collect();
    let numbers: Vec<_> = leases.iter().map(|lease| lease.copy().number).collect();
    // One for each; then all that the other takes; then what the first takes at most.
    assert_eq!(numbers, [0, 1, 1, 1, 1, 0, 0, 0]);
}
