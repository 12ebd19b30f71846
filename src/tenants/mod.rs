//! Tenants: whoever calls belongs to one, and what it may do is the tenant's.
//!
//! - [`directory`]: who there is, and whose key is whose; [`unknown_keys`] bounds what unknown keys cost
//! - [`mod@known`]: which tenants there are, and how they are shown
//! - [`secrets`]: what they have given to servers of their own
//! - [`usage`]: what was used, and [`usage_writer`]: that it is written down

pub mod directory;
pub mod known;
pub mod limits;
pub mod oauth;
pub mod secrets;
mod snapshot;
mod unknown_keys;
pub mod usage;
pub mod usage_writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use self::directory::{Directory, Holder, KeyError};
pub use self::known::{KeyView, Known, Source, TenantView, known};
pub use self::secrets::by_tenant::{SecretError, SecretView, TenantSecrets};
pub use self::snapshot::Key;
use self::usage::Meter;
use crate::common::ids::TenantId;
use crate::common::policy::Policy;
use crate::tenants::limits::{Limits, SharedLimits};

/// Requests that a tenant may be sending at once, beyond the calls that it may have in flight.
const READING_EXTRA: u32 = 64;

/// One tenant, as of now: a change of its policy makes another one.
#[derive(Debug)]
pub struct Tenant {
    /// Its name.
    pub id: TenantId,
    /// What it may do.
    pub policy: Policy,
    /// How much of that it has used.
    pub limits: Limits,
    /// What it uses, to be written down.
    pub meter: Arc<Meter>,
    /// Requests whose bodies are being read.
    reading: Arc<AtomicU32>,
    /// Its turn at the store: one request at a time, so that others' do not wait behind all that it sends.
    pub store_permits: Arc<Semaphore>,
    /// Cancelled when there is another one of the name, or none.
    pub gone: CancellationToken,
}

/// A request whose body is being read.
pub struct ReadPermit(Arc<AtomicU32>);

impl Drop for ReadPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tenant {
    /// A tenant that may do this.
    pub fn new(id: TenantId, policy: Policy, shared_limits: Option<Arc<SharedLimits>>) -> Self {
        let limits = Limits::new(&id, &policy, shared_limits);
        let (meter, reading, store_permits) =
            (Arc::default(), Arc::default(), Arc::new(Semaphore::new(1)));
        Self { id, policy, limits, meter, reading, store_permits, gone: CancellationToken::new() }
    }

    /// The same after a change of its policy.
    fn with_policy(&self, policy: Policy) -> Self {
        Self {
            id: self.id.clone(),
            limits: self.limits.with_policy(&policy),
            policy,
            meter: self.meter.clone(),
            reading: self.reading.clone(),
            store_permits: self.store_permits.clone(),
            gone: CancellationToken::new(),
        }
    }

    /// Lets it send one more request. Calls are limited when they are known, which is when they have been read; until
    /// then they take memory too, and those that only say "cancel" must get through.
    pub fn read_permit(&self) -> Option<ReadPermit> {
        let max = self.policy.limit.max_in_flight.map_or(u32::MAX, |max| max + READING_EXTRA);
        let reading = ReadPermit(self.reading.clone());
        (self.reading.fetch_add(1, Ordering::Relaxed) < max).then_some(reading)
    }

    /// Whether a server is there for it. What it may not use is for a tenant as if it did not exist.
    pub fn sees(&self, server: &str) -> bool {
        self.policy.servers.sees(server)
    }

    /// Whether it may call a tool.
    pub fn may_call(&self, server: &str, tool: &str) -> bool {
        self.policy.servers.has_tool(server, tool)
    }

    /// Whether it may use what a server has beside tools: prompts, resources and the like.
    pub fn may_use_all_of(&self, server: &str) -> bool {
        self.policy.servers.has_whole_server(server)
    }
}
