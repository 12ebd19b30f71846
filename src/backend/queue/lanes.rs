//! The waiting calls of one tenant, in lanes that take turns: a lane for each fairness key. So one
//! run of a tenant cannot starve its other runs. Asynchronous calls that wait to begin use lanes,
//! too.

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

pub struct Lanes<C> {
    /// None is empty. The first one is served next.
    lanes: VecDeque<Lane<C>>,
    len: usize,
}

struct Lane<C> {
    key: FairnessKey,
    /// Oldest first.
    calls: VecDeque<C>,
}

impl<C> Default for Lanes<C> {
    fn default() -> Self {
        Self { lanes: VecDeque::new(), len: 0 }
    }
}

impl<C> Lanes<C> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the call that is served next.
    pub(super) fn front(&self) -> Option<&C> {
        self.lanes.front()?.calls.front()
    }

    /// Returns all calls in the order in which they will be served.
    pub fn in_order(&self) -> impl Iterator<Item = &C> {
        let longest = self.lanes.iter().map(|lane| lane.calls.len()).max().unwrap_or(0);
        (0..longest)
            .flat_map(move |at| self.lanes.iter().filter_map(move |lane| lane.calls.get(at)))
    }

    /// Returns the calls that have waited longest, one of each lane.
    pub(super) fn oldest(&self) -> impl Iterator<Item = &C> {
        self.lanes.iter().filter_map(|lane| lane.calls.front())
    }

    /// Adds a call to its lane. A new lane is served after all others.
    pub fn push(&mut self, key: FairnessKey, call: C) {
        self.len += 1;
        let has_room = self.lanes.len() < LANES_MAX;
        let key = if has_room || self.position_of(key).is_some() { key } else { FairnessKey::REST };
        match self.position_of(key) {
            Some(at) => self.lanes[at].calls.push_back(call),
            None => self.lanes.push_back(Lane { key, calls: VecDeque::from([call]) }),
        }
    }

    /// Removes the call that is served next. Its lane, which is named, is served again after all
    /// others.
    pub fn pop(&mut self) -> Option<(FairnessKey, C)> {
        let mut lane = self.lanes.pop_front()?;
        let (key, call) = (lane.key, lane.calls.pop_front()?);
        self.len -= 1;
        if !lane.calls.is_empty() {
            self.lanes.push_back(lane);
        }
        Some((key, call))
    }

    /// Puts a call back that was removed from this lane: it is served next.
    pub fn put_back(&mut self, key: FairnessKey, call: C) {
        self.len += 1;
        let lane = self.position_of(key).and_then(|at| self.lanes.remove(at));
        let mut lane = lane.unwrap_or(Lane { key, calls: VecDeque::new() });
        lane.calls.push_front(call);
        self.lanes.push_front(lane);
    }

    /// Removes the first call that is the one.
    pub fn take(&mut self, is_it: impl Fn(&C) -> bool) -> Option<C> {
        let mut lanes = self.lanes.iter().enumerate();
        let (at, place) =
            lanes.find_map(|(at, lane)| Some((at, lane.calls.iter().position(&is_it)?)))?;
        let call = self.lanes[at].calls.remove(place);
        self.note_removed(at);
        call
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

impl Lanes<QueuedCall> {
    /// Returns the key and the number of a call that an operator has named.
    pub(super) fn find(&self, is_it: impl Fn(&QueuedCall) -> bool) -> Option<(FairnessKey, u64)> {
        self.lanes.iter().find_map(|lane| {
            let call = lane.calls.iter().find(|call| is_it(call))?;
            Some((lane.key, call.number))
        })
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
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;

    fn call(number: u64) -> QueuedCall {
        let (since, sender) = (Instant::now(), oneshot::channel().0);
        QueuedCall { number, since, bytes: 0, request: None, sender, info: None }
    }

    fn lanes(calls: &[(&str, u64)]) -> Lanes<QueuedCall> {
        let mut lanes = Lanes::default();
        for (key, number) in calls {
            lanes.push(FairnessKey::named(key), call(*number));
        }
        lanes
    }

    fn served(mut lanes: Lanes<QueuedCall>) -> Vec<u64> {
        std::iter::from_fn(|| lanes.pop().map(|(_, call)| call.number)).collect()
    }

    #[test]
    fn lanes_take_turns_however_many_calls_one_has() {
        let lanes = lanes(&[("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)]);
        assert_eq!(lanes.len(), 6);
        let in_order: Vec<_> = lanes.in_order().map(|call| call.number).collect();
        assert_eq!(in_order, [1, 4, 5, 2, 6, 3]);
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
        assert_eq!(lanes.pop().map(|(_, call)| call.number), Some(0));
        assert_eq!(lanes.pop().map(|(_, call)| call.number), Some(1));
        lanes.push(key(300), call(1000));
        assert!(lanes.remove(key(300), 300).is_some());
        assert!(lanes.remove(key(300), 1000).is_some());
        assert!(lanes.remove(key(300), 1000).is_none());
        assert_eq!(lanes.len(), LANES_MAX + 100 - 3);
    }

    #[test]
    fn a_call_that_is_put_back_is_served_next() {
        for calls in [&[("a", 1), ("a", 2), ("b", 3)][..], &[("a", 1), ("b", 3)][..]] {
            let (mut lanes, before) = (lanes(calls), served(lanes(calls)));
            let (key, call) = lanes.pop().unwrap();
            // Another one of the lane comes meanwhile.
            lanes.push(key, self::call(4));
            lanes.put_back(key, call);
            assert_eq!(lanes.len(), calls.len() + 1);
            assert_eq!(served(lanes), [before, vec![4]].concat());
        }
        let mut lanes = lanes(&[("a", 1), ("b", 2), ("b", 3)]);
        assert_eq!(lanes.take(|call| call.number == 3).map(|call| call.number), Some(3));
        assert!(lanes.take(|call| call.number == 3).is_none());
        assert_eq!((lanes.len(), served(lanes)), (2, vec![1, 2]));
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
