//! Limits that all replicas share, in Valkey or Redis.
//!
//! - `link`: one connection, and what is asked over it
//! - `keeper`: the task that makes connections, and finds out how many replicas there are
//! - `lease`, `permits`: what this replica has of a limit of calls in flight
//! - `request`, `sync_state`: what is said to Valkey about it, and by whom; `active_leases`: the limits that must be spoken of; `wanted`: when others want them
//!
//! Calls use the connection while there is one. The first that fails or takes too long takes it away from all; from then on
//! every replica goes by its own part of each limit, and no call notices anything. Only the keeper brings a connection
//! back, when Valkey answers quickly again; then each rate's next call tells it of those that it has missed, and all calls
//! in flight are told at once.

mod active_leases;
mod lease;
mod lease_request;
mod lease_sync;
mod leased_permits;
mod link;
mod recall;
mod reconnect;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{Client, RedisError};
use tokio::sync::Notify;
use uuid::Uuid;

use self::active_leases::ActiveLeases;
pub(super) use self::lease::LimitLease;
use self::link::Link;
use super::bucket::Bucket;
use super::{RateStatus, Refusal};
use crate::config::Secret;
use crate::telemetry::metrics::{Metrics, SharedLimitsMetrics};

/// How long calls should wait for Valkey. In one data centre it answers in less than one millisecond.
pub const ANSWER_TIMEOUT: Duration = Duration::from_millis(50);

/// The number of no connection.
const NO_LINK: u32 = 0;

/// The limits of all tenants in one Valkey or Redis. [`SharedLimits::run`] must run for it to be used at all.
#[derive(Debug)]
pub struct SharedLimits {
    client: Client,
    /// Who takes longer to answer is away.
    answer_timeout: Duration,
    /// This replica, among those that use the same Valkey.
    replica: Uuid,
    /// Empty while Valkey is away.
    link: ArcSwapOption<Link>,
    /// The number of the link, where a call looks before it needs the link; [`NO_LINK`] if there is none.
    link_number: AtomicU32,
    /// Wakes the keeper when the link is taken away.
    lost: Notify,
    /// The last that was heard: who cannot reach Valkey cannot ask.
    replicas: AtomicU32,
    /// How many the store knows of, if it counts them: who has never reached Valkey is not alone for that.
    members: Arc<AtomicU32>,
    /// Whether this replica can be asked to give permits back.
    hears_recalls: AtomicBool,
    active_leases: ActiveLeases,
    metrics: SharedLimitsMetrics,
}

/// An address that is none. It may contain a password, and is not repeated.
#[derive(Debug, thiserror::Error)]
#[error(
    "the address of the shared limits is not valid: write one such as `redis://user:password@host:6379/0`, or `rediss://` for TLS"
)]
pub struct InvalidAddress;

impl SharedLimits {
    /// For the Valkey at an address, which need not be there yet. No call waits for it for longer than
    /// `answer_timeout`, and in general only one does: see [`ANSWER_TIMEOUT`].
    pub fn connect(
        url: &Secret,
        answer_timeout: Duration,
        metrics: &Metrics,
    ) -> Result<Arc<Self>, InvalidAddress> {
        let client = Client::open(url.expose()).map_err(|_| InvalidAddress)?;
        let metrics = metrics.shared_limits();
        Ok(Arc::new(Self {
            client,
            answer_timeout,
            replica: Uuid::new_v4(),
            link: ArcSwapOption::empty(),
            link_number: AtomicU32::new(NO_LINK),
            lost: Notify::new(),
            replicas: AtomicU32::new(1),
            members: Arc::default(),
            hears_recalls: AtomicBool::new(false),
            active_leases: ActiveLeases::default(),
            metrics,
        }))
    }

    /// Whether calls go by what all replicas share now.
    pub fn is_up(&self) -> bool {
        self.link.load().is_some()
    }

    /// Among how many replicas limits are divided while Valkey is away.
    pub fn replicas(&self) -> u32 {
        let known_otherwise = self.members.load(Ordering::Relaxed);
        self.replicas.load(Ordering::Relaxed).max(known_otherwise)
    }

    /// Where somebody else who counts replicas says how many there are. There are never taken to be fewer.
    pub fn members(&self) -> &Arc<AtomicU32> {
        &self.members
    }

    /// Takes one call from each bucket, or from none. `None` if Valkey is away.
    pub(super) async fn take_all(
        &self,
        buckets: &[&Arc<Bucket>],
    ) -> Option<Result<RateStatus, Refusal>> {
        let link = self.link.load_full();
        if let Some(link) = link {
            match link.take_all(buckets, self.replicas()).await {
                Ok(answer) => return Some(answer),
                Err(error) => self.drop_link(&link, &error),
            }
        }
        self.metrics.fallbacks.inc();
        None
    }

    /// Takes a link away. Of all that notice the same failure, and of those that are late and notice it when there is
    /// another link already, only the first does anything.
    fn drop_link(&self, link: &Arc<Link>, error: &RedisError) {
        let before = self.link.compare_and_swap(link, None);
        if before.as_ref().is_some_and(|before| Arc::ptr_eq(before, link)) {
            self.link_number.store(NO_LINK, Ordering::SeqCst);
            self.metrics.up.set(0);
            let replicas = self.replicas();
            tracing::warn!(%error, replicas, "shared limits are away: each replica goes by its own part of them");
            self.lost.notify_one();
        }
    }
}
