//! All tenants and keys, held in memory and looked up without a lock.
//!
//! The directory is read from the store at start and after every change, so that a call never
//! queries the store. While the store is away, known keys and stored tenants are trusted for
//! [`STALE_MAX`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::Tenant;
use super::anonymous::{Anonymous, AnonymousAccess, UnknownTenant};
use super::budgets::Budgets;
use super::file_tenants::{FileTenants, TenantsOfFile};
use super::known::{BUILT_IN, Known, Source, known};
use super::secrets::by_tenant::TenantSecrets;
use super::snapshot::{Holder, Key, Snapshot};
use super::unknown_keys::UnknownKeys;
use crate::common::ids::{TenantId, TenantName};
use crate::common::keys::{ApiKey, KeyHash, KeyId};
use crate::common::usage::Meter;
use crate::config::Config;
use crate::store::{
    FileTenant, Follower, KeyState, Outage, RETRY_EVERY, Store, StoreError, StoredTenant, Subject,
};
use crate::tenants::limits::SharedLimits;

/// After an outage this long, nothing that was read from the store is trusted any more: keys may
/// have been revoked meanwhile, and tenants removed.
const STALE_MAX: Duration = Duration::from_secs(60 * 60);
/// How long a caller with a new key waits for the directory to be read again.
const RELOAD_WAIT: Duration = Duration::from_secs(2);

pub struct Directory {
    store: Store,
    secrets: TenantSecrets,
    file: FileTenants,
    /// True once a tenant called [`BUILT_IN`] was configured: there is no built-in one any more.
    built_in_replaced: AtomicBool,
    shared_limits: Option<Arc<SharedLimits>>,
    budgets: Budgets,
    snapshot: ArcSwap<Snapshot>,
    unknown_keys: UnknownKeys,
    /// Meters of removed tenants, which may still have calls in flight.
    removed: Mutex<Vec<(TenantId, Arc<Meter>)>>,
    /// Requests a reload.
    reload: Notify,
    /// When the store was last read.
    confirmed: watch::Sender<Instant>,
}

/// The reason why the directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    UnknownTenant(#[from] UnknownTenant),
}

/// The reason why a caller is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// Unknown, wrong, revoked or expired, or missing.
    Invalid,
    /// Only the store can tell, and it cannot be queried.
    Unavailable,
}

impl Directory {
    /// Reads all tenants and keys. Fails if callers without a key would have no tenant.
    pub async fn open(
        store: Store,
        config: &Config,
        shared_limits: Option<Arc<SharedLimits>>,
    ) -> Result<Self, DirectoryError> {
        let directory = Self {
            secrets: TenantSecrets::open(store.clone(), &config.secrets.keys).await?,
            store,
            file: FileTenants::new(config),
            built_in_replaced: AtomicBool::new(config.tenants.contains_key(BUILT_IN)),
            shared_limits,
            budgets: Budgets::new(config),
            snapshot: ArcSwap::default(),
            unknown_keys: UnknownKeys::default(),
            removed: Mutex::default(),
            reload: Notify::new(),
            confirmed: watch::Sender::new(Instant::now()),
        };
        directory.file.sync(&directory.store, &directory.store.load().await?).await?;
        match &directory.load().await?.0.anonymous {
            AnonymousAccess::Closed(unknown) => Err(unknown.clone().into()),
            _ => Ok(directory),
        }
    }

    /// Applies the tenants of a new configuration, as soon as the store can be read. Access without
    /// a key closes at once.
    pub fn set_config(&self, config: &Config) {
        if !self.file.replace(config) {
            return;
        }
        self.note_built_in(&self.file.load(), &BTreeMap::new());
        if self.anonymous().is_err() {
            self.snapshot.load().anonymous.end();
        }
        self.reload.notify_one();
    }

    /// Remembers that a tenant takes the place of the built-in one, for as long as the gateway
    /// runs: removing its limits must not mean "no limits".
    fn note_built_in(&self, file: &TenantsOfFile, stored: &BTreeMap<TenantName, StoredTenant>) {
        if file.tenants.contains_key(BUILT_IN) || stored.contains_key(BUILT_IN) {
            self.built_in_replaced.store(true, Ordering::Release);
        }
    }

    /// Follows the store. Runs for ever.
    pub async fn follow(&self) {
        tokio::join!(self.follow_keys(), self.secrets.follow());
    }

