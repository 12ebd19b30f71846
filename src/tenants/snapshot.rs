//! All tenants and keys at one moment.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio_util::sync::CancellationToken;

use super::Tenant;
use super::anonymous::AnonymousAccess;
use super::budgets::Budgets;
use super::known::{Known, KnownTenant};
use crate::common::ids::TenantName;
use crate::common::keys::{KeyHash, KeyId};
use crate::store::{KeyOwner, KeyRecord, KeyState};
use crate::tenants::limits::SharedLimits;

/// All tenants and keys at one moment. Immutable: a change makes a new one.
#[derive(Default)]
pub(super) struct Snapshot {
    pub(super) tenants: HashMap<TenantName, Arc<Tenant>>,
    pub(super) keys: HashMap<KeyId, Arc<Key>>,
    pub(super) anonymous: AnonymousAccess,
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

impl Key {
    pub fn id(&self) -> KeyId {
        self.record.id
    }

    /// In milliseconds since 1970.
    pub fn expires(&self) -> Option<i64> {
        self.record.expires
    }

    /// Returns whether the hash matches a valid key, and records the use.
    pub(super) fn accepts(&self, hash: &KeyHash, now: i64) -> bool {
        let accepts = self.record.hash == *hash && self.is_active(now);
        if accepts {
            self.used.store(now, Ordering::Relaxed);
        }
        accepts
    }

    pub(super) fn is_active(&self, now: i64) -> bool {
        self.record.state(now) == KeyState::Active
    }

    pub(super) fn used(&self) -> i64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl Snapshot {
    /// Returns the next snapshot, without anonymous access. Tenants and keys that did not change
    /// are the same objects. A tenant without a generation does not exist yet.
    pub(super) fn next(
        &self,
        known: Known,
        keys: Vec<KeyRecord>,
        shared_limits: Option<&Arc<SharedLimits>>,
        budgets: &Budgets,
    ) -> Self {
        let tenants: HashMap<_, _> = known
            .into_iter()
            .filter_map(|(name, KnownTenant { policy, generation, since, .. })| {
                let id = name.clone().of(generation?);
                let tenant = match self.tenants.get(&name).filter(|before| before.id == id) {
                    Some(before) if before.policy == policy => before.clone(),
                    Some(before) => Arc::new(before.with_policy(policy)),
                    None => {
                        let since = since.unwrap_or_default();
                        Arc::new(Tenant::new(id, since, policy, shared_limits.cloned(), budgets))
                    }
                };
                Some((name, tenant))
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
        let next = Self { keys, tenants, anonymous: AnonymousAccess::Off };
        for (name, tenant) in &self.tenants {
            let after = next.tenants.get(name);
            if !after.is_some_and(|after| Arc::ptr_eq(tenant, after)) {
                tenant.gone.cancel();
            }
            if after.is_none_or(|after| after.id != tenant.id) {
                tenant.removed.cancel();
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
