//! Gives each call a place among the slots of its instance, and keeps it there.
//!
//! The gateway counts slots and does not number them. On the page a call must not jump, so it has
//! the first free place when it is first seen, and keeps that until it is gone.

use std::collections::HashMap;

use crate::backend::connection::live_calls::LiveCall;
use crate::common::ids::CallId;

#[derive(Default)]
pub struct Places {
    taken: Vec<Option<CallId>>,
    by_call: HashMap<CallId, usize>,
}

impl Places {
    /// Frees the places of calls that are gone, and gives one to each new call. Returns the place
    /// of each call, in their order.
    pub fn assign(&mut self, calls: &[LiveCall]) -> Vec<usize> {
        // Marks what is still there.
        let mut is_here = vec![false; self.taken.len()];
        for call in calls {
            if let Some(&place) = self.by_call.get(&call.call) {
                is_here[place] = true;
            }
        }
        for (place, taken) in self.taken.iter_mut().enumerate() {
            if !is_here[place]
                && let Some(gone) = taken.take()
            {
                self.by_call.remove(&gone);
            }
        }
        let mut new: Vec<_> =
            calls.iter().map(|it| it.call).filter(|it| !self.by_call.contains_key(it)).collect();
        new.sort_unstable_by_key(CallId::made);
        let mut free = 0;
        for call in new {
            while self.taken.get(free).is_some_and(Option::is_some) {
                free += 1;
            }
            if free == self.taken.len() {
                self.taken.push(None);
            }
            self.taken[free] = Some(call);
            self.by_call.insert(call, free);
        }
        let used = self.taken.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.taken.truncate(used);
        calls.iter().map(|call| self.by_call[&call.call]).collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::backend::connection::live_calls::LiveState;
    use crate::common::ids::TenantId;

    fn call() -> LiveCall {
        LiveCall {
            call: CallId::generate(),
            tenant: TenantId::testing("acme"),
            state: LiveState::Running,
            deadline: Instant::now(),
            attempt: None,
        }
    }

    #[test]
    fn a_call_keeps_its_place_and_the_next_one_has_the_first_that_is_free() {
        let mut places = Places::default();
        let [a, b, c, d, e] = [call(), call(), call(), call(), call()];
        let mut first = places.assign(&[a.clone(), b.clone(), c.clone()]);
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2]);
        let of_b = places.by_call[&b.call];
        assert_eq!(places.assign(&[c.clone(), b.clone()])[1], of_b);
        let next = places.assign(&[d.clone(), b.clone(), c.clone()]);
        assert_eq!(next[1], of_b);
        assert!(next.iter().all(|place| *place < 3), "{next:?}");
        // Nothing is left of those that have gone.
        assert_eq!(places.assign(&[e]), [0]);
        assert_eq!((places.taken.len(), places.by_call.len()), (1, 1));
    }
}
