//! Keys that nobody knows. Anybody can send as many as it likes, so what the store is asked about them is bounded.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::directory::KeyError;
use crate::common::keys::KeyHash;

/// Questions to the store at once.
const QUERIES_MAX: usize = 4;
/// How long one may wait for its turn.
const QUERY_WAIT: Duration = Duration::from_millis(500);
/// How long an unknown key is remembered as such, and how many are.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);
const REMEMBERED_MAX: usize = 10_000;
const PURGE_EVERY: Duration = Duration::from_secs(1);

/// What is known of the unknown.
pub(super) struct Strangers {
    queries: Semaphore,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    at: HashMap<KeyHash, Instant>,
    purged: Option<Instant>,
}

impl Default for Strangers {
    fn default() -> Self {
        Self { queries: Semaphore::new(QUERIES_MAX), seen: Mutex::default() }
    }
}

impl Strangers {
    /// The right to ask the store about a key, unless it was asked a moment ago or too many others ask.
    pub(super) async fn may_ask(&self, hash: &KeyHash) -> Result<SemaphorePermit<'_>, KeyError> {
        self.is_new(hash)?;
        let turn = timeout(QUERY_WAIT, self.queries.acquire()).await;
        let turn = turn.ok().and_then(Result::ok).ok_or(KeyError::Unavailable)?;
        // The one before may have been the same key.
        self.is_new(hash)?;
        Ok(turn)
    }

    fn is_new(&self, hash: &KeyHash) -> Result<(), KeyError> {
        match self.seen.lock().at.get(hash) {
            Some(seen) if seen.elapsed() < REMEMBERED_FOR => Err(KeyError::Invalid),
            _ => Ok(()),
        }
    }

    /// The store does not know it.
    pub(super) fn remember(&self, hash: KeyHash) {
        let now = Instant::now();
        let mut seen = self.seen.lock();
        // Not for each that comes: a flood of them must not make us busy.
        if seen.at.len() >= REMEMBERED_MAX && seen.purged.is_none_or(|at| now - at > PURGE_EVERY) {
            seen.at.retain(|_, at| now.duration_since(*at) < REMEMBERED_FOR);
            seen.purged = Some(now);
        }
        if seen.at.len() < REMEMBERED_MAX {
            seen.at.insert(hash, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::JoinSet;

    use super::*;
    use crate::common::keys::{ApiKey, Hasher};
    use crate::config::Secret;

    fn stranger() -> KeyHash {
        Hasher::new(&Secret::new("test".to_owned())).hash(&ApiKey::generate())
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_asked_about_once_in_a_while() {
        let (strangers, key) = (Strangers::default(), stranger());
        for _ in 0..2 {
            let mut questions = 0;
            for _ in 0..100 {
                match strangers.may_ask(&key).await {
                    Ok(_turn) => questions += 1,
                    Err(error) => assert_eq!(error, KeyError::Invalid),
                }
                strangers.remember(key);
            }
            assert_eq!(questions, 1);
            assert!(strangers.may_ask(&stranger()).await.is_ok(), "others are not held up");
            tokio::time::advance(REMEMBERED_FOR).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_are_asked_about_at_once_and_the_others_do_not_wait_for_long() {
        let strangers = Arc::new(Strangers::default());
        let began = Instant::now();
        let mut asking = JoinSet::new();
        for _ in 0..100 {
            let strangers = strangers.clone();
            asking.spawn(async move {
                // The store hangs, and so does whoever may ask it.
                let _turn = strangers.may_ask(&stranger()).await?;
                std::future::pending::<Result<(), KeyError>>().await
            });
        }
        for _ in QUERIES_MAX..100 {
            assert_eq!(asking.join_next().await.unwrap().unwrap(), Err(KeyError::Unavailable));
        }
        assert!(began.elapsed() < 2 * QUERY_WAIT, "{:?}", began.elapsed());
        let more = timeout(Duration::from_secs(3600), asking.join_next()).await;
        assert!(more.is_err(), "fewer than {QUERIES_MAX} were let through");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_has_an_end() {
        let strangers = Strangers::default();
        let remembered = || strangers.seen.lock().at.len();
        for _ in 0..REMEMBERED_MAX + 1000 {
            strangers.remember(stranger());
        }
        assert_eq!(remembered(), REMEMBERED_MAX);
        tokio::time::advance(REMEMBERED_FOR).await;
        let last = stranger();
        strangers.remember(last);
        assert_eq!(remembered(), 1, "those that are too old made room");
        assert_eq!(strangers.may_ask(&last).await.err(), Some(KeyError::Invalid));
    }
}
