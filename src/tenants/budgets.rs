//! The budgets of bytes that the gateway holds for tenants.

use std::sync::Arc;

use crate::common::byte_budget::{ByteBudget, SMALL, TenantBytes};
use crate::config::Config;

/// The names of these limits.
pub const UNSENT_BYTES: &str = "unsent_bytes";
pub const REQUEST_BYTES: &str = "request_bytes";

/// The largest bodies of one tenant that may arrive, wait or run at once. One that arrives counts
/// with what is there of it.
const BODIES_PER_TENANT: usize = 32;
/// The least room for the requests of one tenant: many short ones have no long bodies.
const REQUESTS_MIN: usize = 32 * 1024 * 1024;
/// As much room as so many tenants have is for all.
const REQUESTS_OF_ALL: usize = 4;
/// The longest answers of all tenants that may be on their way to the store.
const KEPT_ANSWERS: usize = 4;

/// All that tenants hold together.
#[derive(Clone, Debug)]
pub struct Budgets {
    /// Answers that callers have not taken yet.
    pub unsent: Arc<ByteBudget>,
    /// Bodies of requests, until these are answered.
    pub requests: Arc<ByteBudget>,
    /// Answers on their way to the store that find no room among the unsent ones.
    pub keeping: Arc<ByteBudget>,
}

/// The accounts of one tenant.
#[derive(Clone, Debug)]
pub struct HeldBytes {
    pub unsent: Arc<TenantBytes>,
    pub requests: Arc<TenantBytes>,
    pub keeping: Arc<TenantBytes>,
}

impl Budgets {
    pub fn new(config: &Config) -> Self {
        let per_tenant = config.limits.unsent_per_tenant.max(2 * config.max_response);
        let all = config.limits.unsent.max(2 * per_tenant);
        let longest_answer = config.max_response + SMALL;
        let requests = (BODIES_PER_TENANT * config.max_body).max(REQUESTS_MIN);
        Self {
            unsent: ByteBudget::new(per_tenant, all),
            requests: ByteBudget::new(requests, REQUESTS_OF_ALL * requests),
            keeping: ByteBudget::new(longest_answer, KEPT_ANSWERS * longest_answer),
        }
    }

    /// Bounds nothing, for tests.
    pub fn unlimited() -> Self {
        let budget = || ByteBudget::new(usize::MAX / 4, usize::MAX / 2);
        Self { unsent: budget(), requests: budget(), keeping: budget() }
    }

    /// Returns accounts that hold nothing yet.
    pub fn accounts(&self) -> HeldBytes {
        let Self { unsent, requests, keeping } = self;
        HeldBytes {
            unsent: unsent.tenant(),
            requests: requests.tenant(),
            keeping: keeping.tenant(),
        }
    }
}
