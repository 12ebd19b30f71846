//! Delivers callbacks that are due. The store knows them, so any gateway can go on with those of
//! another one. Tenants take turns: each has few deliveries under way at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use super::event::CalledTool;
use super::keys::SigningKeyring;
use super::schedule::pause_after;
use super::send::{SendError, Sender};
use super::signature::SigningKey;
use crate::calls::{Calls, CallsInner, Ran, Refusal};
use crate::common::tenant_quota::{QuotaPermit, TenantQuota};
use crate::config::Config;
use crate::gateway::Caller;
use crate::store::{CallbackState, Outage, StoreError, TakenCallback};
use crate::tenants::Tenant;

/// Deliveries under way at this gateway: all, and of one tenant.
const UNDER_WAY_MAX: usize = 64;
const UNDER_WAY_OF_TENANT_MAX: usize = 8;
/// Callbacks of other gateways, and those to be tried again, are noticed after this time.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A callback is taken for this time. Longer than an attempt and the tries to note its result.
const LEASE: Duration = Duration::from_secs(45);
/// Tries to note the result of an attempt while the store is away.
const NOTE_TRIES: u32 = 5;
const NOTE_PAUSE: Duration = Duration::from_secs(1);
/// Of the reason why a receiver has not got a callback.
const PROBLEM_LEN_MAX: usize = 200;

/// All that deliveries need beside the store.
pub(in crate::calls) struct Callbacks {
    sender: Sender,
    keyring: SigningKeyring,
    quota: Arc<TenantQuota>,
    /// The number of looks so far: each begins with another tenant.
    looks: AtomicUsize,
    /// Notified when there may be something to deliver before the next look.
    due: Notify,
    under_way: TaskTracker,
}

impl Callbacks {
    pub(in crate::calls) fn new(config: &Config) -> Self {
        Self {
            sender: Sender::new(config.calls.callback_networks.clone()),
            keyring: SigningKeyring::new(&config.secrets.keys),
            quota: TenantQuota::new(UNDER_WAY_MAX, UNDER_WAY_OF_TENANT_MAX),
            looks: AtomicUsize::new(0),
            due: Notify::new(),
            under_way: TaskTracker::new(),
        }
    }

    /// Looks for callbacks now.
    pub(in crate::calls) fn look(&self) {
        self.due.notify_one();
    }

    /// Waits for the deliveries under way, for a while.
    pub(in crate::calls) async fn stop(&self, most: Duration) {
        self.under_way.close();
        let _ = timeout(most, self.under_way.wait()).await;
    }
}

impl Calls {
    /// Checks that a call's end can be reported to a URL: it is public, its host is one of the
    /// tenant's `callback_hosts`, and there is a key to sign with.
    pub async fn check_callback(&self, caller: &Caller, url: &str) -> Result<(), Refusal> {
        let tenant = &caller.tenant;
        let callbacks = &self.0.callbacks;
        let host = callbacks.sender.check(url).map_err(Refusal::CallbackUrl)?;
        let host = host.host_str().unwrap_or_default();
        if !allows(tenant, host) {
            return Err(Refusal::CallbackHost { host: host.to_owned() });
        }
        // One read of a tenant at a time: others must find a connection.
        let _turn = tenant.store_permits.acquire().await;
        match self.0.signing_keys(tenant).await {
            Ok(keys) if keys.is_empty() => Err(Refusal::NoCallbackSecret),
            Ok(_) => Ok(()),
            Err(_) => Err(Refusal::StoreUnavailable { executed: Ran::No }),
        }
    }
}

impl CallsInner {
    /// Delivers callbacks. Runs for ever.
    pub(in crate::calls) async fn deliver_callbacks(self: Arc<Self>) {
        let mut outage = Outage::new(&self.store, "callbacks", "callbacks wait");
        loop {
            outage.note(self.deliver_due().await);
            let _ = timeout(LOOK_EVERY, self.callbacks.due.notified()).await;
        }
    }

