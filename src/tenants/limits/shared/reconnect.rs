//! The one task that connects to Valkey, renews leases, and returns permits that other replicas
//! recall. Calls never wait for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use rand::RngExt;
use redis::RedisError;
use redis::aio::PubSub;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::link::{CONNECT_TIMEOUT, Link, RECALL_CHANNEL, within};
use super::{NO_LINK, SharedLimits};

const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);
/// After the first failure, and at most.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Leases are renewed with every second heartbeat: often enough for one renewal to fail.
const HEARTBEATS_PER_RENEWAL: u64 = 2;
/// The pause before subscribing to recalls again.
const SUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);
const RETURN_TIMEOUT: Duration = Duration::from_secs(1);

impl SharedLimits {
    /// Keeps a link until `stop`, then returns all permits and leaves.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(self.reconnect()).await;
        // If this fails, Valkey takes them back after a while.
        let _ = timeout(RETURN_TIMEOUT, self.active_leases.return_unused()).await;
        self.link_number.store(NO_LINK, Ordering::SeqCst);
        if let Some(link) = self.link.swap(None) {
            let _ = link.leave(self.replica).await;
        }
    }

    async fn reconnect(&self) {
        let mut wait = RECONNECT_PAUSE;
        let mut is_logged = false;
        for number in NO_LINK + 1.. {
            match self.open(number).await {
                Ok(link) => {
                    is_logged = true;
                    let was_useful = self.use_link(link).await;
                    self.receives_recalls.store(false, Ordering::SeqCst);
                    if was_useful {
                        wait = RECONNECT_PAUSE;
                    }
                }
                Err(error) if !is_logged => {
                    is_logged = true;
                    tracing::warn!(%error, "no shared limits: this replica uses its share");
                }
                Err(_) => {}
            }
            sleep(jittered(wait)).await;
            wait = (wait * 2).min(RECONNECT_PAUSE_MAX);
        }
    }

    /// Returns a link over which Valkey has answered quickly.
    async fn open(&self, number: u32) -> Result<Arc<Link>, RedisError> {
        let link = Link::open(&self.client, self.answer_timeout, number).await?;
        let replicas = link.heartbeat(self.replica).await?;
        // A Valkey that has just started may not know all replicas yet.
        self.replicas.fetch_max(replicas, Ordering::Relaxed);
        Ok(Arc::new(link))
    }

    /// Lets calls use a link until it is dropped. Returns whether it lasted: a link that is dropped
    /// at once must not be made again at once.
    async fn use_link(&self, link: Arc<Link>) -> bool {
        // First: as soon as there is a link, a call may drop it.
        self.link_number.store(link.number, Ordering::SeqCst);
        self.link.store(Some(link.clone()));
        self.metrics.up.set(1);
        tracing::info!(replicas = self.replicas(), "limits are shared");
        // Concurrently, so that recalls are heard during a long renewal.
        tokio::select! {
            was_useful = self.renew_until_dropped(&link) => was_useful,
            () = self.hear_recalls() => false,
        }
    }

    async fn renew_until_dropped(&self, link: &Arc<Link>) -> bool {
        self.active_leases.renew_all().await;
        let mut heartbeats = interval(HEARTBEAT_EVERY);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeats.tick().await;
        let mut count = 0;
        loop {
            tokio::select! {
                () = self.link_dropped.notified() => return count > 0,
                _ = heartbeats.tick() => match self.heartbeat(link, count).await {
                    Ok(()) => count += 1,
                    Err(error) => self.drop_link(link, &error),
                },
            }
        }
    }

    async fn heartbeat(&self, link: &Link, count: u64) -> Result<(), RedisError> {
        let replicas = link.heartbeat(self.replica).await?;
        self.replicas.store(replicas.max(1), Ordering::Relaxed);
        if count.is_multiple_of(HEARTBEATS_PER_RENEWAL) {
            self.active_leases.renew_all().await;
        } else {
            self.active_leases.return_surplus().await;
        }
        Ok(())
    }

    /// Runs for ever. A replica that receives no recalls holds no headroom, so failures do no harm.
    async fn hear_recalls(&self) {
        loop {
            if let Ok(said) = self.subscribe().await {
                self.receives_recalls.store(true, Ordering::SeqCst);
                self.follow(said).await;
                self.receives_recalls.store(false, Ordering::SeqCst);
            }
            sleep(SUBSCRIBE_PAUSE).await;
        }
    }

    async fn subscribe(&self) -> Result<PubSub, RedisError> {
        let subscribe = async {
            let mut said = self.client.get_async_pubsub().await?;
            said.subscribe(RECALL_CHANNEL).await?;
            Ok(said)
        };
        within(CONNECT_TIMEOUT, subscribe).await
    }

    async fn follow(&self, said: PubSub) {
        let mut said = said.into_on_message();
        while let Some(message) = said.next().await {
            let ids = std::str::from_utf8(message.get_payload_bytes()).unwrap_or_default();
            let ids = ids.split(' ').filter_map(|id| Uuid::try_parse(id).ok());
            for lease in ids.filter_map(|id| self.active_leases.get(id)) {
                lease.return_surplus_at_once();
                lease.request_sync();
            }
        }
    }
}

/// Returns at least half of a wait: replicas that failed together should not reconnect together.
fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(rand::rng().random_range(0.5..=1.0))
}
