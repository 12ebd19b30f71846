//! Sealed secrets in memory.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Keyring, Label};
use crate::common::ids::{ServerId, TenantId, TenantName};
use crate::config;
use crate::store::{ChangedSecrets, SealedSecret, SecretsCursor};

/// The secrets of a tenant for one server.
#[derive(Default)]
pub struct SealedSet {
    by_name: BTreeMap<String, SealedSecret>,
    /// Whether it was logged that some of them cannot be opened.
    reported: AtomicBool,
}

impl SealedSet {
    pub(super) fn version(set: Option<&Arc<Self>>, name: &str) -> Option<i64> {
        set?.by_name.get(name).map(|sealed| sealed.version)
    }

    /// Returns whether there is a value of this name.
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Returns whether these names have the same values in both.
    pub fn is_same(one: Option<&Arc<Self>>, other: Option<&Arc<Self>>, names: &[String]) -> bool {
        if let (Some(one), Some(other)) = (one, other)
            && Arc::ptr_eq(one, other)
        {
            return true;
        }
        names.iter().all(|name| Self::version(one, name) == Self::version(other, name))
    }
}

/// A power of two. A change copies the map of one shard.
const SHARDS: usize = 256;

#[derive(Default)]
pub struct Vault {
    keyring: Keyring,
    /// How far the store has been read. Locked while the shards are changed.
    cursor: Mutex<Option<SecretsCursor>>,
    /// By the tenant's name, so that a change costs the same however many tenants there are.
    shards: Shards,
}

struct Shards([Shard; SHARDS], RandomState);

/// The secrets of some of the tenants.
#[derive(Default)]
struct Shard {
    tenants: ArcSwap<HashMap<TenantName, SecretsOfTenant>>,
    changed: watch::Sender<()>,
}

/// The secrets of the present tenant of a name.
#[derive(Clone)]
struct SecretsOfTenant {
    tenant: TenantId,
    sets: HashMap<ServerId, Arc<SealedSet>>,
}

impl Default for Shards {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Shard::default()), RandomState::new())
    }
}

impl Shards {
    fn index(&self, tenant: &TenantName) -> usize {
        self.1.hash_one(tenant) as usize % SHARDS
    }

    fn of(&self, tenant: &TenantName) -> &Shard {
        &self.0[self.index(tenant)]
    }
}

impl Shard {
    /// Replaces the secrets of `replaced`, or of all its tenants.
    fn replace(
        &self,
        replaced: Option<&[&TenantName]>,
        with: HashMap<TenantName, SecretsOfTenant>,
    ) {
        let mut tenants = match replaced {
            Some(_) => HashMap::clone(&self.tenants.load()),
            None => HashMap::new(),
        };
        for tenant in replaced.into_iter().flatten() {
            tenants.remove(*tenant);
        }
        tenants.extend(with);
        self.tenants.store(Arc::new(tenants));
        self.changed.send_replace(());
    }
}

impl Vault {
    pub fn new(keyring: Keyring) -> Self {
        Self { keyring, ..Self::default() }
    }

    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Returns how far the store has been read.
    pub fn cursor(&self) -> Option<SecretsCursor> {
        *self.cursor.lock()
    }

    /// Applies what was read from the store after [`Self::cursor`], unless more is known already.
    pub fn apply(&self, changed: ChangedSecrets) {
        let mut cursor = self.cursor.lock();
        if cursor.is_some_and(|cursor| cursor > changed.cursor) {
            return;
        }
        let mut by_shard: HashMap<usize, HashMap<TenantName, SecretsOfTenant>> = HashMap::new();
        for (tenant, sets) in sealed_sets(changed.secrets) {
            let of_shard = by_shard.entry(self.shards.index(tenant.name())).or_default();
            of_shard.insert(tenant.name().clone(), SecretsOfTenant { tenant, sets });
        }
        let mut with = |index| by_shard.remove(&index).unwrap_or_default();
        match &changed.tenants {
            None => {
                let shards = self.shards.0.iter().enumerate();
                shards.for_each(|(index, shard)| shard.replace(None, with(index)));
            }
            Some(tenants) => {
                let mut replaced: HashMap<usize, Vec<&TenantName>> = HashMap::new();
                for tenant in tenants {
                    replaced.entry(self.shards.index(tenant)).or_default().push(tenant);
                }
                for (index, replaced) in replaced {
                    self.shards.0[index].replace(Some(&replaced), with(index));
                }
            }
        }
        *cursor = Some(changed.cursor);
    }

    /// Notifies when the secrets of a tenant may have changed.
    pub fn changed(&self, tenant: &TenantId) -> watch::Receiver<()> {
        self.shards.of(tenant.name()).changed.subscribe()
    }

    pub fn sealed_set(&self, tenant: &TenantId, server: &ServerId) -> Option<Arc<SealedSet>> {
        let shard = self.shards.of(tenant.name()).tenants.load();
        let of_name = shard.get(tenant.name()).filter(|of_name| of_name.tenant == *tenant);
        of_name?.sets.get(server).cloned()
    }

    /// Opens the named secrets of a set. Returns the missing names otherwise.
    pub fn open(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        set: Option<&Arc<SealedSet>>,
        names: &[String],
    ) -> Result<config::Secrets, Vec<String>> {
        let (mut opened, mut missing) = (config::Secrets::new(), vec![]);
        for name in names {
            let label = Label { tenant: tenant.name(), server, name };
            let sealed = set.and_then(|set| Some((set, set.by_name.get(name)?)));
            let value = sealed.and_then(|(set, sealed)| {
                let value = self.keyring.open(label, &sealed.sealed);
                if value.is_none() && !set.reported.swap(true, Ordering::Relaxed) {
                    let why = "none of `secrets.keys` opens it";
                    tracing::error!(%tenant, %server, name, "the {label} is stored, but {why}");
                }
                value
            });
            match value {
                Some(value) => drop(opened.insert(name.clone(), value)),
                None => missing.push(name.clone()),
            }
        }
        if missing.is_empty() { Ok(opened) } else { Err(missing) }
    }
}

/// Puts the secrets of each tenant together by server.
fn sealed_sets(secrets: Vec<SealedSecret>) -> HashMap<TenantId, HashMap<ServerId, Arc<SealedSet>>> {
    let mut sets: HashMap<TenantId, HashMap<ServerId, SealedSet>> = HashMap::new();
    for secret in secrets {
        let of_tenant = sets.entry(secret.tenant.clone()).or_default();
        let set = of_tenant.entry(secret.server.clone()).or_default();
        set.by_name.insert(secret.name.clone(), secret);
    }
    let shared = |sets: HashMap<ServerId, SealedSet>| {
        sets.into_iter().map(|(server, set)| (server, Arc::new(set))).collect()
    };
    sets.into_iter().map(|(tenant, sets)| (tenant, shared(sets))).collect()
}
