//! The tools that processes of a server had when they started. A list shows them while the process
//! of its tenant or session does not run: the list does not start it, and has its tools.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::backend::Backend;
use crate::backend::instance::tools::ToolSet;
use crate::common::ids::TenantId;

/// Owners whose tools are known. The one that started longest ago is forgotten first.
const OWNERS_MAX: usize = 256;
/// A longer list is not kept: 256 of them may differ.
const LEN_MAX: usize = 512 * 1024;

/// Lists of tools by owner: a tenant, or nobody if all tenants' processes are started alike.
#[derive(Default)]
pub(super) struct KnownTools(VecDeque<(Option<TenantId>, Arc<ToolSet>)>);

impl KnownTools {
    pub(super) fn get(&self, owner: Option<&TenantId>) -> Option<Arc<ToolSet>> {
        let known = self.0.iter().find(|(other, _)| other.as_ref() == owner);
        known.map(|(_, tools)| tools.clone())
    }

    /// Replaces the tools of an owner. Lists that say the same are kept once.
    pub(super) fn learn(&mut self, owner: Option<TenantId>, tools: &Arc<ToolSet>) {
        self.0.retain(|(other, _)| *other != owner);
        if tools.bytes() > LEN_MAX {
            return;
        }
        let same = self.0.iter().find(|(_, known)| known.is_like(tools));
        let tools = same.map_or_else(|| tools.clone(), |(_, known)| known.clone());
        if self.0.len() == OWNERS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((owner, tools));
    }
}

/// Keeps the first list of tools: a process that is started later begins with the same. Never ends.
pub(super) async fn learn_tools(
    backend: &Backend,
    owner: Option<TenantId>,
    known: &Mutex<KnownTools>,
) {
    if let Some(ready) = backend.first_ready().await
        && ready.about.capabilities.tools.is_some()
    {
        known.lock().learn(owner, &ready.tools);
    }
    pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_has_its_last_tools_and_the_oldest_is_forgotten() {
        let mut known = KnownTools::default();
        let tenant = |number: usize| TenantId::testing(&format!("t{number}"));
        let tools = Arc::<ToolSet>::default();
        known.learn(None, &tools);
        for number in 0..OWNERS_MAX - 1 {
            known.learn(Some(tenant(number)), &Arc::default());
        }
        // They say the same, and are kept once.
        assert!(Arc::ptr_eq(&known.get(Some(&tenant(7))).unwrap(), &tools));
        known.learn(Some(tenant(0)), &tools);
        assert!(known.get(None).is_some());
        known.learn(Some(tenant(999)), &tools);
        assert!(known.get(None).is_none() && known.get(Some(&tenant(0))).is_some());
        assert!(known.get(Some(&tenant(1000))).is_none());
    }
}
