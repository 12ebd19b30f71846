//! All tenants and keys, held in memory and looked up without a lock.
//!
//! The directory is read from the store at start and after every change, so that a call never
//! queries the store. While the store is away, known keys are accepted for [`STALE_MAX`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::Tenant;
use super::known::{Known, known};
use super::secrets::by_tenant::TenantSecrets;
use super::unknown_keys::UnknownKeys;
use crate::common::ids::TenantId;
use crate::common::keys::{ApiKey, KeyHash, KeyId};
use crate::common::policy::Policy;
use crate::common::usage::Meter;
use crate::config::Config;
use crate::store::{Follower, KeyOwner, KeyRecord, KeyState, Store, StoreError, Subject};
use crate::tenants::limits::SharedLimits;

/// After an outage this long, keys are no longer accepted: some may have been revoked meanwhile.
const STALE_MAX: Duration = Duration::from_secs(60 * 60);
/// How long a caller with a new key waits for the directory to be read again.
const RELOAD_WAIT: Duration = Duration::from_secs(2);

pub struct Directory {
    store: Store,
    secrets: TenantSecrets,
    file: ArcSwap<FileTenants>,
    shared_limits: Option<Arc<SharedLimits>>,
    snapshot: ArcSwap<Snapshot>,
    unknown_keys: UnknownKeys,
    /// Meters of removed tenants, which may still have calls in flight.
    removed: Mutex<Vec<(TenantId, Arc<Meter>)>>,
    /// Requests a reload.
    reload: Notify,
    /// When the store was last read.
    confirmed: watch::Sender<Instant>,
}

/// The tenants of the configuration file.
#[derive(PartialEq, Eq)]
struct FileTenants {
    tenants: BTreeMap<TenantId, Policy>,
    /// The tenant of callers without a key.
    anonymous: Option<TenantId>,
}

impl FileTenants {
    fn new(config: &Config) -> Self {
        let anonymous = config.auth.anonymous_tenant.clone();
        Self { tenants: config.tenants.clone(), anonymous }
    }

    /// Returns all tenants, given those in the store.
    fn known(&self, stored: BTreeMap<TenantId, Policy>) -> Known {
        known(&self.tenants, stored, self.anonymous.as_ref())
    }
}

/// All tenants and keys at one moment. Immutable: a change makes a new one.
#[derive(Default)]
struct Snapshot {
    tenants: HashMap<TenantId, Arc<Tenant>>,
    keys: HashMap<KeyId, Arc<Key>>,
    /// The tenant of callers without a key.
    anonymous: Option<Arc<Tenant>>,
}

/// A key that is not revoked.
pub struct Key {
    record: KeyRecord,
    pub holder: Holder,
    /// In milliseconds since 1970; 0 if never.
    used: AtomicI64,
    /// Cancelled when the key is replaced or removed: streams that it opened end then.
    pub gone: CancellationToken,
}

/// The owner of a key.
#[derive(Clone)]
pub enum Holder {
    Tenant(Arc<Tenant>),
    Admin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// Unknown, wrong, revoked or expired.
    Invalid,
    /// Unknown, and the store cannot be queried.
    Unavailable,
}

impl Holder {
    /// Returns whether both are the same administrator or the same instance of a tenant.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tenant(one), Self::Tenant(other)) => Arc::ptr_eq(one, other),
            (Self::Admin, Self::Admin) => true,
            _ => false,
        }
    }
}

impl Directory {
    pub async fn open(
        store: Store,
        config: &Config,
        shared_limits: Option<Arc<SharedLimits>>,
    ) -> Result<Self, StoreError> {
        let directory = Self {
            secrets: TenantSecrets::open(store.clone(), &config.secrets.keys).await?,
            store,
            file: ArcSwap::from_pointee(FileTenants::new(config)),
            shared_limits,
            snapshot: ArcSwap::default(),
            unknown_keys: UnknownKeys::default(),
            removed: Mutex::default(),
            reload: Notify::new(),
            confirmed: watch::Sender::new(Instant::now()),
        };
        directory.load().await?;
        Ok(directory)
    }