    async fn follow_keys(&self) {
        let changes = self.store.changes(Subject::Policy);
        let meanwhile = "known keys keep working, others are refused";
        let mut follower = Follower::new(changes, "tenants and keys", meanwhile);
        let meanwhile = "new ones are not served";
        let mut outage = Outage::new(&self.store, "tenants of the configuration file", meanwhile);
        let mut is_synced = true;
        loop {
            let wake = async {
                match is_synced {
                    true => self.reload.notified().await,
                    false => sleep(RETRY_EVERY).await,
                }
            };
            follower.changed(wake).await;
            let before = self.snapshot.load_full();
            let (loaded, synced) = loop {
                if let Some(loaded) = follower.retry(self.load().await).await {
                    break loaded;
                }
            };
            is_synced = outage.note(synced).is_some();
            loaded.anonymous.warn_if_closed(&before.anonymous);
        }
    }

    /// Reads all tenants and keys. Unchanged tenants keep their usage of limits. If the store could
    /// not be told of the file's tenants, new ones are missing: none may be taken for the one that
    /// had its name before.
    async fn load(&self) -> Result<(Arc<Snapshot>, Result<(), StoreError>), StoreError> {
        let began = Instant::now();
        let mut contents = self.store.load().await?;
        let synced = match self.file.sync(&self.store, &contents).await {
            Ok(false) => Ok(()),
            Ok(true) => {
                contents = self.store.load().await?;
                // The secrets of tenants that had no generation. If this fails, `follow` reads them
                // later.
                let _ = self.secrets.load().await;
                Ok(())
            }
            Err(error) => Err(error),
        };
        let file = self.file.without_ended(&mut contents.file_tenants);
        self.note_built_in(&file, &contents.tenants);
        let anonymous = file.anonymous.as_ref();
        let is_stored = anonymous.is_some_and(|id| contents.tenants.contains_key(id));
        let known = self.known_with(&file, &contents.tenants, &contents.file_tenants);
        let source = anonymous.and_then(|id| known.get(id)).map(|tenant| tenant.source);
        let before = self.snapshot.load_full();
        let shared_limits = self.shared_limits.as_ref();
        let mut snapshot = before.next(known, contents.keys, shared_limits, &self.budgets);
        let source = source.unwrap_or(Source::Store);
        snapshot.anonymous = before.anonymous.next(anonymous, &snapshot.tenants, source, is_stored);
        let left = before.tenants.values().filter(|it| it.removed.is_cancelled());
        let left = left.map(|tenant| (tenant.id.clone(), tenant.meter.clone()));
        self.removed.lock().extend(left);
        let snapshot = Arc::new(snapshot);
        self.snapshot.store(snapshot.clone());
        self.confirmed.send_replace(began);
        Ok((snapshot, synced))
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    pub fn secrets(&self) -> &TenantSecrets {
        &self.secrets
    }

    /// Returns all tenants, given those in the store.
    pub fn known_tenants(
        &self,
        stored: &BTreeMap<TenantName, StoredTenant>,
        file_tenants: &BTreeMap<TenantName, FileTenant>,
    ) -> Known {
        self.known_with(&self.file.load(), stored, file_tenants)
    }

    fn known_with(
        &self,
        file: &TenantsOfFile,
        stored: &BTreeMap<TenantName, StoredTenant>,
        file_tenants: &BTreeMap<TenantName, FileTenant>,
    ) -> Known {
        let is_replaced = self.built_in_replaced.load(Ordering::Acquire);
        let anonymous = file.anonymous.as_ref().filter(|_| !is_replaced);
        known(&file.tenants, stored, file_tenants, anonymous)
    }

    /// Returns whether a tenant is in the configuration file.
    pub fn is_in_file(&self, id: &TenantName) -> bool {
        self.file.load().tenants.contains_key(id)
    }

    /// Returns the access of callers without a key, if they may call. Changing or revoking that in
    /// the file, or removing its tenant there, applies at once, even if the store is away. A tenant
    /// of the store is trusted no longer than keys are.
    pub fn anonymous(&self) -> Result<Arc<Anonymous>, KeyError> {
        let file = self.file.load();
        let id = file.anonymous.as_ref().ok_or(KeyError::Invalid)?;
        let snapshot = self.snapshot.load();
        let AnonymousAccess::Open { access, source, is_stored } = &snapshot.anonymous else {
            return Err(KeyError::Invalid);
        };
        if access.tenant.id.name() != id {
            // The file names another since, which is read with the store.
            return Err(KeyError::Unavailable);
        }
        match source {
            Source::Anonymous => Ok(access.clone()),
            // A file was without the tenant in between: the new one is read with the store.
            Source::File if file.tenants.contains_key(id) && access.gone.is_cancelled() => {
                Err(KeyError::Unavailable)
            }
            Source::File if file.tenants.contains_key(id) => Ok(access.clone()),
            _ if !is_stored => Err(KeyError::Invalid),
            _ if self.is_stale() => Err(KeyError::Unavailable),
            _ => Ok(access.clone()),
        }
    }

    /// Warns if no caller can authenticate, with a key or without one.
    pub fn warn_if_nobody_can_call(&self) {
        if self.file.load().anonymous.is_none() && self.snapshot.load().keys.is_empty() {
            tracing::warn!(
                "nobody can call: there is no key (`trunkline key create TENANT`), and no \
                 `auth.anonymous_tenant`"
            );
        }
    }

    pub fn tenant(&self, id: &TenantName) -> Option<Arc<Tenant>> {
        self.snapshot.load().tenants.get(id).cloned()
    }

    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.snapshot.load().tenants.values().cloned().collect()
    }

