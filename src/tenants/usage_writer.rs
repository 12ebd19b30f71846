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
const WRITE_EVERY: Duration = Duration::from_secs(2);
/// Rows that are kept while the store is away. When there are more, minutes are no longer told apart.
const ROWS_MAX: usize = 200_000;
/// Rows that are sent at once.
const BATCH_MAX: usize = 1_000;
const MINUTE_MS: i64 = 60_000;
/// How long usage and the audit log are kept in the store, and how often what is older is taken out; sooner again if
/// that failed.
const RETENTION_MS: i64 = 400 * 24 * 60 * MINUTE_MS;
const DELETE_EVERY: Duration = Duration::from_secs(60 * 60);
const DELETE_RETRY: Duration = Duration::from_secs(60);

/// What is to be written down.
pub struct UsageWriter {
    store: Store,
    directory: Arc<Directory>,
    /// With the number of a batch it names the batch, so that none is added twice.
    replica: String,
    batch: u64,
    /// Sent under that number, and not known to be written: it is sent again as it was.
    unconfirmed: Vec<UsageRow>,
    /// How many rows to send at once: fewer after some that the store refused.
    batch_len: usize,
    rows: HashMap<Subject, Counts>,
    minute: i64,
    /// What the store knows of the last uses of keys.
    written_uses: HashMap<KeyId, i64>,
}

type Subject = (i64, TenantId, ServerId, String);

impl UsageWriter {
    /// The usage_writer of one process.
    pub fn new(store: Store, directory: Arc<Directory>) -> Self {
        Self {
            store,
            directory,
            replica: Uuid::new_v4().simple().to_string(),
            batch: 0,
            unconfirmed: vec![],
            batch_len: BATCH_MAX,
            rows: HashMap::new(),
            minute: 0,
            written_uses: HashMap::new(),
        }
    }

    /// Keeps the usage_writer until the future is dropped, which loses nothing.
    pub async fn run(&mut self) {
        // Taking out what is old may take long, and what is new must not wait for it.
        let store = self.store.clone();
        tokio::join!(self.write_periodically(), delete_expired(&store));
    }

    async fn write_periodically(&mut self) {
        let mut ticks = interval_at(Instant::now() + WRITE_EVERY, WRITE_EVERY);
        // After one that took longer the next follows at once: what came in meanwhile has waited for it.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Whether it is away is said by those who ask it all the time; here nothing is lost.
            if let Err(error) = self.write().await {
                tracing::debug!(%error, rows = self.rows.len(), "usage is kept until the store is back");
            }
        }
    }

    /// Writes down what there is.
    pub async fn write(&mut self) -> Result<(), StoreError> {
        self.collect(Timestamp::now().as_millisecond());
        while !(self.rows.is_empty() && self.unconfirmed.is_empty()) {
            if self.unconfirmed.is_empty() {
                self.batch += 1;
                self.unconfirmed = self.take_batch();
            }
            match self.store.add_usage(&self.replica, self.batch, &self.unconfirmed).await {
                Ok(()) => {
                    self.unconfirmed.clear();
                    self.batch_len = (self.batch_len * 2).min(BATCH_MAX);
                }
                Err(error @ StoreError::Unavailable(_)) => return Err(error),
                Err(error) => self.split_refused(&error),
            }
        }
        self.write_key_uses().await
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
    fn split_refused(&mut self, error: &StoreError) {
        let refused = std::mem::take(&mut self.unconfirmed);
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

    async fn write_key_uses(&mut self) -> Result<(), StoreError> {
        let used = self.directory.key_uses();
        let news: Vec<(KeyId, i64)> =
            used.iter().filter(|(id, at)| self.written_uses.get(id) != Some(at)).copied().collect();
        if !news.is_empty() {
            self.store.record_key_uses(&news).await?;
        }
        self.written_uses = used.into_iter().collect();
        Ok(())
    }
}

/// Takes out what is too old, now and then. Never done.
async fn delete_expired(store: &Store) {
    loop {
        let before = Timestamp::now().as_millisecond() - RETENTION_MS;
        let cleaned = store.delete_old(before, before).await;
        sleep(if cleaned.is_ok() { DELETE_EVERY } else { DELETE_RETRY }).await;
    }
}
