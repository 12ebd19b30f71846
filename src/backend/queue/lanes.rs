//! The waiting calls of one tenant, in lanes that take turns: a lane for each fairness key. So one
//! run of a tenant cannot starve its other runs.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

use super::round_robin::QueuedCall;

/// Lanes of one tenant at one backend. Calls with further keys share one more lane.
const LANES_MAX: usize = 256;

/// Says which calls of a tenant take turns with its others. Calls without a key share one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FairnessKey(u64);

impl FairnessKey {
    /// The key of calls that find no lane left.
    const REST: Self = Self(1);

    /// Returns the key with this name. Two names may have one key by chance: their calls share a
    /// lane then, which is harmless.
    pub fn named(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self(hasher.finish().max(2))
    }
}

#[derive(Default)]
pub(super) struct Lanes {
    /// None is empty. The first one is served next.
    lanes: VecDeque<Lane>,
    len: usize,
}

struct Lane {
    key: FairnessKey,
    /// Oldest first.
    calls: VecDeque<QueuedCall>,
}

impl Lanes {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the call that is served next.
    pub(super) fn front(&self) -> Option<&QueuedCall> {
        self.lanes.front()?.calls.front()
    }

    /// Returns the calls that have waited longest, one of each lane.
    pub(super) fn oldest(&self) -> impl Iterator<Item = &QueuedCall> {
        self.lanes.iter().filter_map(|lane| lane.calls.front())
    }

    /// Adds a call to its lane. A new lane is served after all others.
    pub(super) fn push(&mut self, key: FairnessKey, call: QueuedCall) {
        self.len += 1;
        let has_room = self.lanes.len() < LANES_MAX;
        let key = if has_room || self.position_of(key).is_some() { key } else { FairnessKey::REST };
        match self.position_of(key) {
            Some(at) => self.lanes[at].calls.push_back(call),
            None => self.lanes.push_back(Lane { key, calls: VecDeque::from([call]) }),
        }
    }

    /// Removes the call that is served next. Its lane is served again after all others.
    pub(super) fn pop(&mut self) -> Option<QueuedCall> {
        let mut lane = self.lanes.pop_front()?;
        let call = lane.calls.pop_front();
        self.len -= 1;
        if !lane.calls.is_empty() {
            self.lanes.push_back(lane);
        }
        call
    }

    /// Removes a call by its number.
    pub(super) fn remove(&mut self, key: FairnessKey, number: u64) -> Option<QueuedCall> {
        // A call that found no lane left stays in the common one, even if its key has a lane now.
        [key, FairnessKey::REST].into_iter().find_map(|key| {
            let at = self.position_of(key)?;
            let calls = &mut self.lanes[at].calls;
            let place = calls.binary_search_by_key(&number, |call| call.number).ok()?;
            let call = calls.remove(place);
            self.note_removed(at);
            call
        })
    }

    /// Returns the number of the call that is evicted first: the newest one of the longest lane.
    pub(super) fn newest(&self) -> Option<u64> {
        Some(self.lanes[self.longest()?].calls.back()?.number)
    }

    pub(super) fn evict_newest(&mut self) -> Option<QueuedCall> {
        let at = self.longest()?;
        let call = self.lanes[at].calls.pop_back();
        self.note_removed(at);
        call
    }

    fn longest(&self) -> Option<usize> {
        (0..self.lanes.len()).max_by_key(|at| self.lanes[*at].calls.len())
    }

    fn position_of(&self, key: FairnessKey) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.key == key)
    }

    fn note_removed(&mut self, at: usize) {
        self.len -= 1;
        if self.lanes[at].calls.is_empty() {
            self.lanes.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;

    fn call(number: u64) -> QueuedCall {
        let (since, sender) = (Instant::now(), oneshot::channel().0);
        QueuedCall { number, since, bytes: 0, request: None, sender }
    }

    fn lanes(calls: &[(&str, u64)]) -> Lanes {
        let mut lanes = Lanes::default();
        for (key, number) in calls {
            lanes.push(FairnessKey::named(key), call(*number));
        }
        lanes
    }

    fn served(mut lanes: Lanes) -> Vec<u64> {
        std::iter::from_fn(|| lanes.pop().map(|call| call.number)).collect()
    }

    #[test]
    fn lanes_take_turns_however_many_calls_one_has() {
        let lanes = lanes(&[("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)]);
        assert_eq!(lanes.len(), 6);
        assert_eq!(served(lanes), [1, 4, 5, 2, 6, 3]);
    }

    #[test]
    fn the_newest_call_of_the_longest_lane_is_evicted() {
        let mut lanes = lanes(&[("a", 1), ("a", 2), ("a", 3), ("b", 4), ("b", 5)]);
        assert_eq!(lanes.newest(), Some(3));
        assert_eq!(lanes.evict_newest().map(|call| call.number), Some(3));
        assert_eq!(served(lanes), [1, 4, 2, 5]);
    }

    #[test]
    fn keys_beyond_the_bound_share_a_lane() {
        let mut lanes = Lanes::default();
        let key = |number: u64| FairnessKey::named(&number.to_string());
        for number in 0..LANES_MAX as u64 + 100 {
            lanes.push(key(number), call(number));
        }
        assert_eq!(lanes.lanes.len(), LANES_MAX + 1);
        // One lane ends. A key of the common lane gets its own, and its earlier call is still
        // found.
        assert_eq!(lanes.pop().map(|call| call.number), Some(0));
        assert_eq!(lanes.pop().map(|call| call.number), Some(1));
        lanes.push(key(300), call(1000));
        assert!(lanes.remove(key(300), 300).is_some());
        assert!(lanes.remove(key(300), 1000).is_some());
        assert!(lanes.remove(key(300), 1000).is_none());
        assert_eq!(lanes.len(), LANES_MAX + 100 - 3);
    }

    #[test]
    fn an_empty_lane_is_gone() {
        let mut lanes = lanes(&[("a", 1), ("b", 2)]);
        assert!(lanes.remove(FairnessKey::named("a"), 1).is_some());
        assert!(lanes.remove(FairnessKey::named("b"), 1).is_none());
        assert_eq!((lanes.len(), lanes.lanes.len()), (1, 1));
        assert_eq!(lanes.front().map(|call| call.number), Some(2));
    }
}
