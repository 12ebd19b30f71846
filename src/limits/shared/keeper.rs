//! The one task that makes connections to Valkey. Calls never wait for one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::RngExt;
use redis::RedisError;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::link::Link;

/// How often a replica says that it lives.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);
/// How long to wait after the first failure, and at most.
const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(1);

impl Shared {
    /// Keeps the connection, until told to stop; then takes this replica from those that share.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(self.keep()).await;
        if let Some(link) = self.link.swap(None) {
            // If it fails, the others notice by the silence.
            let _ = link.leave(self.replica).await;
        }
    }

    async fn keep(&self) {
        let mut wait = WAIT_FIRST;
        let mut told = false;
        loop {
            match self.open().await {
                Ok(link) => {
                    told = true;
                    if self.stay(link).await {
                        wait = WAIT_FIRST;
                    }
                }
                Err(error) if !told => {
                    told = true;
                    tracing::warn!(%error, "shared limits cannot be reached: this replica goes by its own");
                }
                Err(_) => {}
            }
            sleep(some_of(wait)).await;
            wait = (wait * 2).min(WAIT_MAX);
        }
    }

    /// A connection over which Valkey has answered quickly.
    async fn open(&self) -> Result<Arc<Link>, RedisError> {
        let link = Link::open(&self.client, self.answer_timeout).await?;
        let replicas = link.heartbeat(self.replica).await?;
        // A Valkey that has just started has not heard of all replicas yet.
        self.replicas.fetch_max(replicas, Ordering::Relaxed);
        Ok(Arc::new(link))
    }

    /// Lets calls use a connection until it is lost. Whether it was of use for a while: one that is lost at once must
    /// not be made again at once, and again.
    async fn stay(&self, link: Arc<Link>) -> bool {
        self.link.store(Some(link.clone()));
        self.metrics.up.set(1);
        tracing::info!(replicas = self.replicas(), "limits are shared");
        let mut beats = interval(HEARTBEAT_EVERY);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        beats.tick().await;
        let mut of_use = false;
        loop {
            tokio::select! {
                () = self.lost.notified() => return of_use,
                _ = beats.tick() => match self.beat(&link).await {
                    Ok(()) => of_use = true,
                    Err(error) => self.lose(&link, &error),
                },
            }
        }
    }

    async fn beat(&self, link: &Link) -> Result<(), RedisError> {
        let replicas = link.heartbeat(self.replica).await?;
        self.replicas.store(replicas.max(1), Ordering::Relaxed);
        Ok(())
    }
}

/// Half of a wait or more: replicas that failed together do not all come back together.
fn some_of(wait: Duration) -> Duration {
    wait.mul_f64(rand::rng().random_range(0.5..=1.0))
}