    /// Begins to deliver what is due, as far as there are permits.
    async fn deliver_due(self: &Arc<Self>) -> Result<(), StoreError> {
        let callbacks = &self.callbacks;
        let mut names = self.store.tenants_with_due_callbacks().await?;
        let looks = callbacks.looks.fetch_add(1, Ordering::Relaxed);
        let first = looks % names.len().max(1);
        names.rotate_left(first);
        let share = (UNDER_WAY_MAX / names.len().max(1)).clamp(1, UNDER_WAY_OF_TENANT_MAX);
        for name in names {
            // The callbacks of a tenant that is gone are deleted.
            let Some(tenant) = self.directory.tenant(&name) else { continue };
            let permit = |_| callbacks.quota.take(&tenant.id);
            let permits: Vec<QuotaPermit> = (0..share).map_while(permit).collect();
            if permits.is_empty() {
                continue;
            }
            let (limit, lease) = (permits.len() as u32, LEASE.as_millis() as i64);
            let taken = self.store.take_callbacks(&name, limit, lease).await?;
            let taken = taken.into_iter().filter(|callback| callback.tenant == tenant.id);
            for (callback, permit) in taken.zip(permits) {
                let (calls, tenant) = (self.clone(), tenant.clone());
                callbacks.under_way.spawn(async move {
                    calls.deliver(&callback, &tenant).await;
                    drop(permit);
                    calls.callbacks.look();
                });
            }
        }
        Ok(())
    }

    /// Makes one attempt, and notes what became of it.
    async fn deliver(&self, callback: &TakenCallback, tenant: &Tenant) {
        let (state, problem) = match self.attempt(callback, tenant).await {
            Ok(()) => (CallbackState::Delivered, None),
            Err(SendError::Gone) => {
                let problem = "the receiver wants no callbacks (HTTP status 410)".to_owned();
                (CallbackState::GivenUp, Some(problem))
            }
            Err(SendError::Temporary { reason, retry_after }) => {
                let reason: String = reason.chars().take(PROBLEM_LEN_MAX).collect();
                if let Some(pause) = pause_after(callback.attempts, retry_after, rand::random()) {
                    self.gateway.metrics().count_callback("failed");
                    return self.retry_later(callback, pause, &reason).await;
                }
                (CallbackState::GivenUp, Some(reason))
            }
        };
        let is_delivered = state == CallbackState::Delivered;
        self.gateway.metrics().count_callback(if is_delivered { "delivered" } else { "given_up" });
        for _ in 0..NOTE_TRIES {
            if self.store.end_callback(callback, state, problem.as_deref()).await.is_ok() {
                return;
            }
            sleep(NOTE_PAUSE).await;
        }
    }

    async fn retry_later(&self, callback: &TakenCallback, pause: Duration, reason: &str) {
        let pause_ms = i64::try_from(pause.as_millis()).unwrap_or(i64::MAX / 2);
        tracing::debug!(call = %callback.call, reason, "a callback was not delivered");
        // If the store is away, the callback is tried again when it is nobody's any more.
        let _ = self.store.retry_callback(callback, pause_ms, reason).await;
    }

    async fn attempt(&self, callback: &TakenCallback, tenant: &Tenant) -> Result<(), SendError> {
        let failed = |reason: String| SendError::Temporary { reason, retry_after: None };
        let sender = &self.callbacks.sender;
        let url = sender.check(&callback.url);
        let url = url.map_err(|error| failed(format!("the URL {error}")))?;
        let host = url.host_str().unwrap_or_default();
        if !allows(tenant, host) {
            return Err(failed(format!("`{host}` is not one of `callback_hosts` any more")));
        }
        let keys = self.signing_keys(tenant).await;
        let keys = keys.map_err(|_| failed("the store cannot be reached".to_owned()))?;
        if keys.is_empty() {
            return Err(failed("there is no secret to sign with".to_owned()));
        }
        let called: CalledTool = serde_json::from_str(&callback.about).unwrap_or_default();
        let head = callback.head.as_deref().and_then(|head| serde_json::from_str(head).ok());
        let body = called.body(callback.call, head, callback.ended);
        sender.send(url, &callback.call.to_string(), &body, &keys).await
    }

    /// Returns the keys that sign a tenant's callbacks now, the newest first.
    async fn signing_keys(&self, tenant: &Tenant) -> Result<Vec<SigningKey>, StoreError> {
        let name = tenant.id.name();
        let Some(secrets) = self.store.callback_secrets(name).await? else { return Ok(vec![]) };
        let sealed = [Some(secrets.sealed), secrets.previous].into_iter().flatten();
        Ok(sealed.filter_map(|sealed| self.callbacks.keyring.open(name, &sealed)).collect())
    }
}

fn allows(tenant: &Tenant, host: &str) -> bool {
    tenant.policy.callback_hosts.iter().any(|allowed| allowed.is(host))
}
