//! Writes down what tenants have used, and when keys were last used: every few seconds, and never on a call's way. As
//! long as the store is away all is kept here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use uuid::Uuid;

use super::directory::Directory;
use crate::common::ids::{ServerId, TenantId};
use crate::common::keys::KeyId;
use crate::store::{Counts, Store, StoreError, UsageRow};

/// How often. A crash loses what came in since, and what was being written.
const EVERY: Duration = Duration::from_secs(2);
/// Rows that are kept while the store is away. When there are more, minutes are no longer told apart.
const ROWS_MAX: usize = 200_000;
/// Rows that are sent at once.
const BATCH_MAX: usize = 1_000;
const MINUTE_MS: i64 = 60_000;
/// How long usage and the audit log are kept in the store, and how often what is older is taken out; sooner again if
/// that failed.
const KEPT_MS: i64 = 400 * 24 * 60 * MINUTE_MS;
const CLEAN_EVERY: Duration = Duration::from_secs(60 * 60);
const CLEAN_AGAIN: Duration = Duration::from_secs(60);

/// What is to be written down.
pub struct Books {
    store: Store,
    directory: Arc<Directory>,
    /// With the number of a batch it names the batch, so that none is added twice.
    replica: String,
    batch: u64,
    /// Sent under that number, and not known to be written: it is sent again as it was.
    in_doubt: Vec<UsageRow>,
    /// How many rows to send at once: fewer after some that the store refused.
    batch_len: usize,
    rows: HashMap<Subject, Counts>,
    minute: i64,
    /// What the store knows of the last uses of keys.
    noted: HashMap<KeyId, i64>,
}

type Subject = (i64, TenantId, ServerId, String);

impl Books {
    /// The books of one process.
    pub fn new(store: Store, directory: Arc<Directory>) -> Self {
        Self {
            store,
            directory,
            replica: Uuid::new_v4().simple().to_string(),
            batch: 0,
            in_doubt: vec![],
            batch_len: BATCH_MAX,
            rows: HashMap::new(),
            minute: 0,
            noted: HashMap::new(),
        }
    }

    /// Keeps the books until the future is dropped, which loses nothing.
    pub async fn keep(&mut self) {
        // Taking out what is old may take long, and what is new must not wait for it.
        let store = self.store.clone();
        tokio::join!(self.keep_writing(), clean(&store));
    }

    async fn keep_writing(&mut self) {
        let mut turns = interval_at(Instant::now() + EVERY, EVERY);
        // After one that took longer the next follows at once: what came in meanwhile has waited for it.
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            // Whether it is away is said by those who ask it all the time; here nothing is lost.
            if let Err(error) = self.write().await {
                tracing::debug!(%error, rows = self.rows.len(), "usage is kept until the store is back");
            }
        }
    }

    /// Writes down what there is.
    pub async fn write(&mut self) -> Result<(), StoreError> {
        self.collect(Timestamp::now().as_millisecond());
        while !(self.rows.is_empty() && self.in_doubt.is_empty()) {
            if self.in_doubt.is_empty() {
                self.batch += 1;
                self.in_doubt = self.take_batch();
            }
            match self.store.add_usage(&self.replica, self.batch, &self.in_doubt).await {
                Ok(()) => {
                    self.in_doubt.clear();
                    self.batch_len = (self.batch_len * 2).min(BATCH_MAX);
                }
                Err(error @ StoreError::Unavailable(_)) => return Err(error),
                Err(error) => self.set_apart(&error),
            }
        }
        self.note_uses().await
    }

    fn collect(&mut self, now: i64) {
        if self.rows.len() < ROWS_MAX {
            self.minute = now - now.rem_euclid(MINUTE_MS);
        }
        for (tenant, meter) in self.directory.meters() {
            for (server, tools) in meter.take() {
                for (tool, counts) in tools {
                    let subject = (self.minute, tenant.clone(), server.clone(), tool);
                    *self.rows.entry(subject).or_default() += counts;
                }
            }
        }
    }

    /// The store will never take this batch. Smaller ones follow, until only the row is left that it does not like:
    /// one row must not keep all others from being written.
    fn set_apart(&mut self, error: &StoreError) {
        let refused = std::mem::take(&mut self.in_doubt);
        if let [row] = &refused[..] {
            tracing::error!(%error, ?row, "what was used could not be written, and is lost");
            return;
        }
        self.batch_len = (refused.len() / 2).max(1);
        for UsageRow { minute, tenant, server, tool, counts } in refused {
            *self.rows.entry((minute, tenant, server, tool.to_string())).or_default() += counts;
        }
    }

    fn take_batch(&mut self) -> Vec<UsageRow> {
        let subjects: Vec<Subject> = self.rows.keys().take(self.batch_len).cloned().collect();
        let rows = subjects.into_iter().filter_map(|subject| {
            let counts = self.rows.remove(&subject)?;
            let (minute, tenant, server, tool) = subject;
            Some(UsageRow { minute, tenant, server, tool: tool.into(), counts })
        });
        rows.collect()
    }

    async fn note_uses(&mut self) -> Result<(), StoreError> {
        let used = self.directory.key_uses();
        let news: Vec<(KeyId, i64)> =
            used.iter().filter(|(id, at)| self.noted.get(id) != Some(at)).copied().collect();
        if !news.is_empty() {
            self.store.note_uses(&news).await?;
        }
        self.noted = used.into_iter().collect();
        Ok(())
    }
}

/// Takes out what is too old, now and then. Never done.
async fn clean(store: &Store) {
    loop {
        let before = Timestamp::now().as_millisecond() - KEPT_MS;
        let cleaned = store.delete_old(before, before).await;
        sleep(if cleaned.is_ok() { CLEAN_EVERY } else { CLEAN_AGAIN }).await;
    }
}
