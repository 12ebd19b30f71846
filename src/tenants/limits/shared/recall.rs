//! Hears from Valkey that somebody else wants what is held here and not needed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use redis::RedisError;
use redis::aio::PubSub;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::SharedLimits;
use super::link::{CONNECT_TIMEOUT, timed_out};

/// Where it is said, by the ids of those who hold too much.
pub(super) const RECALL_CHANNEL: &str = "trunkline:wanted";
/// How long to wait before listening again.
const SUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);

impl SharedLimits {
    /// Listens for ever. Whoever does not hear holds nothing that it does not need, so no failure does harm.
    pub(super) async fn hear_recalls(&self) {
        loop {
            if let Ok(said) = self.subscribe().await {
                self.hears_recalls.store(true, Ordering::SeqCst);
                self.follow(said).await;
                self.hears_recalls.store(false, Ordering::SeqCst);
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
