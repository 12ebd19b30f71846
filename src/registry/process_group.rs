//! A server whose processes not everybody shares: each belongs to a tenant or a session.

use std::sync::Arc;

use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::Environment;
use crate::backend::queue::reserved_of;
use crate::common::ids::{ServerId, TenantId};
use crate::common::tenant_quota::{QuotaPermit, TenantQuota};
use crate::config::{self, Sharing};

#[derive(Clone)]
pub(super) struct ProcessGroup {
    pub(super) id: ServerId,
    pub(super) config: config::ServerConfig,
    pub(super) environment: Environment,
    tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    /// Cancelled, with the table of processes locked, when no more are started.
    pub(super) retired: CancellationToken,
    /// Cancelled when every earlier server of this name that must not overlap is gone.
    unblocked: CancellationToken,
    /// An evicted process keeps its slot until it is gone.
    slots: Arc<TenantQuota>,
    /// The tasks of all processes, whatever their configuration.
    running: TaskTracker,
}

impl ProcessGroup {
    pub(super) fn new(
        id: ServerId,
        config: config::ServerConfig,
        environment: Environment,
        tasks: TaskTracker,
        stop: CancellationToken,
        unblocked: CancellationToken,
    ) -> Self {
        let running = TaskTracker::new();
        // Lets `wait` end whenever there is no task; more may be spawned all the same.
        running.close();
        let environment = environment.with_own_starts();
        let (retired, slots) = (CancellationToken::new(), slots(&config));
        Self { id, config, environment, tasks, stop, retired, unblocked, slots, running }
    }

    /// Returns the same server with another configuration, and with slots of its own.
    pub(super) fn renewed(&self, config: config::ServerConfig) -> Self {
        let (retired, slots) = (CancellationToken::new(), slots(&config));
        Self { config, retired, slots, ..self.clone() }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.retired.is_cancelled() && self.running.is_empty()
    }

    pub(super) async fn gone(&self) {
        self.retired.cancelled().await;
        self.running.wait().await;
    }

    /// Spawns the task of one process.
    pub(super) fn spawn(&self, run: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.running.track_future(run));
    }

    /// Waits until a process of a tenant may start: nothing blocks it, and it has a slot.
    pub(super) fn may_start(
        &self,
        tenant: &TenantId,
        slot: ProcessSlot,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (unblocked, slots) = (self.unblocked.clone(), self.slots.clone());
        let tenant = tenant.clone();
        async move {
            unblocked.cancelled().await;
            slot.0.get_or_init(async || slots.acquire(&tenant).await).await;
        }
    }
}

/// Returns the slots of one configuration. Processes that are ending keep theirs, so no tenant may
/// hold all slots with those of sessions that it opens and ends.
fn slots(config: &config::ServerConfig) -> Arc<TenantQuota> {
    let (max, of_tenant) = match config.sharing {
        // A tenant never holds more than one.
        Sharing::Tenant => (config.max_tenants, config.max_tenants),
        _ => (config.max_sessions, config.max_sessions - reserved_of(config.max_sessions)),
    };
    TenantQuota::new(max as usize, of_tenant as usize)
}

/// One of `max_tenants` or `max_sessions`, taken before a process starts and given back with the
/// last clone. A process and the next one of its tenant share it.
#[derive(Clone, Default)]
pub(super) struct ProcessSlot(Arc<OnceCell<QuotaPermit>>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Program, ServerConfig, Transport};

    #[test]
    fn processes_of_one_tenant_that_are_ending_leave_a_quarter_of_the_places() {
        for (max_sessions, most) in [(2, 1), (3, 2), (4, 3), (100, 75)] {
            let config = ServerConfig::new(Transport::Stdio(Program::default()));
            let slots = slots(&ServerConfig { sharing: Sharing::Session, max_sessions, ..config });
            let [greedy, other] = ["greedy", "other"].map(TenantId::testing);
            let held: Vec<_> = std::iter::from_fn(|| slots.take(&greedy)).collect();
            assert_eq!(held.len(), most, "of {max_sessions}");
            assert!(slots.take(&other).is_some());
        }
    }
}
