//! Sealed secrets, contents in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::{Keyring, Label};
use crate::common::ids::{ServerId, TenantId};
use crate::config;

/// A secret as it is stored.
#[derive(Clone)]
pub struct Sealed {
    /// What only the keyring can read.
    pub text: String,
    /// Another one for each value.
    pub version: i64,
}

/// What a tenant has stored for one server.
#[derive(Default)]
pub struct SealedSet {
    by_name: BTreeMap<String, Sealed>,
    /// Whether the operator has been told that some of them cannot be opened.
    reported: AtomicBool,
}

impl SealedSet {
    fn version(set: Option<&Arc<Self>>, name: &str) -> Option<i64> {
        set?.by_name.get(name).map(|sealed| sealed.version)
    }

    /// Whether all of these names have the same values in both.
    pub fn is_same(one: Option<&Arc<Self>>, other: Option<&Arc<Self>>, names: &[String]) -> bool {
        if let (Some(one), Some(other)) = (one, other)
            && Arc::ptr_eq(one, other)
        {
            return true;
        }
        names.iter().all(|name| Self::version(one, name) == Self::version(other, name))
    }
}

/// What all tenants have stored.
#[derive(Default)]
pub struct Vault {
    keyring: Keyring,
    contents: ArcSwap<Contents>,
    /// The revision that is contents.
    changed: watch::Sender<i64>,
}

#[derive(Default)]
struct Contents {
    revision: i64,
    sets: HashMap<TenantId, HashMap<ServerId, Arc<SealedSet>>>,
}

impl Vault {
    /// An empty one.
    pub fn new(keyring: Keyring) -> Self {
        Self { keyring, ..Self::default() }
    }

    /// What seals and opens.
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Holds these from now on, and nothing else; unless it holds later ones already.
    pub fn replace(
        &self,
        revision: i64,
        secrets: impl Iterator<Item = (TenantId, ServerId, String, Sealed)>,
    ) {
        let mut sets: HashMap<TenantId, HashMap<ServerId, SealedSet>> = HashMap::new();
        for (tenant, server, name, sealed) in secrets {
            let set = sets.entry(tenant).or_default().entry(server).or_default();
            set.by_name.insert(name, sealed);
        }
        let shared = |sets: HashMap<ServerId, SealedSet>| {
            sets.into_iter().map(|(server, set)| (server, Arc::new(set))).collect()
        };
        let sets = sets.into_iter().map(|(tenant, sets)| (tenant, shared(sets))).collect();
        let next = Arc::new(Contents { revision, sets });
        self.contents.rcu(|contents| {
            if contents.revision > revision { contents.clone() } else { next.clone() }
        });
        self.changed.send_replace(revision);
    }

    /// Told whenever what is contents is replaced.
    pub fn changed(&self) -> watch::Receiver<i64> {
        self.changed.subscribe()
    }

    /// What a tenant has stored for a server.
    pub fn sealed_set(&self, tenant: &TenantId, server: &ServerId) -> Option<Arc<SealedSet>> {
        self.contents.load().sets.get(tenant)?.get(server).cloned()
    }

    /// Opens those of a set that are named; or gives those that are not there.
    pub fn open(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        set: Option<&Arc<SealedSet>>,
        names: &[String],
    ) -> Result<config::Secrets, Vec<String>> {
        let (mut opened, mut missing) = (config::Secrets::new(), vec![]);
        for name in names {
            let label = Label { tenant, server, name };
            let sealed = set.and_then(|set| Some((set, set.by_name.get(name)?)));
            let value = sealed.and_then(|(set, sealed)| {
                let value = self.keyring.open(label, &sealed.text);
                if value.is_none() && !set.reported.swap(true, Ordering::Relaxed) {
                    tracing::error!(%tenant, %server, name, "the {label} is stored, and none of `secrets.keys` opens it");
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
