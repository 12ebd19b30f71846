//! Who there is: all tenants and keys, held in memory and looked up without a lock.
//!
//! The whole of it is read from the store at start and again whenever something has changed there, so that a call
//! never asks the store. When the store is away, whoever was known stays known for [`STALE_MAX`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use super::Tenant;
use super::known::{Known, known};
use super::secrets::by_tenant::TenantSecrets;
use super::snapshot::{Key, Snapshot};
use super::unknown_keys::UnknownKeys;
use super::usage::Meter;
use crate::common::ids::TenantId;
use crate::common::keys::{ApiKey, KeyHash, KeyId};
use crate::common::policy::Policy;
use crate::config::Config;
use crate::store::{Follower, KeyState, Store, StoreError};
use crate::tenants::limits::SharedLimits;

/// How long keys and tenants are believed without a word from the store: revoked and removed ones among them would still be
/// let in.
const STALE_MAX: Duration = Duration::from_secs(60 * 60);
/// How long a caller with a new key waits until the directory has it.
const RELOAD_WAIT: Duration = Duration::from_secs(2);

/// All tenants and keys.
pub struct Directory {
    store: Store,
    secrets: TenantSecrets,
    file: ArcSwap<FileTenants>,
    shared_limits: Option<Arc<SharedLimits>>,
    snapshot: ArcSwap<Snapshot>,
    unknown_keys: UnknownKeys,
    /// Of tenants that are no longer there, but may still have calls in flight.
    removed: Mutex<Vec<(TenantId, Arc<Meter>)>>,
    /// Asks for a reload.
    reload: Notify,
    /// When the snapshot was last known to be what the store has.
    confirmed: watch::Sender<Instant>,
}

/// What the configuration says of tenants.
#[derive(PartialEq, Eq)]
struct FileTenants {
    tenants: BTreeMap<TenantId, Policy>,
    /// That of callers without a key.
    anonymous: Option<TenantId>,
}

impl FileTenants {
    fn new(config: &Config) -> Self {
        let anonymous = config.auth.anonymous_tenant.clone();
        Self { tenants: config.tenants.clone(), anonymous }
    }

    /// Which tenants there are, with these in the store.
    fn known(&self, stored: BTreeMap<TenantId, Policy>) -> Known {
        known(&self.tenants, stored, self.anonymous.as_ref())
    }
}

/// Whose key it is.
#[derive(Clone)]
pub enum Holder {
    /// A tenant's.
    Tenant(Arc<Tenant>),
    /// An administrator's.
    Admin,
}

/// Why a key does not let anybody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// It is unknown, wrong, revoked or expired.
    Invalid,
    /// It is not known, and the store cannot be asked.
    Unavailable,
}

impl Holder {
    /// Whether it is still the very same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tenant(one), Self::Tenant(other)) => Arc::ptr_eq(one, other),
            (Self::Admin, Self::Admin) => true,
            _ => false,
        }
    }
}

impl Directory {
    /// Reads all of it.
    pub async fn open(
        store: Store,
        config: &Config,
        shared_limits: Option<Arc<SharedLimits>>,
    ) -> Result<Self, StoreError> {
        let directory = Self {
            secrets: TenantSecrets::open(store.clone(), &config.secret_keys).await?,
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

    /// From now on the configuration says this of tenants. Done like a change of the store, as soon as that can be read.
    pub fn set_config(&self, config: &Config) {
        let file = FileTenants::new(config);
        if file != **self.file.load() {
            self.file.store(Arc::new(file));
            self.reload.notify_one();
        }
    }

    /// Follows the store. Never done.
    pub async fn follow(&self) {
        tokio::join!(self.follow_keys(), self.secrets.follow());
    }

    async fn follow_keys(&self) {
        let meanwhile = "known keys keep working, others are refused";
        let mut follower = Follower::new(self.store.changes(), "tenants and keys", meanwhile);
        loop {
            follower.changed(self.reload.notified()).await;
            while follower.retry(self.load().await).await.is_none() {}
        }
    }

    /// Reads all of it again. Whoever has not changed is the same as before, limits in use included.
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

    /// Where it is kept.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What tenants have given to servers of their own.
    pub fn secrets(&self) -> &TenantSecrets {
        &self.secrets
    }

    /// Which tenants there are, with these in the store.
    pub fn known_tenants(&self, stored: BTreeMap<TenantId, Policy>) -> Known {
        self.file.load().known(stored)
    }

    /// Whether a tenant stands in the configuration file.
    pub fn is_in_file(&self, id: &TenantId) -> bool {
        self.file.load().tenants.contains_key(id)
    }

    /// The tenant of callers without a key, if they may call. When they no longer may, they may not at once, whether
    /// or not the store can be read.
    pub fn anonymous(&self) -> Option<Arc<Tenant>> {
        self.file.load().anonymous.as_ref()?;
        self.snapshot.load().anonymous.clone()
    }

    /// Says so if no caller has a way in by a key or without one.
    pub fn warn_if_nobody_can_call(&self) {
        if self.file.load().anonymous.is_none() && self.snapshot.load().keys.is_empty() {
            tracing::warn!(
                "nobody can call: there is no key yet (`trunkline key create TENANT`), and no `auth.anonymous_tenant`"
            );
        }
    }

    /// A tenant by its name.
    pub fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.snapshot.load().tenants.get(id).cloned()
    }

    /// All tenants.
    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.snapshot.load().tenants.values().cloned().collect()
    }

    /// What every tenant uses, of those too that were there a moment ago.
    pub(super) fn meters(&self) -> Vec<(TenantId, Arc<Meter>)> {
        let tenants = self.tenants();
        let mut meters: Vec<_> =
            tenants.iter().map(|tenant| (tenant.id.clone(), tenant.meter.clone())).collect();
        let mut removed = self.removed.lock();
        meters.extend(removed.iter().cloned());
        // Those that only this list and its copy have get nothing more.
        removed.retain(|(_, meter)| Arc::strong_count(meter) > 2);
        meters
    }

    /// When each key was last used, of those that were.
    pub(super) fn key_uses(&self) -> Vec<(KeyId, i64)> {
        let snapshot = self.snapshot.load();
        let uses = snapshot.keys.values().map(|key| (key.id(), key.used()));
        uses.filter(|(_, used)| *used > 0).collect()
    }

    /// Whose key it is. Unknown, wrong, revoked and expired ones go the same way.
    pub async fn authenticate(&self, key: &ApiKey) -> Result<Arc<Key>, KeyError> {
        let hash = self.store.hasher().hash(key);
        if self.is_stale() {
            return Err(KeyError::Unavailable);
        }
        match self.known(key.id(), &hash) {
            Some(key) => Ok(key),
            None => self.look_up(key.id(), hash).await,
        }
    }

    /// Whether nothing was heard from the store for so long that nobody is let in by what is remembered.
    pub fn is_stale(&self) -> bool {
        self.confirmed.borrow().elapsed() > STALE_MAX
    }

    fn known(&self, id: KeyId, hash: &KeyHash) -> Option<Arc<Key>> {
        let snapshot = self.snapshot.load();
        let key = snapshot.keys.get(&id)?;
        let now = Timestamp::now().as_millisecond();
        key.accepts(hash, now).then(|| key.clone())
    }

    /// A key that is not in the snapshot may be newer than it.
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
            // Of a tenant that the file no longer names, for instance.
            self.unknown_keys.remember(hash);
            KeyError::Invalid
        })
    }
}
