//! The bug that this test must be able to see: requests to a server carry their callers' ids.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use trunkline::backend::connection::CallIdentity;
use trunkline::backend::connection::request_ids::IdSource;
use trunkline::common::ids::TenantId;

/// Numbers each tenant's calls 1, 2, 3…, as their clients do.
#[derive(Default)]
struct CallersIds {
    last: Mutex<HashMap<TenantId, u64>>,
}

/// Fits [`trunkline::backend::Environment::ids`].
pub fn ids() -> Arc<dyn IdSource> {
    Arc::new(CallersIds::default())
}

impl IdSource for CallersIds {
    fn issue(&self, owner: &CallIdentity) -> u64 {
        let mut last = self.last.lock();
        let id = last.entry(owner.tenant.clone()).or_default();
        *id += 1;
        *id
    }

    fn was_issued(&self, id: u64) -> bool {
        self.last.lock().values().any(|last| id <= *last)
    }
}
