//! Hears that other replicas need permits, and returns those that are not needed here.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use redis::RedisError;
use redis::aio::PubSub;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::SharedLimits;
use super::link::{CONNECT_TIMEOUT, timed_out};

/// Carries the ids of the leases with headroom.
pub(super) const RECALL_CHANNEL: &str = "trunkline:wanted";
/// The pause before subscribing again.
const SUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);

impl SharedLimits {
    /// Runs for ever. A replica that receives no recalls holds no headroom, so failures do no harm.
    pub(super) async fn hear_recalls(&self) {
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
        timeout(CONNECT_TIMEOUT, subscribe).await.unwrap_or_else(|elapsed| Err(timed_out(elapsed)))
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
