//! Sessions that have ended before their tokens do. A bounded number: those whose tokens end first are forgotten first.

use std::collections::HashMap;

use crate::common::ids::SessionId;

/// As many as are remembered, per shard. However they come and go, a table of so many takes about a megabyte.
const ENDED_MAX: usize = 28 * 1024;

/// Some of them.
#[derive(Default)]
pub(crate) struct Ended {
    /// Until when the token of each would be good, in seconds since 1970.
    expires: HashMap<u64, u32>,
    /// Those that were forgotten before that.
    forgotten: u64,
}

impl Ended {
    /// Remembers one, whose token would be good until `expires`.
    pub(crate) fn note(&mut self, id: &SessionId, expires: u64, now: u64) {
        self.expires.insert(half(id), u32::try_from(expires).unwrap_or(u32::MAX));
        if self.expires.len() > ENDED_MAX {
            self.forget_before(now);
        }
        if self.expires.len() > ENDED_MAX
            && let Some((&first, _)) = self.expires.iter().min_by_key(|(_, expires)| **expires)
        {
            self.expires.remove(&first);
            self.forgotten += 1;
        }
    }

    /// Whether one has ended.
    pub(crate) fn contains(&self, id: &SessionId) -> bool {
        self.expires.contains_key(&half(id))
    }

    /// Forgets those whose tokens have ended by now, too.
    pub(crate) fn forget_before(&mut self, now: u64) {
        self.expires.retain(|_, expires| u64::from(*expires) >= now);
    }

    /// How many were forgotten before their time, since it was last asked for.
    pub(crate) fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }
}

/// Half of an id tells it from others as well: ids are random, and nobody chooses them.
fn half(id: &SessionId) -> u64 {
    let [_, _, _, _, _, _, _, _, rest @ ..] = *id.as_bytes();
    u64::from_be_bytes(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn their_number_is_bounded_and_those_whose_tokens_end_first_go_first() {
        let mut ended = Ended::default();
        let ids: Vec<_> = (0..ENDED_MAX + 10).map(|_| SessionId::generate()).collect();
        // In any order.
        for (id, expires) in ids.iter().rev().zip((0..ids.len() as u64).rev()) {
            ended.note(id, expires, 0);
        }
        assert_eq!(ended.expires.len(), ENDED_MAX);
        assert!(!ended.contains(&ids[9]) && ended.contains(&ids[10]));
        assert_eq!((ended.take_forgotten(), ended.take_forgotten()), (10, 0));
        ended.forget_before(100);
        assert!(!ended.contains(&ids[99]) && ended.contains(&ids[100]));
        ended.forget_before(u64::MAX);
        assert!(ended.expires.is_empty());
    }

    #[test]
    fn none_is_forgotten_before_its_time_while_others_are_past_theirs() {
        let mut ended = Ended::default();
        for n in 0..ENDED_MAX as u64 {
            ended.note(&SessionId::generate(), n, 0);
        }
        let last = SessionId::generate();
        ended.note(&last, 1 << 20, 5000);
        assert_eq!((ended.expires.len(), ended.take_forgotten()), (ENDED_MAX - 5000 + 1, 0));
        assert!(ended.contains(&last));
    }

    #[test]
    fn one_that_is_noted_again_counts_once() {
        let (mut ended, id) = (Ended::default(), SessionId::generate());
        ended.note(&id, 7, 0);
        ended.note(&id, 9, 0);
        ended.forget_before(8);
        assert!(ended.contains(&id) && ended.expires.len() == 1);
        ended.forget_before(10);
        assert!(!ended.contains(&id));
    }
}
