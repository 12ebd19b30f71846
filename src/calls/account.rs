//! The kept calls of each tenant, counted, and their bounds.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use super::accepted::ACCEPTED_BYTES;
use super::accepted_queue::AcceptedQueue;
use super::open_calls::WAITERS_OF_TENANT_MAX;
use crate::common::byte_budget::{ByteBudget, TenantBytes};
use crate::common::ids::{CallId, TenantId};
use crate::common::limit_use::LimitUse;
use crate::config::CallsConfig;
use crate::store::CallTotal;

/// Bytes of arguments that wait to begin here: of one tenant, and of all.
const ACCEPTED_BYTES_OF_TENANT_MAX: usize = 16 << 20;
const ACCEPTED_BYTES_MAX: usize = 256 << 20;

/// Asynchronous batches of one tenant that are not over here. The bytes of their texts count as
/// arguments.
const BATCHES_MAX: usize = 100;
/// Asynchronous batches of one tenant that run at once here.
const BATCHES_RUNNING_MAX: usize = 4;
/// Bytes of results that asynchronous batches hold here: of one tenant, and of all.
const BATCH_RESULTS_OF_TENANT_MAX: usize = 64 << 20;
const BATCH_RESULTS_MAX: usize = 256 << 20;

/// All tenants that had kept calls here lately.
pub(super) struct Accounts {
    by_tenant: RwLock<HashMap<TenantId, Arc<Account>>>,
    budget: Arc<ByteBudget>,
    results: Arc<ByteBudget>,
}

pub(super) struct Account {
    pub(super) tenant: TenantId,
    /// Records in the store: as last read, and those of this gateway since.
    records: AtomicI64,
    bytes: AtomicI64,
    pub(super) waiters: AtomicU32,
    /// Calls that wait to begin here.
    pub(super) accepted: AcceptedQueue,
    /// The bytes of their arguments.
    pub(super) accepted_bytes: Arc<TenantBytes>,
    /// Asynchronous batches that are not over here.
    pub(super) batches: Arc<Semaphore>,
    /// One for each of them that may run at once.
    pub(super) batch_turns: Semaphore,
    /// The bytes of their results.
    pub(super) batch_results: Arc<TenantBytes>,
    /// The last call that an eviction has looked at.
    pub(super) evicted_until: Mutex<Option<CallId>>,
}

impl Accounts {
    pub(super) fn new() -> Self {
        let budget = ByteBudget::new(ACCEPTED_BYTES_OF_TENANT_MAX, ACCEPTED_BYTES_MAX);
        let results = ByteBudget::new(BATCH_RESULTS_OF_TENANT_MAX, BATCH_RESULTS_MAX);
        Self { by_tenant: RwLock::default(), budget, results }
    }

    pub(super) fn of(&self, tenant: &TenantId) -> Arc<Account> {
        if let Some(account) = self.by_tenant.read().get(tenant) {
            return account.clone();
        }
        let mut by_tenant = self.by_tenant.write();
        let account = by_tenant.entry(tenant.clone()).or_insert_with(|| {
            Arc::new(Account {
                tenant: tenant.clone(),
                records: AtomicI64::new(0),
                bytes: AtomicI64::new(0),
                waiters: AtomicU32::new(0),
                accepted: AcceptedQueue::default(),
                accepted_bytes: self.budget.tenant(),
                batches: Arc::new(Semaphore::new(BATCHES_MAX)),
                batch_turns: Semaphore::new(BATCHES_RUNNING_MAX),
                batch_results: self.results.tenant(),
                evicted_until: Mutex::default(),
            })
        });
        account.clone()
    }

    /// Takes over the totals of the store. Forgets tenants that have nothing.
    pub(super) fn set_totals(&self, totals: &[CallTotal]) {
        for total in totals {
            let account = self.of(&total.tenant);
            account.records.store(total.records, Ordering::Relaxed);
            account.bytes.store(total.bytes, Ordering::Relaxed);
        }
        let has_some = |tenant: &TenantId| totals.iter().any(|total| total.tenant == *tenant);
        self.by_tenant
            .write()
            .retain(|tenant, account| has_some(tenant) || Arc::strong_count(account) > 1);
    }

    pub(super) fn all(&self) -> Vec<Arc<Account>> {
        self.by_tenant.read().values().cloned().collect()
    }
}

impl Account {
    pub(super) fn records(&self) -> i64 {
        self.records.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn records_use(&self, config: &CallsConfig) -> LimitUse {
        LimitUse::new("records", config.max_records as usize, count(self.records()))
    }

    pub(super) fn waiters_use(&self, waiters: u32) -> LimitUse {
        LimitUse::new("waiting_requests", WAITERS_OF_TENANT_MAX as usize, waiters as usize)
    }

    /// Returns the use of the bound of asynchronous batches.
    pub(super) fn batches_use(&self) -> LimitUse {
        let used = BATCHES_MAX - self.batches.available_permits().min(BATCHES_MAX);
        LimitUse::new("accepted_batches", BATCHES_MAX, used)
    }

    /// Returns all limits of this tenant's kept calls.
    pub(super) fn limits(&self, config: &CallsConfig) -> Vec<LimitUse> {
        let max_bytes = usize::try_from(config.max_bytes).unwrap_or(usize::MAX);
        vec![
            self.accepted.limit_use(),
            self.batches_use(),
            self.accepted_bytes.limit_use(ACCEPTED_BYTES),
            self.waiters_use(self.waiters.load(Ordering::Relaxed)),
            self.records_use(config),
            LimitUse::new("record_bytes", max_bytes, count(self.bytes())),
        ]
    }

    pub(super) fn add(&self, records: i64, bytes: i64) {
        self.records.fetch_add(records, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Returns a total, which may be negative for a moment: the store's totals are read from time to
/// time.
fn count(total: i64) -> usize {
    usize::try_from(total).unwrap_or_default()
}
