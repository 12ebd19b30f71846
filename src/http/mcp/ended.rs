//! Sessions that have ended before their tokens do. A bounded number: those whose tokens end first are forgotten first.

use std::collections::{BTreeSet, HashMap};

use crate::ids::SessionId;

/// As many as are remembered, per shard.
const ENDED_MAX: usize = 4096;

/// Some of them.
#[derive(Default)]
pub(super) struct Ended {
    /// Until when the token of each would be good.
    expires: HashMap<SessionId, u64>,
    /// The same, ordered by that.
    by_expiry: BTreeSet<(u64, SessionId)>,
}

impl Ended {
    /// Remembers one, whose token would be good until `expires`.
    pub(super) fn note(&mut self, id: SessionId, expires: u64) {
        if let Some(before) = self.expires.insert(id.clone(), expires) {
            self.by_expiry.remove(&(before, id.clone()));
        }
        self.by_expiry.insert((expires, id));
        if self.by_expiry.len() > ENDED_MAX
            && let Some((_, first)) = self.by_expiry.pop_first()
        {
            self.expires.remove(&first);
        }
    }

    /// Whether one has ended.
    pub(super) fn contains(&self, id: &SessionId) -> bool {
        self.expires.contains_key(id)
    }

    /// Forgets those whose tokens have ended by now, too.
    pub(super) fn forget_before(&mut self, now: u64) {
        while self.by_expiry.first().is_some_and(|(expires, _)| *expires < now)
            && let Some((_, id)) = self.by_expiry.pop_first()
        {
            self.expires.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn their_number_is_bounded_and_those_whose_tokens_end_first_go_first() {
        let mut ended = Ended::default();
        let ids: Vec<_> = (0..ENDED_MAX + 10).map(|_| SessionId::new()).collect();
        // In any order.
        for (id, expires) in ids.iter().rev().zip((0..ids.len() as u64).rev()) {
            ended.note(id.clone(), expires);
        }
        assert_eq!((ended.expires.len(), ended.by_expiry.len()), (ENDED_MAX, ENDED_MAX));
        assert!(!ended.contains(&ids[9]) && ended.contains(&ids[10]));
        ended.forget_before(100);
        assert!(!ended.contains(&ids[99]) && ended.contains(&ids[100]));
        ended.forget_before(u64::MAX);
        assert!(ended.expires.is_empty() && ended.by_expiry.is_empty());
    }

    #[test]
    fn one_that_is_noted_again_counts_once() {
        let (mut ended, id) = (Ended::default(), SessionId::new());
        ended.note(id.clone(), 7);
        ended.note(id.clone(), 9);
        ended.forget_before(8);
        assert!(ended.contains(&id) && ended.by_expiry.len() == 1);
        ended.forget_before(10);
        assert!(!ended.contains(&id));
    }
}