    /// Applies the tenants of a new configuration, as soon as the store can be read.
    pub fn set_config(&self, config: &Config) {
        let file = FileTenants::new(config);
        if file != **self.file.load() {
            self.file.store(Arc::new(file));
            self.reload.notify_one();
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
        loop {
            follower.changed(self.reload.notified()).await;
            while follower.retry(self.load().await).await.is_none() {}
        }
    }

    /// Reads all tenants and keys. Unchanged tenants keep their usage of limits.
    async fn load(&self) -> Result<(), StoreError> {
        let began = Instant::now();
        let contents = self.store.load().await?;
        let file = self.file.load_full();
        let policies = file.known(contents.tenants).into_iter();
        let policies = policies.map(|(id, (_, policy))| (id, policy)).collect();
        let before = self.snapshot.load_full();
        let (anonymous, limits) = (file.anonymous.as_ref(), self.shared_limits.as_ref());
        let snapshot = before.next(policies, contents.keys, anonymous, limits);
        let left = before.tenants.values().filter(|it| !snapshot.tenants.contains_key(&it.id));
        let left = left.map(|tenant| (tenant.id.clone(), tenant.meter.clone()));
        self.removed.lock().extend(left);
        self.snapshot.store(Arc::new(snapshot));
        self.confirmed.send_replace(began);
        Ok(())
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn secrets(&self) -> &TenantSecrets {
        &self.secrets
    }

    /// Returns all tenants, given those in the store.
    pub fn known_tenants(&self, stored: BTreeMap<TenantId, Policy>) -> Known {
        self.file.load().known(stored)
    }

    /// Returns whether a tenant is in the configuration file.
    pub fn is_in_file(&self, id: &TenantId) -> bool {
        self.file.load().tenants.contains_key(id)
    }

    /// Returns the tenant of callers without a key, if they may call. Revoking that applies at
    /// once, even if the store is away.
    pub fn anonymous(&self) -> Option<Arc<Tenant>> {
        self.file.load().anonymous.as_ref()?;
        self.snapshot.load().anonymous.clone()
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

    pub fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.snapshot.load().tenants.get(id).cloned()
    }

    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.snapshot.load().tenants.values().cloned().collect()
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

    /// Returns whether the store has been away for longer than [`STALE_MAX`].
    pub fn is_stale(&self) -> bool {
        self.confirmed.borrow().elapsed() > STALE_MAX
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
        let mut confirmed = self.confirmed.subscribe();
        self.reload.notify_one();
        let reloaded = confirmed.wait_for(|confirmed| *confirmed >= asked);
        if !matches!(timeout(RELOAD_WAIT, reloaded).await, Ok(Ok(_))) {
            return Err(KeyError::Unavailable);
        }
        self.known(id, &hash).ok_or_else(|| {
            // For example, its tenant is no longer in the file.
            self.unknown_keys.remember(hash);
            KeyError::Invalid
        })
    }
}

impl Key {
    pub fn id(&self) -> KeyId {
        self.record.id
    }

    /// In milliseconds since 1970.
    pub fn expires(&self) -> Option<i64> {
        self.record.expires
    }

    /// Returns whether the hash matches a valid key, and records the use.
    fn accepts(&self, hash: &KeyHash, now: i64) -> bool {
        let accepts = self.record.hash == *hash && self.record.state(now) == KeyState::Active;
        if accepts {
            self.used.store(now, Ordering::Relaxed);
        }
        accepts
    }

    fn used(&self) -> i64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl Snapshot {
    /// Returns the next snapshot. Tenants and keys that did not change are the same objects.
    fn next(
        &self,
        policies: BTreeMap<TenantId, Policy>,
        keys: Vec<KeyRecord>,
        anonymous: Option<&TenantId>,
        shared_limits: Option<&Arc<SharedLimits>>,
    ) -> Self {
        let tenants: HashMap<_, _> = policies
            .into_iter()
            .map(|(id, policy)| {
                let tenant = match self.tenants.get(&id) {
                    Some(before) if before.policy == policy => before.clone(),
                    Some(before) => Arc::new(before.with_policy(policy)),
                    None => Arc::new(Tenant::new(id.clone(), policy, shared_limits.cloned())),
                };
                (id, tenant)
            })
            .collect();
        let keys = keys.into_iter().filter_map(|record| {
            let holder = match &record.owner {
                KeyOwner::Admin => Holder::Admin,
                KeyOwner::Tenant(id) => Holder::Tenant(tenants.get(id)?.clone()),
            };
            Some((record.id, self.key(record, holder)))
        });
        let keys = keys.collect();
        let anonymous = anonymous.and_then(|id| tenants.get(id)).cloned();
        let next = Self { keys, anonymous, tenants };
        for (id, tenant) in &self.tenants {
            if !next.tenants.get(id).is_some_and(|after| Arc::ptr_eq(tenant, after)) {
                tenant.gone.cancel();
            }
        }
        for (id, key) in &self.keys {
            if !next.keys.get(id).is_some_and(|after| Arc::ptr_eq(key, after)) {
                key.gone.cancel();
            }
        }
        next
    }

    /// Returns the same object as before, if the key has not changed.
    fn key(&self, record: KeyRecord, holder: Holder) -> Arc<Key> {
        let before = self.keys.get(&record.id);
        if let Some(before) = before
            && before.record.hash == record.hash
            && before.record.expires == record.expires
            && before.holder.is_same(&holder)
        {
            return before.clone();
        }
        let used = before.map_or(record.last_used.unwrap_or_default(), |before| before.used());
        Arc::new(Key { record, holder, used: AtomicI64::new(used), gone: CancellationToken::new() })
    }
}
