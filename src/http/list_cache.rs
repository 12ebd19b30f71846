//! Keeps lists of tools as they were rendered, for callers with the same rights.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::RngExt;
use siphasher::sip128::{Hasher128, SipHasher13};

use super::rendered_list::RenderedList;
use crate::backend::instance::tools::ToolsVersion;
use crate::common::ids::{ServerId, TenantId};
use crate::common::offload::Offload;
use crate::common::policy::Grants;
use crate::tenants::Tenant;

/// Lists of all tenants together.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Lists that one tenant had rendered: 5 MB for all of ten servers with 500 tools, and as much
/// again for each of them.
const TENANT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// An eviction looks at all of them.
const ENTRIES_MAX: usize = 1024;

/// How a list is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ListForm {
    /// Tools of all servers, under names that tell servers apart.
    Exposed,
    /// Tools of one server, in pages.
    Own,
    /// Tools of one server, in one piece.
    Rest,
    /// Tools of the toolset with this number, in pages.
    Toolset(u64),
    /// Tools of the toolset with this number, in one piece.
    RestToolset(u64),
}

/// Names a list by all that decides what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListKey(u128);

pub(crate) struct ListCache {
    /// A secret, so that nobody can find two lists with one key.
    secret: [u8; 16],
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<ListKey, Entry>,
    /// Counts uses.
    now: u64,
}

struct Entry {
    list: Arc<RenderedList>,
    /// The tenant that had it rendered.
    tenant: TenantId,
    used: u64,
}

impl Default for ListCache {
    fn default() -> Self {
        Self { secret: rand::rng().random(), entries: Mutex::default() }
    }
}

impl ListCache {
    pub(crate) fn key<'a>(
        &self,
        form: ListForm,
        grants: &Grants,
        servers: impl Iterator<Item = (&'a ServerId, ToolsVersion)>,
    ) -> ListKey {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        (form, grants).hash(&mut hasher);
        servers.for_each(|server| server.hash(&mut hasher));
        ListKey(hasher.finish128().as_u128())
    }

    /// Returns a list, rendered unless it is kept. `len` is about what it takes. Long lists are
    /// offloaded, and rendered once for all requests of a tenant that come together.
    pub(crate) async fn get_or_render(
        &self,
        key: ListKey,
        (tenant, offload): (&Tenant, &Offload),
        len: usize,
        render: impl FnOnce() -> RenderedList,
    ) -> Arc<RenderedList> {
        if let Some(list) = self.get(key) {
            return list;
        }
        let render = || {
            // Another request may have been faster.
            self.get(key).unwrap_or_else(|| {
                let list = Arc::new(render());
                self.insert(key, &tenant.id, &list);
                list
            })
        };
        offload.in_place(&tenant.long_work, len, render).await
    }

    fn get(&self, key: ListKey) -> Option<Arc<RenderedList>> {
        let mut entries = self.entries.lock();
        entries.now += 1;
        let now = entries.now;
        let entry = entries.by_key.get_mut(&key)?;
        entry.used = now;
        Some(entry.list.clone())
    }

    /// Keeps a list. At a bound, the tenant with the most evicts its longest-unused lists.
    fn insert(&self, key: ListKey, tenant: &TenantId, list: &Arc<RenderedList>) {
        if list.len() > TENANT_BYTES_MAX {
            return;
        }
        let mut entries = self.entries.lock();
        entries.now += 1;
        let entry = Entry { list: list.clone(), tenant: tenant.clone(), used: entries.now };
        entries.by_key.insert(key, entry);
        entries.evict(tenant);
    }
}

impl Entries {
    fn evict(&mut self, newest: &TenantId) {
        let mut by_tenant: HashMap<TenantId, usize> = HashMap::new();
        for entry in self.by_key.values() {
            *by_tenant.entry(entry.tenant.clone()).or_default() += entry.list.len();
        }
        loop {
            let all: usize = by_tenant.values().sum();
            let largest = by_tenant.iter().max_by_key(|(_, bytes)| **bytes);
            let from = if by_tenant.get(newest).is_some_and(|own| *own > TENANT_BYTES_MAX) {
                newest.clone()
            } else if all > BYTES_MAX || self.by_key.len() > ENTRIES_MAX {
                let Some((largest, _)) = largest else { return };
                largest.clone()
            } else {
                return;
            };
            let of_tenant = self.by_key.iter().filter(|(_, entry)| entry.tenant == from);
            let oldest = of_tenant.min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key);
            let Some(evicted) = oldest.and_then(|oldest| self.by_key.remove(&oldest)) else {
                return;
            };
            *by_tenant.entry(from).or_default() -= evicted.list.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::mcp::results::Caching;

    fn tenant(name: &str) -> TenantId {
        TenantId::testing(name)
    }

    fn list(len: usize) -> Arc<RenderedList> {
        let item = "x".repeat(len);
        Arc::new(RenderedList::whole("", &[item.as_str()], Caching::ANY))
    }

    fn key(number: u128) -> ListKey {
        ListKey(number)
    }

    #[test]
    fn a_key_stands_for_form_grants_and_versions() {
        let cache = ListCache::default();
        let server = ServerId::parse("std").unwrap();
        let of = |form, grants: &Grants, version| {
            cache.key(form, grants, [(&server, version)].into_iter())
        };
        let (one, other) = (ToolsVersion::testing(1), ToolsVersion::testing(2));
        let (all, none) = (Grants::everything(), Grants::default());
        let keys = [
            of(ListForm::Own, &all, one),
            of(ListForm::Rest, &all, one),
            of(ListForm::Own, &none, one),
            of(ListForm::Own, &all, other),
        ];
        assert_eq!(keys[0], of(ListForm::Own, &Grants::everything(), one));
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn a_tenant_evicts_its_own_longest_unused_list_and_no_other_tenants() {
        let cache = ListCache::default();
        cache.insert(key(0), &tenant("other"), &list(1000));
        for number in 1..=3 {
            cache.insert(key(number), &tenant("many"), &list(TENANT_BYTES_MAX / 3 - 100));
        }
        assert!(cache.get(key(1)).is_some());
        cache.insert(key(4), &tenant("many"), &list(1000));
        let kept = |number| cache.get(key(number)).is_some();
        assert_eq!([0, 1, 2, 3, 4].map(kept), [true, true, false, true, true]);
        cache.insert(key(5), &tenant("many"), &list(TENANT_BYTES_MAX + 1));
        assert!(!kept(5) && kept(0));
    }

    #[test]
    fn at_the_common_bound_whoever_has_most_makes_room() {
        let cache = ListCache::default();
        cache.insert(key(0), &tenant("small"), &list(1000));
        for number in 1..=5 {
            let name = format!("t{number}");
            cache.insert(key(number), &tenant(&name), &list(TENANT_BYTES_MAX - 100));
        }
        assert!(cache.get(key(0)).is_some());
        assert_eq!((1..=5).filter(|number| cache.get(key(*number)).is_some()).count(), 3);
        for number in 10..10 + ENTRIES_MAX as u128 {
            cache.insert(key(number), &tenant("tiny"), &list(1));
        }
        assert_eq!(cache.entries.lock().by_key.len(), ENTRIES_MAX);
    }
}
