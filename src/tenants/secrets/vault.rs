//! Sealed secrets in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::{Keyring, Label};
use crate::common::ids::{ServerId, TenantId};
use crate::config;
use crate::store::SealedSecret;

/// The secrets of a tenant for one server.
#[derive(Default)]
pub struct SealedSet {
    by_name: BTreeMap<String, SealedSecret>,
    /// Whether it was logged that some of them cannot be opened.
    reported: AtomicBool,
}

impl SealedSet {
    fn version(set: Option<&Arc<Self>>, name: &str) -> Option<i64> {
        set?.by_name.get(name).map(|sealed| sealed.version)
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

#[derive(Default)]
pub struct Vault {
    keyring: Keyring,
    contents: ArcSwap<VaultContents>,
    /// The revision of the contents.
    changed: watch::Sender<i64>,
}

#[derive(Default)]
struct VaultContents {
    revision: i64,
    sets: HashMap<TenantId, HashMap<ServerId, Arc<SealedSet>>>,
}

impl Vault {
    pub fn new(keyring: Keyring) -> Self {
        Self { keyring, ..Self::default() }
    }

    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Replaces the contents, unless they are newer.
    pub fn replace(&self, revision: i64, secrets: Vec<SealedSecret>) {
        let mut sets: HashMap<TenantId, HashMap<ServerId, SealedSet>> = HashMap::new();
        for secret in secrets {
            let of_tenant = sets.entry(secret.tenant.clone()).or_default();
            let set = of_tenant.entry(secret.server.clone()).or_default();
            set.by_name.insert(secret.name.clone(), secret);
        }
        let shared = |sets: HashMap<ServerId, SealedSet>| {
            sets.into_iter().map(|(server, set)| (server, Arc::new(set))).collect()
        };
        let sets = sets.into_iter().map(|(tenant, sets)| (tenant, shared(sets))).collect();
        let next = Arc::new(VaultContents { revision, sets });
        self.contents.rcu(|contents| {
            if contents.revision > revision { contents.clone() } else { next.clone() }
        });
        self.changed.send_replace(revision);
    }

    /// Notifies of replaced contents.
    pub fn changed(&self) -> watch::Receiver<i64> {
        self.changed.subscribe()
    }

    pub fn sealed_set(&self, tenant: &TenantId, server: &ServerId) -> Option<Arc<SealedSet>> {
        self.contents.load().sets.get(tenant)?.get(server).cloned()
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
