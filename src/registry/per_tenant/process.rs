//! One tenant's backend, from its start to its end.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{PerTenant, TenantTable};
use crate::backend::{Backend, RunState};
use crate::common::ids::TenantId;
use crate::config;
use crate::registry::known_tools::learn_tools;
use crate::registry::process_group::ProcessSlot;
use crate::registry::rollover::{self, Replaceable, drain_time, is_exclusive};
use crate::tenants::secrets::{SealedSet, Vault};

/// A tenant's backend, and what it was started with.
#[derive(Clone)]
pub(super) struct TenantProcess {
    pub(super) backend: Arc<Backend>,
    /// Counts the configurations of its server.
    pub(super) generation: u64,
    /// The secrets it was started with.
    pub(super) sealed: Option<Arc<SealedSet>>,
    /// The names of the secrets that it needs.
    pub(super) names: Arc<[String]>,
    pub(super) slot: ProcessSlot,
}

impl Replaceable for TenantProcess {
    fn config(&self) -> &config::ServerConfig {
        self.backend.config()
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.backend, &other.backend)
    }

    fn is_draining(&self) -> bool {
        self.backend.is_draining()
    }

    fn is_gone(&self) -> bool {
        self.backend.is_gone()
    }

    fn drain(&self, within: Duration) {
        self.backend.drain(within);
    }
}

impl TenantProcess {
    /// Returns whether it takes calls of a tenant that has stored these secrets.
    pub(super) fn serves(&self, sealed: Option<&Arc<SealedSet>>) -> bool {
        !self.is_draining() && SealedSet::is_same(self.sealed.as_ref(), sealed, &self.names)
    }

    /// Returns whether it can serve until one of another configuration is ready.
    pub(super) fn can_run_beside(&self, next: &config::ServerConfig) -> bool {
        let is_ready = matches!(self.backend.state(), RunState::Ready(_));
        is_ready && !is_exclusive(self.config(), next)
    }

    /// Takes no more calls: it is idle, evicted, or has secrets of the past.
    pub(super) fn retire(&self) {
        self.drain(drain_time(self.config(), false));
    }
}

impl PerTenant {
    /// Starts a process when all of `blocking` are gone and it has a slot; done when it is gone.
    /// `old` takes the tenant's calls until then.
    pub(super) fn run(
        &self,
        tenant: &TenantId,
        removed: CancellationToken,
        process: TenantProcess,
        blocking: Vec<Arc<Backend>>,
        old: Option<Arc<Backend>>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (tenant, table, vault) = (tenant.clone(), self.table.clone(), self.vault.clone());
        let slot = self.group.may_start(&tenant, process.slot.clone());
        let stop = self.group.stop.clone();
        let (known, owner) = (self.known.clone(), self.owner_of_tools(&tenant).cloned());
        async move {
            let may_start = async {
                for other in blocking {
                    other.gone().await;
                }
                slot.await;
            };
            let switch = || {
                let mut table = table.lock();
                let rollover = table.rollover(&tenant);
                if rollover.switch(&process) {
                    rollover.drain_old(Some(process.config()));
                    process.backend.activate();
                }
            };
            let run = rollover::run(process.backend.clone(), may_start, old, switch, stop);
            tokio::select! {
                () = run => {}
                () = retire_when_idle(&tenant, &process, &table) => {}
                () = retire_when_removed(&removed, &process) => {}
                () = retire_when_outdated(&tenant, &process, &table, &vault) => {}
                () = learn_tools(&process.backend, owner, &known) => {}
            }
            table.lock().forget(&tenant, &process);
        }
    }
}

/// Retires a process whose tenant is removed. Never ends.
async fn retire_when_removed(removed: &CancellationToken, process: &TenantProcess) {
    removed.cancelled().await;
    process.retire();
    pending().await
}

/// Retires a process that was neither used nor listened to for `idle_timeout`. Never ends.
async fn retire_when_idle(tenant: &TenantId, process: &TenantProcess, table: &Mutex<TenantTable>) {
    let idle_timeout = process.config().idle_timeout;
    loop {
        let next_look = {
            // With the table locked, nobody gets the process meanwhile.
            let table = table.lock();
            let (backend, now) = (&process.backend, Instant::now());
            // While an older one takes the calls, that one counts as idle or not.
            let is_current = table.current(tenant).is_none_or(|it| it.is(process));
            match backend.idle_since() {
                Some(since) if since + idle_timeout > now => since + idle_timeout,
                Some(_) if is_current && !backend.changes().has_listeners() => {
                    process.retire();
                    break;
                }
                _ => now + idle_timeout,
            }
        };
        sleep_until(next_look).await;
    }
    pending().await
}

/// Retires a process whose tenant has changed or removed a secret. Never ends.
async fn retire_when_outdated(
    tenant: &TenantId,
    process: &TenantProcess,
    table: &Mutex<TenantTable>,
    vault: &Vault,
) {
    if process.names.is_empty() {
        return pending().await;
    }
    let (server, mut moved) = (process.backend.id(), vault.changed(tenant));
    loop {
        {
            let _table = table.lock();
            let now = vault.sealed_set(tenant, server);
            if !SealedSet::is_same(process.sealed.as_ref(), now.as_ref(), &process.names) {
                process.retire();
                break;
            }
        }
        if moved.changed().await.is_err() {
            return pending().await;
        }
    }
    tracing::info!(
        %tenant, %server,
        "the secrets of tenant `{tenant}` for server `{server}` have changed: its process is \
         replaced"
    );
    pending().await
}
