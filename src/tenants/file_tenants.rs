//! The tenants of the configuration file, and what the store is told of them.
//!
//! A file's tenant is the same one as long as every file that a gateway loads names it. So the
//! store keeps its generation, and hears of each file that does not name it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use crate::common::ids::TenantName;
use crate::common::policy::Policy;
use crate::config::Config;
use crate::store::{Contents, EndedTenant, FileTenant, Store, StoreError};

/// The tenants of the file in force.
pub(super) struct FileTenants {
    current: ArcSwap<TenantsOfFile>,
    /// Changed together with `current`.
    unsynced: Mutex<Unsynced>,
}

/// The tenants of the configuration file.
#[derive(PartialEq, Eq)]
pub(super) struct TenantsOfFile {
    pub(super) tenants: BTreeMap<TenantName, Policy>,
    /// The tenant of callers without a key.
    pub(super) anonymous: Option<TenantName>,
}

/// Changes of the file's tenants since the store was told of the last ones.
#[derive(Clone, Default)]
struct Unsynced {
    /// A file was read: tenants that are not in it have ended.
    is_new_file: bool,
    /// Tenants that a file did not have. They have ended, even if the file has them again.
    dropped: BTreeSet<TenantName>,
    /// Tenants whose policies a file has changed.
    changed: BTreeSet<TenantName>,
}

impl Unsynced {
    fn has_ended(&self, name: &TenantName, file: &TenantsOfFile) -> bool {
        self.dropped.contains(name) || (self.is_new_file && !file.tenants.contains_key(name))
    }
}

impl TenantsOfFile {
    fn new(config: &Config) -> Self {
        let anonymous = config.auth.anonymous_tenant.clone();
        Self { tenants: config.tenants.clone(), anonymous }
    }
}

impl FileTenants {
    /// Begins with the file of the start.
    pub(super) fn new(config: &Config) -> Self {
        let unsynced = Unsynced { is_new_file: true, ..Unsynced::default() };
        let current = ArcSwap::from_pointee(TenantsOfFile::new(config));
        Self { current, unsynced: Mutex::new(unsynced) }
    }

    pub(super) fn load(&self) -> Guard<Arc<TenantsOfFile>> {
        self.current.load()
    }

    /// Takes the tenants of a new file. Returns whether they differ.
    pub(super) fn replace(&self, config: &Config) -> bool {
        let next = TenantsOfFile::new(config);
        let mut unsynced = self.unsynced.lock();
        let before = self.current.load_full();
        if next == *before {
            return false;
        }
        let dropped = before.tenants.keys().filter(|name| !next.tenants.contains_key(*name));
        unsynced.dropped.extend(dropped.cloned());
        let is_changed = |(name, policy): &(&TenantName, &Policy)| {
            before.tenants.get(*name).is_some_and(|before| before != *policy)
        };
        let changed = next.tenants.iter().filter(is_changed);
        unsynced.changed.extend(changed.map(|(name, _)| name.clone()));
        unsynced.is_new_file = true;
        self.current.store(Arc::new(next));
        true
    }

    /// Removes those tenants of which the store has not heard yet that they have ended. Returns the
    /// file's tenants.
    pub(super) fn without_ended(
        &self,
        known: &mut BTreeMap<TenantName, FileTenant>,
    ) -> Arc<TenantsOfFile> {
        let (unsynced, file) = (self.unsynced.lock(), self.current.load_full());
        known.retain(|name, _| !unsynced.has_ended(name, &file));
        file
    }

    /// Tells the store of the tenants that the file has, and of those that it had. Returns whether
    /// that was news.
    pub(super) async fn sync(
        &self,
        store: &Store,
        contents: &Contents,
    ) -> Result<bool, StoreError> {
        let (unsynced, file) = {
            let unsynced = self.unsynced.lock();
            (unsynced.clone(), self.current.load_full())
        };
        let has_ended = |name: &TenantName| unsynced.has_ended(name, &file);
        let is_known = |name: &TenantName| {
            contents.tenants.contains_key(name) || contents.file_tenants.contains_key(name)
        };
        let is_news =
            contents.file_tenants.keys().any(has_ended) || !file.tenants.keys().all(is_known);
        if is_news {
            let named = file.tenants.keys().cloned().collect();
            let ended = store.sync_file_tenants(&named, has_ended).await?;
            for EndedTenant { name, revoked_keys } in ended {
                tracing::warn!(
                    tenant = %name, revoked_keys,
                    "tenant `{name}` was not in the configuration file: it is removed, its keys \
                     are revoked ({revoked_keys}), and its secrets deleted"
                );
            }
        }
        let policies = |are: &dyn Fn(&TenantName) -> bool| {
            let of_file = file.tenants.iter().filter(|(name, _)| are(name));
            of_file.map(|(name, policy)| (name.clone(), policy.clone())).collect::<Vec<_>>()
        };
        // A store that has heard of no file hears of the first as a whole.
        let added = match contents.file_tenants.is_empty() {
            true => vec![],
            false => policies(&|name| !is_known(name)),
        };
        let changed = policies(&|name| unsynced.changed.contains(name));
        store.note_file_tenants(&added, &changed).await?;
        let mut current = self.unsynced.lock();
        if Arc::ptr_eq(&file, &self.current.load()) {
            *current = Unsynced::default();
        }
        Ok(is_news)
    }
}
