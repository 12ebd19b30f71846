//! Calls that are more than one request and one answer.
//!
//! - [`batch`]: many calls at once, which may use each other's results
//! - [`callback`]: tells a caller that its call has ended
//!
//! The rest is about kept calls: those with an `Idempotency-Key`, and those answered
//! asynchronously. Each has a record in the store, which outlives its request and its gateway.
//!
//! ```text
//! submit ─▶ OpenCall, found by scope ──▶ a task: mark ▶ run ▶ keep ▶ settle
//!    │           ▲                                │           │
//!    ▼           │ further requests               ▼           ▼
//! Ticket::wait ◀─┴──── the outcome ──────── Writer: one transaction for many calls
//! ```
//!
//! - `key`: idempotency keys; scopes and fingerprints, by which calls are found and compared
//! - `record`: the rules: what a retry gets, what is kept
//! - `open_calls`: the calls under way here, and those who wait for them
//! - `keyed`: runs a keyed call; `follow` finds out what became of an earlier one
//! - `accepted`: asynchronous calls, which begin when their tenant has a permit
//! - `accepted_queue`: those that wait to begin
//! - `writer`: commits transitions in groups
//! - `storing`: seals texts, and splits long answers
//! - `account`: the calls of each tenant, counted, and their bounds
//! - `owners`, `housekeeping`: gateways that are gone; expiry and eviction
//! - `ask`: `GET` and `DELETE` of calls
//! - `outcome`, `refusal`, `request`, `clock`: what they are called

mod accepted;
mod accepted_queue;
mod account;
mod ask;
pub mod batch;
pub mod callback;
mod clock;
mod follow;
mod housekeeping;
mod key;
mod keyed;
mod open_calls;
mod outcome;
mod owners;
mod record;
mod refusal;
mod request;
mod storing;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::account::Accounts;
use self::batch::RenderItemError;
use self::callback::deliver::Callbacks;
use self::clock::Clock;
use self::open_calls::{OpenCall, OpenCalls};
use self::owners::Owners;
use self::storing::Vault;
use self::writer::{Writer, WriterTask};
use crate::cluster::Cluster;
use crate::common::ids::TenantId;
use crate::common::limit_use::LimitUse;
use crate::config::{BatchConfig, CallsConfig, Config, Synchronous};
use crate::gateway::{Caller, Gateway};
use crate::store::Store;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::tasks::restart_on_panic;
use crate::tenants::{Directory, Tenant};

pub use self::ask::{CallView, Cancelled, ListQuery, Polled, RecordKind, states_named};
pub use self::key::{Fingerprint, IdempotencyKey, InvalidKey, Scope};
pub use self::open_calls::{Answer, Identity, Ticket, Waited};
pub use self::outcome::{
    CANCELLED, Head, OUTCOME_UNKNOWN, Outcome, OutcomeKind, Ran, RenderError, rpc_error,
};
pub use self::refusal::Refusal;
pub use self::request::{CallRequest, Details, McpPart};

/// The last transitions are written within this time, or lost.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(1500);

/// A cheap handle.
#[derive(Clone)]
pub struct Calls(Arc<CallsInner>);

struct CallsInner {
    gateway: Arc<Gateway>,
    directory: Arc<Directory>,
    store: Store,
    config: CallsConfig,
    render: RenderError,
    render_item: RenderItemError,
    batch: BatchConfig,
    max_body: usize,
    clock: Clock,
    owners: Owners,
    vault: Vault,
    writer: Writer,
    open: OpenCalls,
    accounts: Accounts,
    callbacks: Callbacks,
    /// The tasks of calls.
    tasks: TaskTracker,
    /// Cancelled when no more calls begin.
    closing: CancellationToken,
    /// Until it is started.
    unstarted: Mutex<Option<WriterTask>>,
}

/// The tasks beside the calls.
pub struct CallTasks {
    calls: Calls,
    stop_writing: CancellationToken,
    writing: JoinHandle<WriterTask>,
    stop_keeping: CancellationToken,
}

/// How a submitted call is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At once, for a caller that waits.
    Now,
    /// When its tenant has a permit; accepted durably before that.
    WhenPermitted,
}

impl Calls {
    /// `render` and `render_item` write errors as callers see them.
    pub fn new(
        gateway: Arc<Gateway>,
        directory: Arc<Directory>,
        cluster: Option<Arc<Cluster>>,
        config: &Config,
        render: RenderError,
        render_item: RenderItemError,
    ) -> Self {
        let store = directory.store().clone();
        let owners = Owners::new(cluster, store.clone());
        let is_full = config.calls.synchronous == Synchronous::Full;
        let (writer, task) = Writer::new(&store, owners.me.clone(), is_full);
        let vault = Vault::new(&config.secrets.keys, store.clone(), gateway.offload().clone());
        Self(Arc::new(CallsInner {
            gateway,
            directory,
            store,
            config: config.calls.clone(),
            render,
            render_item,
            batch: config.batch.clone(),
            max_body: config.max_body,
            clock: Clock::new(),
            owners,
            vault,
            writer,
            open: OpenCalls::new(),
            accounts: Accounts::new(),
            callbacks: Callbacks::new(config),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            unstarted: Mutex::new(Some(task)),
        }))
    }

