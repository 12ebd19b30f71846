//! Writes tenants' usage and the last uses of keys to the store, every few seconds and never during
//! a call. Keeps them while the store is away.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use uuid::Uuid;

use super::directory::Directory;
use crate::common::keys::KeyId;
use crate::common::usage::Counts;
use crate::store::{Outage, Store, StoreError, UsageKey};
use crate::telemetry::metrics::UsageMetrics;

/// A crash loses the usage since the last write.
const WRITE_EVERY: Duration = Duration::from_secs(2);
/// Rows kept while the store is away. Beyond this, minutes are merged.
const ROWS_MAX: usize = 200_000;
/// Rows written at once.
const BATCH_MAX: usize = 1_000;
/// So many rows are tried one by one, before a store that refuses them all is left alone until the
/// next write.
const REFUSED_MAX: usize = 10;
const MINUTE_MS: i64 = 60_000;
/// How long usage and the audit log are kept, and how often older rows are deleted.
const RETENTION_MS: i64 = 400 * 24 * 60 * MINUTE_MS;
const DELETE_EVERY: Duration = Duration::from_secs(60 * 60);
const DELETE_RETRY: Duration = Duration::from_secs(60);

pub struct UsageWriter {
    store: Store,
    directory: Arc<Directory>,
    /// Identifies a batch together with its number, so that none is added twice.
    replica: String,
    batch: u64,
    /// Sent under this number, and possibly written: sent again unchanged.
    unconfirmed: BTreeMap<UsageKey, Counts>,
    /// Reduced after the store refused a batch.
    batch_len: usize,
    rows: BTreeMap<UsageKey, Counts>,
    /// Refused one by one, while the store accepted no row: tried again when it accepts one.
    refused: BTreeMap<UsageKey, Counts>,
    minute: i64,
    /// The last uses of keys that the store has.
    written_uses: HashMap<KeyId, i64>,
    outage: Outage,
    metrics: UsageMetrics,
}

impl UsageWriter {
    pub fn new(store: Store, directory: Arc<Directory>, metrics: UsageMetrics) -> Self {
        Self {
            outage: Outage::new(&store, "usage", "it is kept in memory and written later"),
            metrics,
            store,
            directory,
            replica: Uuid::new_v4().simple().to_string(),
            batch: 0,
            unconfirmed: BTreeMap::new(),
            batch_len: BATCH_MAX,
            rows: BTreeMap::new(),
            refused: BTreeMap::new(),
            minute: 0,
            written_uses: HashMap::new(),
        }
    }

    /// Writes until the future is dropped, which loses nothing.
    pub async fn run(&mut self) {
        // Deleting may take long, and must not delay writing.
        let store = self.store.clone();
        tokio::join!(self.write_periodically(), delete_expired(&store));
    }

    async fn write_periodically(&mut self) {
        let mut ticks = interval_at(Instant::now() + WRITE_EVERY, WRITE_EVERY);
        // After a slow write the next follows at once, for usage that came meanwhile.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let outcome = self.write().await;
            self.outage.note(outcome);
        }
    }

    /// Writes all usage so far. What cannot be written now is kept.
    pub async fn write(&mut self) -> Result<(), StoreError> {
        self.collect(Timestamp::now().as_millisecond());
        let outcome = self.write_collected().await;
        let unwritten = self.rows.len() + self.unconfirmed.len() + self.refused.len();
        self.metrics.unwritten_rows.set(i64::try_from(unwritten).unwrap_or(i64::MAX));
        outcome
    }

    async fn write_collected(&mut self) -> Result<(), StoreError> {
        let mut has_accepted = false;
        let mut refused_now = 0;
        while !(self.rows.is_empty() && self.unconfirmed.is_empty()) {
            if self.unconfirmed.is_empty() {
                self.batch += 1;
                self.unconfirmed = self.take_batch();
            }
            match self.store.add_usage(&self.replica, self.batch, &self.unconfirmed).await {
                Ok(()) => {
                    self.unconfirmed.clear();
                    self.batch_len = (self.batch_len * 2).min(BATCH_MAX);
                    has_accepted = true;
                    self.retry_refused();
                }
                Err(error @ StoreError::InvalidValue(_)) if self.unconfirmed.len() == 1 => {
                    if has_accepted {
                        self.give_up(&error);
                        continue;
                    }
                    for (key, counts) in mem::take(&mut self.unconfirmed) {
                        *self.refused.entry(key).or_default() += counts;
                    }
                    refused_now += 1;
                    let are_all_refused = self.rows.is_empty();
                    if are_all_refused {
                        self.retry_refused();
                    }
                    if are_all_refused || refused_now == REFUSED_MAX {
                        return Err(error);
                    }
                }
                Err(StoreError::InvalidValue(_)) => self.split_refused(),
                // Whatever it is, no row is to blame: all are kept.
                Err(error) => return Err(error),
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
                    let (tenant, server) = (tenant.clone(), server.clone());
                    let key = UsageKey { minute: self.minute, tenant, server, tool };
                    *self.rows.entry(key).or_default() += counts;
                }
            }
        }
    }

    /// Splits a batch that was refused for a value in it, until only the bad row is refused: one
    /// row must not block all others.
    fn split_refused(&mut self) {
        self.batch_len = (self.unconfirmed.len() / 2).max(1);
        let refused = mem::take(&mut self.unconfirmed);
        self.keep(refused);
    }

    /// Loses a row, and counts its calls. Only after the store has accepted another row in the same
    /// write: a constraint that refuses every row says nothing about this one.
    fn give_up(&mut self, error: &StoreError) {
        let refused = mem::take(&mut self.unconfirmed);
        tracing::error!(%error, row = ?refused, "usage could not be written, and is lost");
        self.metrics.lost_calls.inc_by(refused.values().map(|counts| counts.calls).sum());
    }

    fn retry_refused(&mut self) {
        let refused = mem::take(&mut self.refused);
        self.keep(refused);
    }

    fn keep(&mut self, rows: BTreeMap<UsageKey, Counts>) {
        for (key, counts) in rows {
            *self.rows.entry(key).or_default() += counts;
        }
    }

    fn take_batch(&mut self) -> BTreeMap<UsageKey, Counts> {
        let rest = self.rows.keys().nth(self.batch_len).cloned();
        let rest = rest.map(|first| self.rows.split_off(&first)).unwrap_or_default();
        mem::replace(&mut self.rows, rest)
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

/// Deletes old rows regularly. Runs for ever.
async fn delete_expired(store: &Store) {
    loop {
        let before = Timestamp::now().as_millisecond() - RETENTION_MS;
        let cleaned = store.delete_old(before, before).await;
        sleep(if cleaned.is_ok() { DELETE_EVERY } else { DELETE_RETRY }).await;
    }
}
