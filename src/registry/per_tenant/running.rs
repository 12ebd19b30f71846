//! One process of a tenant, from its start to its end.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::table::{Process, Table};
use crate::backend::Backend;
use crate::common::ids::{ServerId, TenantId};
use crate::registry::rollover::time_for_last_calls;
use crate::tenants::secrets::{SealedSet, Vault};

pub(super) struct Running {
    pub(super) tenant: TenantId,
    pub(super) process: Process,
    pub(super) server: ServerId,
    pub(super) vault: Arc<Vault>,
    pub(super) places: Arc<Semaphore>,
    pub(super) stop: CancellationToken,
    pub(super) table: Arc<Mutex<Table>>,
}

impl Running {
    /// Starts it when there is a place for it and all of `after` are gone; done when it is gone itself. `older` takes
    /// the tenant's calls until this one is ready.
    pub(super) async fn run(self, after: Vec<CancellationToken>, older: Option<Arc<Backend>>) {
        let may_start = async {
            for other in &after {
                other.cancelled().await;
            }
            self.process.place.take(&self.places).await;
        };
        tokio::select! {
            () = may_start => self.supervise(older).await,
            // It is not started any more: whoever still waits for it is told so.
            () = self.not_wanted() => {
                self.process.backend.retire(Duration::ZERO);
                self.supervise(None).await;
            }
        }
        // Whoever waits for it waits for those before it, too.
        for other in after {
            other.cancelled().await;
        }
        self.table.lock().forget(&self.tenant, &self.process);
        self.process.gone.cancel();
    }

    async fn supervise(&self, older: Option<Arc<Backend>>) {
        let supervised = self.process.backend.clone().supervise(self.stop.clone());
        tokio::pin!(supervised);
        tokio::select! {
            () = &mut supervised => {}
            () = self.left() => {
                self.stop.cancel();
                supervised.await;
            }
            () = self.take_over(older) => {}
        }
    }

    /// Takes the place of the older one as soon as it can. Never ends.
    async fn take_over(&self, older: Option<Arc<Backend>>) {
        if let Some(older) = older
            && self.process.backend.can_replace(&older).await
        {
            self.table.lock().take_over(&self.tenant, &self.process);
        }
        pending().await
    }

    async fn not_wanted(&self) {
        tokio::select! {
            () = self.process.retired.cancelled() => {}
            () = self.left() => {}
        }
    }

    /// Done when it takes no more calls and has none, or has had the time for them.
    async fn left(&self) {
        tokio::select! {
            () = self.process.leave.cancelled() => {}
            () = self.left_idle() => {}
            () = self.secrets_changed() => {}
        }
        let time = time_for_last_calls(self.process.backend.config(), false);
        let _ = timeout(time, self.process.usage.over()).await;
    }

    /// Done when it has neither been used nor listened to for `idle_timeout`.
    async fn left_idle(&self) {
        loop {
            sleep_until(match self.idle_until() {
                Some(until) => until,
                None => return,
            })
            .await;
        }
    }

    /// When to look again whether it is idle; `None` if it is, and leaves.
    fn idle_until(&self) -> Option<Instant> {
        // With the table locked, nobody gets it meanwhile.
        let table = self.table.lock();
        let (backend, now) = (&self.process.backend, Instant::now());
        let idle_timeout = backend.config().idle_timeout;
        // As long as an older one has its calls, it is that one's to be idle.
        let is_current = table.current(&self.tenant).is_none_or(|it| it.is(&self.process));
        match self.process.usage.idle_since() {
            Some(since) if since + idle_timeout > now => Some(since + idle_timeout),
            Some(_) if is_current && !backend.changes().has_listeners() => {
                self.process.leave.cancel();
                None
            }
            _ => Some(now + idle_timeout),
        }
    }

    /// Done when its tenant has set another value, or removed one.
    async fn secrets_changed(&self) {
        if self.process.names.is_empty() {
            return pending().await;
        }
        let mut moved = self.vault.changed();
        while !self.is_outdated() {
            if moved.changed().await.is_err() {
                return pending().await;
            }
        }
        let (tenant, server) = (&self.tenant, &self.server);
        tracing::info!(%tenant, %server, "the secrets of tenant `{tenant}` for server `{server}` have changed: its process is replaced");
    }

    fn is_outdated(&self) -> bool {
        let _table = self.table.lock();
        let now = self.vault.sealed_set(&self.tenant, &self.server);
        if SealedSet::is_same(self.process.sealed.as_ref(), now.as_ref(), &self.process.names) {
            return false;
        }
        self.process.leave.cancel();
        true
    }
}
