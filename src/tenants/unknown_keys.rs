//! Bounds the queries about unknown keys, of which anybody can send any number.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::directory::KeyError;
use crate::common::keys::KeyHash;

const QUERIES_MAX: usize = 4;
const QUERY_WAIT: Duration = Duration::from_millis(500);
const REMEMBERED_FOR: Duration = Duration::from_secs(10);
const REMEMBERED_MAX: usize = 10_000;
const PURGE_EVERY: Duration = Duration::from_secs(1);

pub(super) struct UnknownKeys {
    queries: Semaphore,
    remembered: Mutex<Remembered>,
}

#[derive(Default)]
struct Remembered {
    at: HashMap<KeyHash, Instant>,
    purged: Option<Instant>,
}

impl Default for UnknownKeys {
    fn default() -> Self {
        Self { queries: Semaphore::new(QUERIES_MAX), remembered: Mutex::default() }
    }
}

impl UnknownKeys {
    /// Permits a query about a key, unless it was queried a moment ago or too many others wait.
    pub(super) async fn query_permit(
        &self,
        hash: &KeyHash,
    ) -> Result<SemaphorePermit<'_>, KeyError> {
        self.check_new(hash)?;
        let permit = timeout(QUERY_WAIT, self.queries.acquire()).await;
        let permit = permit.ok().and_then(Result::ok).ok_or(KeyError::Unavailable)?;
        // The query before may have been about the same key.
        self.check_new(hash)?;
        Ok(permit)
    }

    fn check_new(&self, hash: &KeyHash) -> Result<(), KeyError> {
        match self.remembered.lock().at.get(hash) {
            Some(remembered) if remembered.elapsed() < REMEMBERED_FOR => Err(KeyError::Invalid),
            _ => Ok(()),
        }
    }

    /// Remembers that the store does not know the key.
    pub(super) fn remember(&self, hash: KeyHash) {
        let now = Instant::now();
        let mut remembered = self.remembered.lock();
        // Not for each key: a flood of them must not cost much time.
        if remembered.at.len() >= REMEMBERED_MAX
            && remembered.purged.is_none_or(|at| now - at > PURGE_EVERY)
        {
            remembered.at.retain(|_, at| now.duration_since(*at) < REMEMBERED_FOR);
            remembered.purged = Some(now);
        }
        if remembered.at.len() < REMEMBERED_MAX {
            remembered.at.insert(hash, now);
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

    fn unknown_key() -> KeyHash {
        Hasher::new(&Secret::new("test".to_owned())).hash(&ApiKey::generate())
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_key_is_queried_once_in_a_while() {
        let (unknown_keys, key) = (UnknownKeys::default(), unknown_key());
        for _ in 0..2 {
            let mut questions = 0;
            for _ in 0..100 {
                match unknown_keys.query_permit(&key).await {
                    Ok(_permit) => questions += 1,
                    Err(error) => assert_eq!(error, KeyError::Invalid),
                }
                unknown_keys.remember(key);
            }
            assert_eq!(questions, 1);
            assert!(
                unknown_keys.query_permit(&unknown_key()).await.is_ok(),
                "others are not held up"
            );
            tokio::time::advance(REMEMBERED_FOR).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn queries_at_once_are_bounded_and_others_do_not_wait_for_long() {
        let unknown_keys = Arc::new(UnknownKeys::default());
        let began = Instant::now();
        let mut asking = JoinSet::new();
        for _ in 0..100 {
            let unknown_keys = unknown_keys.clone();
            asking.spawn(async move {
                // The store hangs, and so does the query.
                let _permit = unknown_keys.query_permit(&unknown_key()).await?;
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
    async fn remembered_keys_are_bounded() {
        let unknown_keys = UnknownKeys::default();
        let remembered = || unknown_keys.remembered.lock().at.len();
        for _ in 0..REMEMBERED_MAX + 1000 {
            unknown_keys.remember(unknown_key());
        }
        assert_eq!(remembered(), REMEMBERED_MAX);
        tokio::time::advance(REMEMBERED_FOR).await;
        let last = unknown_key();
        unknown_keys.remember(last);
        assert_eq!(remembered(), 1, "those that are too old made room");
        assert_eq!(unknown_keys.query_permit(&last).await.err(), Some(KeyError::Invalid));
    }
}
