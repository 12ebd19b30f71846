//! The budgets of bytes that the gateway holds for tenants.

use std::sync::Arc;

use crate::common::byte_budget::{ByteBudget, TenantBytes};
use crate::config::Config;

/// The names of these limits.
pub const UNSENT_BYTES: &str = "unsent_bytes";
pub const ARRIVING_BYTES: &str = "arriving_bytes";

/// The largest bodies of one tenant that may arrive at once. Further ones are short: a body counts
/// with what has arrived of it.
const BODIES_PER_TENANT: usize = 32;
/// The largest bodies of all tenants that may arrive at once.
const BODIES: usize = 128;

/// All that tenants hold together.
#[derive(Clone, Debug)]
pub struct Budgets {
    /// Answers that callers have not taken yet.
    pub unsent: Arc<ByteBudget>,
    /// Request bodies that have not arrived whole.
    pub arriving: Arc<ByteBudget>,
}

/// The accounts of one tenant.
#[derive(Clone, Debug)]
pub struct HeldBytes {
    pub unsent: Arc<TenantBytes>,
    pub arriving: Arc<TenantBytes>,
}

impl Budgets {
    pub fn new(config: &Config) -> Self {
        let per_tenant = config.limits.unsent_per_tenant.max(2 * config.max_response);
        let all = config.limits.unsent.max(2 * per_tenant);
        let max_body = config.max_body;
        Self {
            unsent: ByteBudget::new(per_tenant, all),
            arriving: ByteBudget::new(BODIES_PER_TENANT * max_body, BODIES * max_body),
        }
    }

    /// Bounds nothing, for tests.
    pub fn unlimited() -> Self {
        let budget = || ByteBudget::new(usize::MAX / 4, usize::MAX / 2);
        Self { unsent: budget(), arriving: budget() }
    }

    /// Returns accounts that hold nothing yet.
    pub fn accounts(&self) -> HeldBytes {
        HeldBytes { unsent: self.unsent.tenant(), arriving: self.arriving.tenant() }
    }
}
