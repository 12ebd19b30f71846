//! Limits that all replicas share, in Valkey or Redis.
//!
//! - `link`: one connection, and the commands over it
//! - `reconnect`: the task that connects, renews leases, counts replicas and hears recalls
//! - `lease`, `leased_permits`: this replica's lease of a limit of calls in flight
//! - `lease_sync`: the task that sends requests for a lease
//! - `active_leases`: the leases to renew
//!
//! Calls use the link while there is one. The first call that fails or takes too long drops it for
//! all. From then on every replica uses its share of each limit, and no call fails. Only
//! `reconnect` makes a new link, when Valkey answers quickly again. Then each rate's next call
//! reports those that Valkey missed, and all leases are renewed at once.

mod active_leases;
mod lease;
mod lease_sync;
mod leased_permits;
mod link;
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
use super::{LimitRefusal, RateStatus};
use crate::config::Secret;
use crate::telemetry::metrics::{Metrics, SharedLimitsMetrics};

/// Within one data centre, Valkey answers in less than a millisecond.
pub const ANSWER_TIMEOUT: Duration = Duration::from_millis(50);

/// The number of no link.
const NO_LINK: u32 = 0;

/// The limits of all tenants in one Valkey or Redis. Used only while [`SharedLimits::run`] runs.
#[derive(Debug)]
pub struct SharedLimits {
    client: Client,
    /// A slower Valkey counts as away.
    answer_timeout: Duration,
    /// Identifies this replica among those that use the same Valkey.
    replica: Uuid,
    /// Empty while Valkey is away.
    link: ArcSwapOption<Link>,
    /// The number of the link, or [`NO_LINK`]. Read by calls that need no link.
    link_number: AtomicU32,
    /// Wakes `reconnect` when the link is dropped.
    link_dropped: Notify,
    /// The last number that Valkey told.
    replicas: AtomicU32,
    /// The number that the store counts, for a replica that has never reached Valkey.
    members: Arc<AtomicU32>,
    /// Whether other replicas can recall permits from this one.
    receives_recalls: AtomicBool,
    active_leases: ActiveLeases,
    metrics: SharedLimitsMetrics,
    /// The metrics of the whole gateway.
    all_metrics: Metrics,
}

/// Does not repeat the address: it may contain a password.
#[derive(Debug, thiserror::Error)]
#[error(
    "the address of the shared limits is not valid: write one such as \
     `redis://user:password@host:6379/0`, or `rediss://` for TLS"
)]
pub struct InvalidAddress;

impl SharedLimits {
    /// Prepares the link to a Valkey that need not be there yet. No call waits for it longer than
    /// `answer_timeout`, and usually only one does.
    pub fn connect(
        url: &Secret,
        answer_timeout: Duration,
        metrics: &Metrics,
    ) -> Result<Arc<Self>, InvalidAddress> {
        let client = Client::open(url.expose()).map_err(|_| InvalidAddress)?;
        let (all_metrics, metrics) = (metrics.clone(), metrics.shared_limits());
        Ok(Arc::new(Self {
            client,
            answer_timeout,
            replica: Uuid::new_v4(),
            link: ArcSwapOption::empty(),
            link_number: AtomicU32::new(NO_LINK),
            link_dropped: Notify::new(),
            replicas: AtomicU32::new(1),
            members: Arc::default(),
            receives_recalls: AtomicBool::new(false),
            active_leases: ActiveLeases::default(),
            metrics,
            all_metrics,
        }))
    }

    /// Returns whether calls use the shared limits now.
    pub fn is_up(&self) -> bool {
        self.link.load().is_some()
    }

    /// Returns the number of replicas that divide the limits while Valkey is away.
    pub fn replicas(&self) -> u32 {
        let known_otherwise = self.members.load(Ordering::Relaxed);
        self.replicas.load(Ordering::Relaxed).max(known_otherwise)
    }

    /// Receives the number of replicas in the store: the lower bound of [`Self::replicas`].
    pub fn members(&self) -> &Arc<AtomicU32> {
        &self.members
    }

    /// Takes one call from each bucket, or from none. Returns `None` if Valkey is away.
    pub(super) async fn take_all(
        &self,
        buckets: &[&Arc<Bucket>],
    ) -> Option<Result<RateStatus, LimitRefusal>> {
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

    /// Drops a link. Only the first of many calls that notice the failure does so.
    fn drop_link(&self, link: &Arc<Link>, error: &RedisError) {
        let before = self.link.compare_and_swap(link, None);
        if before.as_ref().is_some_and(|before| Arc::ptr_eq(before, link)) {
            self.link_number.store(NO_LINK, Ordering::SeqCst);
            self.metrics.up.set(0);
            let replicas = self.replicas();
            tracing::warn!(%error, replicas, "shared limits are away: each replica uses its share");
            self.link_dropped.notify_one();
        }
    }
}
