//! Keys that nobody knows. Anybody can send as many as it likes, so what the store is asked about them is bounded.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::directory::KeyError;
use crate::keys::KeyHash;

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
