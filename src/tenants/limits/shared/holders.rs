//! The limits of which something is held or in use here, so that Valkey hears of them again and again.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use futures_util::StreamExt;
use futures_util::stream;
use parking_lot::Mutex;
use uuid::Uuid;

use super::lease::Lease;

/// Limits that are spoken of at the same time. All at once would hold up the calls.
const AT_ONCE: usize = 32;

/// Those limits, by who speaks for them. A tenant that goes is not held by this.
#[derive(Debug, Default)]
pub(super) struct Holders(Mutex<HashMap<Uuid, Weak<Lease>>>);

impl Lease {
    /// Has the keeper know of it.
    pub(super) fn be_kept(self: &Arc<Self>) {
        // Looked at first: while Valkey is away, every call comes by here.
        if !self.is_kept.load(Ordering::SeqCst) && !self.is_kept.swap(true, Ordering::SeqCst) {
            self.shared.holders.0.lock().insert(self.id, Arc::downgrade(self));
        }
    }

    /// Whether it may be forgotten. Undecided until it is: who comes meanwhile makes itself known again.
    fn is_done(&self) -> bool {
        self.is_kept.store(false, Ordering::SeqCst);
        let is_in_use = self.is_in_use();
        if is_in_use {
            self.is_kept.store(true, Ordering::SeqCst);
        }
        !is_in_use
    }
}

impl Holders {
    /// The limit that somebody speaks for.
    pub fn get(&self, id: Uuid) -> Option<Arc<Lease>> {
        self.0.lock().get(&id)?.upgrade()
    }

    /// Says again what is held of all limits: who is silent loses it.
    pub async fn state_all(&self) {
        let all = self.all();
        all.iter().for_each(|lease| lease.note_round());
        speak(all).await;
    }

    /// Says what is held of those of which there is too much.
    pub async fn state_surplus(&self) {
        let mut some = self.all();
        some.retain(|lease| lease.has_too_much() || !lease.is_in_force());
        speak(some).await;
    }

    /// Gives back all that is not in use.
    pub async fn give_back(&self) {
        let all = self.all();
        all.iter().for_each(|lease| lease.be_exact());
        speak(all).await;
    }

    /// All of them; those of which nothing is held any more are forgotten.
    fn all(&self) -> Vec<Arc<Lease>> {
        let mut all = vec![];
        self.0.lock().retain(|_, lease| {
            let Some(lease) = lease.upgrade().filter(|lease| !lease.is_done()) else {
                return false;
            };
            all.push(lease);
            true
        });
        all
    }
}

async fn speak(leases: Vec<Arc<Lease>>) {
    let speak = async |lease: Arc<Lease>| lease.speak_and_hear().await;
    stream::iter(leases).for_each_concurrent(AT_ONCE, speak).await;
}

#[cfg(test)]
mod tests {
    use super::super::{ANSWER_TIMEOUT, Shared};
    use super::*;
    use crate::config::Secret;
    use crate::telemetry::metrics::Metrics;

    #[test]
    fn what_is_not_in_use_and_who_is_gone_is_forgotten() {
        let url = Secret::new("redis://127.0.0.1:1".to_owned());
        let shared = Shared::connect(&url, ANSWER_TIMEOUT, &Metrics::new()).unwrap();
        let kept = || shared.holders.all().len();
        let lease = Lease::new(&shared, "limit".to_owned());
        assert_eq!(kept(), 0);
        for _ in 0..2 {
            lease.try_take(4, 0);
            lease.try_take(4, 0);
            assert_eq!((kept(), kept()), (1, 1));
            lease.give();
            assert_eq!(kept(), 1);
            lease.give();
            assert_eq!(kept(), 0);
        }
        lease.try_take(4, 0);
        drop(lease);
        assert_eq!(kept(), 0);
        assert!(shared.holders.0.lock().is_empty());
    }
}
