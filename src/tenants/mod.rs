//! Tenants: every caller belongs to one, and limits and rights apply to the tenant.
//!
//! - [`anonymous`]: access without a key
//! - [`budgets`]: bytes that are held for tenants
//! - [`connections`]: tenants that connect themselves to servers (OAuth)
//! - [`directory`]: all tenants and keys; [`unknown_keys`] bounds the cost of unknown ones
//! - [`mod@file_tenants`]: the tenants of the configuration file
//! - [`mod@known`]: all tenants, and how they are shown
//! - [`limits`]: rates and calls in flight
//! - [`oauth`]: tokens of an identity provider
//! - [`secrets`]: values that tenants give to servers of their own
//! - [`snapshot`]: all tenants and keys at one moment
//! - [`usage_writer`] writes the tenants' usage to the store

pub mod anonymous;
pub mod budgets;
pub mod connections;
pub mod directory;
mod file_tenants;
pub mod known;
pub mod limits;
pub mod oauth;
pub mod secrets;
mod snapshot;
mod unknown_keys;
pub mod usage_writer;

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::budgets::{Budgets, HeldBytes};
pub use self::directory::{Directory, DirectoryError, KeyError};
pub use self::known::{BUILT_IN, KeyView, Known, KnownTenant, Source, TenantView, known};
pub use self::secrets::by_tenant::{SecretError, SecretView, TenantSecrets};
pub use self::snapshot::{Holder, Key};
use crate::common::ids::TenantId;
use crate::common::policy::Policy;
use crate::common::usage::Meter;
use crate::tenants::limits::{Admission, Cost, LimitRefusal, Limits, SharedLimits};

/// One tenant under one policy: a change of the policy makes a new one.
#[derive(Debug)]
pub struct Tenant {
    pub id: TenantId,
    /// In milliseconds since 1970; 0 if the tenant is older than generations, or built in.
    pub since: i64,
    pub policy: Policy,
    pub limits: Limits,
    pub meter: Arc<Meter>,
    /// The bytes that the gateway holds for it.
    pub held: HeldBytes,
    /// One at a time, so that other tenants' queries do not wait behind many of this one's.
    pub store_permits: Arc<Semaphore>,
    /// One at a time, so that long messages of this tenant do not hold up others' ones.
    pub long_work: Arc<Semaphore>,
    /// Cancelled when the tenant has another policy, or is removed.
    pub gone: CancellationToken,
    /// Cancelled when the tenant is removed: its sessions and its own processes end.
    pub removed: CancellationToken,
}

impl Tenant {
    pub fn new(
        id: TenantId,
        since: i64,
        policy: Policy,
        shared_limits: Option<Arc<SharedLimits>>,
        budgets: &Budgets,
    ) -> Self {
        let limits = Limits::new(&id, &policy, shared_limits);
        let one_at_a_time = || Arc::new(Semaphore::new(1));
        Self {
            id,
            since,
            policy,
            limits,
            meter: Arc::default(),
            held: budgets.accounts(),
            store_permits: one_at_a_time(),
            long_work: one_at_a_time(),
            gone: CancellationToken::new(),
            removed: CancellationToken::new(),
        }
    }

    /// Returns the tenant under a new policy, with its usage.
    fn with_policy(&self, policy: Policy) -> Self {
        Self {
            id: self.id.clone(),
            since: self.since,
            limits: self.limits.with_policy(&policy),
            policy,
            meter: self.meter.clone(),
            held: self.held.clone(),
            store_permits: self.store_permits.clone(),
            long_work: self.long_work.clone(),
            gone: CancellationToken::new(),
            removed: self.removed.clone(),
        }
    }

    /// Charges a request to the tenant, before anything of it is taken apart. Every request that
    /// costs the gateway or a server something passes here.
    pub async fn admit(&self, cost: Cost) -> Result<Admission, LimitRefusal> {
        self.limits.admit(cost).await.inspect_err(|_| self.meter.add_refused())
    }

    /// Returns whether the tenant knows of a server. One that it may not use does not exist for it.
    /// A tenant that was removed may use none.
    pub fn sees(&self, server: &str) -> bool {
        !self.removed.is_cancelled() && self.policy.servers.sees(server)
    }

    pub fn may_call(&self, server: &str, tool: &str) -> bool {
        self.policy.servers.has_tool(server, tool)
    }

    /// Returns whether the tenant may use a toolset.
    pub fn has_toolset(&self, toolset: &str) -> bool {
        !self.removed.is_cancelled() && self.policy.servers.has_toolset(toolset)
    }

    /// Returns whether the tenant may use prompts, resources and the like, too.
    pub fn may_use_all_of(&self, server: &str) -> bool {
        self.policy.servers.has_whole_server(server)
    }
}