    /// Starts the tasks beside the calls. Called once.
    pub fn start(&self, metrics: &Metrics) -> CallTasks {
        let mut writer = self.0.unstarted.lock().take().expect("started once");
        let (stop_writing, stop_keeping) = (CancellationToken::new(), CancellationToken::new());
        let (until, counted) = (stop_writing.clone(), metrics.clone());
        let writing = tokio::spawn(async move {
            let write =
                restart_on_panic(&counted, "call_records", &mut writer, |it| Box::pin(it.run()));
            until.run_until_cancelled(write).await;
            writer
        });
        let (mut calls, counted) = (self.0.clone(), metrics.clone());
        let keep = async move {
            restart_on_panic(&counted, "call_upkeep", &mut calls, |calls| {
                Box::pin(calls.clone().keep_house())
            })
            .await;
        };
        tokio::spawn(stop_keeping.clone().run_until_cancelled_owned(keep));
        let (mut calls, counted) = (self.0.clone(), metrics.clone());
        let deliver = async move {
            restart_on_panic(&counted, "callbacks", &mut calls, |calls| {
                Box::pin(calls.clone().deliver_callbacks())
            })
            .await;
        };
        tokio::spawn(stop_keeping.clone().run_until_cancelled_owned(deliver));
        CallTasks { calls: self.clone(), stop_writing, writing, stop_keeping }
    }

    /// Runs a call in a task of its own, unless its key has a call already. The ticket waits for
    /// its outcome. The caller has charged the call (`Cost::KeptCall`).
    pub fn submit(
        &self,
        caller: &Caller,
        request: CallRequest,
        mode: Mode,
    ) -> Result<Ticket, Refusal> {
        if mode == Mode::WhenPermitted && request.server.wants_caller_tokens() {
            return Err(Refusal::NoTokenLater { server: request.server.id().to_string() });
        }
        let tenant = caller.tenant.id.clone();
        let scope = request.key.as_ref().map(|key| {
            let scope = Scope::new(&tenant, request.server.id(), &request.tool, key);
            let toolset = request.details.toolset.as_deref();
            toolset.map_or(scope, |toolset| scope.within(toolset))
        });
        let fingerprint = request.fingerprint.clone();
        let account = self.0.accounts.of(&tenant);
        let has_callback = request.details.callback.is_some();
        let open =
            OpenCall::new(request.id, tenant, scope, fingerprint.clone(), account, has_callback);
        if request.mcp.is_some() {
            open.may_become_task();
        }
        if let Some(known) = self.0.open.find_or_add(&open)? {
            return Ticket::attached(known, fingerprint);
        }
        let ticket = Ticket::first(open.clone());
        let (calls, caller) = (self.0.clone(), caller.clone());
        match mode {
            Mode::Now => {
                self.0.tasks.spawn(calls.run_keyed(open, caller, request));
            }
            Mode::WhenPermitted => {
                self.0.tasks.spawn(calls.accept(open, caller, request));
            }
        }
        Ok(ticket)
    }

    /// Returns the limits of a tenant's kept calls.
    pub fn limits(&self, tenant: &TenantId) -> Vec<LimitUse> {
        self.0.accounts.of(tenant).limits(&self.0.config)
    }

    /// Begins no more calls; those that have not begun are handed over.
    pub fn close(&self) {
        self.0.closing.cancel();
        self.0.tasks.close();
    }

    /// Waits until all calls here have ended. Returns at once if there are none.
    pub async fn ended(&self) {
        self.0.tasks.wait().await;
    }
}

impl CallTasks {
    /// Ends the tasks, after the last call. Writes what is left.
    pub async fn stop(self) {
        self.stop_keeping.cancel();
        self.calls.close();
        let delivered = self.calls.0.callbacks.stop(FLUSH_TIMEOUT);
        let _ = tokio::join!(timeout(FLUSH_TIMEOUT, self.calls.ended()), delivered);
        self.stop_writing.cancel();
        if let Ok(mut writer) = self.writing.await {
            let _ = timeout(FLUSH_TIMEOUT, writer.flush()).await;
        }
    }
}

impl CallsInner {
    /// Returns the tenant of a record, if it is still there.
    fn tenant(&self, tenant: &TenantId) -> Option<Arc<Tenant>> {
        self.directory.tenant(tenant.name()).filter(|found| found.id == *tenant)
    }
}