    /// Tells when tenants and keys were read again.
    pub fn changed(&self) -> watch::Receiver<Instant> {
        self.confirmed.subscribe()
    }

    /// Returns the meters of all tenants, and of those removed a moment ago.
    pub(super) fn meters(&self) -> Vec<(TenantId, Arc<Meter>)> {
        let tenants = self.tenants();
        let mut meters: Vec<_> =
            tenants.iter().map(|tenant| (tenant.id.clone(), tenant.meter.clone())).collect();
        let mut removed = self.removed.lock();
        meters.extend(removed.iter().cloned());
        // A meter that only these two lists hold counts nothing more.
        removed.retain(|(_, meter)| Arc::strong_count(meter) > 2);
        meters
    }

    /// Returns when each key was last used, for keys that were.
    pub(super) fn key_uses(&self) -> Vec<(KeyId, i64)> {
        let snapshot = self.snapshot.load();
        let uses = snapshot.keys.values().map(|key| (key.id(), key.used()));
        uses.filter(|(_, used)| *used > 0).collect()
    }

    /// Returns the key, if it is valid. Unknown, wrong, revoked and expired keys give the same
    /// error.
    pub async fn authenticate(&self, key: &ApiKey) -> Result<Arc<Key>, KeyError> {
        let hash = self.store.hash(key);
        if self.is_stale() {
            return Err(KeyError::Unavailable);
        }
        match self.known(key.id(), &hash) {
            Some(key) => Ok(key),
            None => self.look_up(key.id(), hash).await,
        }
    }

    /// Returns a key by its id alone, if it is valid: for whoever has shown the key before.
    pub fn valid_key(&self, id: KeyId) -> Result<Arc<Key>, KeyError> {
        if self.is_stale() {
            return Err(KeyError::Unavailable);
        }
        let now = Timestamp::now().as_millisecond();
        let key = self.snapshot.load().keys.get(&id).cloned();
        key.filter(|key| key.is_active(now)).ok_or(KeyError::Invalid)
    }

    /// Returns whether there is a key of an administrator.
    pub fn has_admin_key(&self) -> bool {
        self.snapshot.load().keys.values().any(|key| matches!(key.holder, Holder::Admin))
    }

    /// Returns whether the store has been away for longer than [`STALE_MAX`].
    pub fn is_stale(&self) -> bool {
        self.confirmed.borrow().elapsed() > STALE_MAX
    }

    /// Has the store read again; returns whether it was in time. What the store had at that moment
    /// is known then.
    pub async fn read_since(&self, moment: Instant) -> bool {
        let mut confirmed = self.confirmed.subscribe();
        self.reload.notify_one();
        let reloaded = confirmed.wait_for(|confirmed| *confirmed >= moment);
        matches!(timeout(RELOAD_WAIT, reloaded).await, Ok(Ok(_)))
    }

    fn known(&self, id: KeyId, hash: &KeyHash) -> Option<Arc<Key>> {
        let snapshot = self.snapshot.load();
        let key = snapshot.keys.get(&id)?;
        let now = Timestamp::now().as_millisecond();
        key.accepts(hash, now).then(|| key.clone())
    }

    /// Looks up a key that may be newer than the snapshot.
    async fn look_up(&self, id: KeyId, hash: KeyHash) -> Result<Arc<Key>, KeyError> {
        let _query = self.unknown_keys.query_permit(&hash).await?;
        let asked = Instant::now();
        let record = self.store.key(&id).await.map_err(|_| KeyError::Unavailable)?;
        let now = Timestamp::now().as_millisecond();
        if !record
            .is_some_and(|record| record.hash == hash && record.state(now) == KeyState::Active)
        {
            self.unknown_keys.remember(hash);
            return Err(KeyError::Invalid);
        }
        if !self.read_since(asked).await {
            return Err(KeyError::Unavailable);
        }
        self.known(id, &hash).ok_or_else(|| {
            // For example, its tenant is no longer in the file.
            self.unknown_keys.remember(hash);
            KeyError::Invalid
        })
    }
}
