//! Membership: each replica writes a heartbeat to the store, and reads the other replicas.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};

use super::ended_sessions::EndedSessionWriter;
use super::{Cluster, Peer};
use crate::store::{Outage, Store, StoreError};

/// A replica without a heartbeat for ten seconds counts as gone.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The tasks that keep a replica in the cluster.
pub struct Membership {
    pub(super) cluster: Arc<Cluster>,
    pub(super) store: Store,
    pub(super) ended_sessions: EndedSessionWriter,
}

impl Membership {
    /// Runs for ever.
    pub async fn run(&mut self) {
        let Self { cluster, store, ended_sessions } = self;
        tokio::join!(keep_alive(store, cluster), ended_sessions.run(), sweep(store));
    }

    /// Leaves the cluster.
    pub async fn leave(mut self) {
        self.ended_sessions.flush().await;
        // If this fails, the others notice the missing heartbeat.
        if let Err(error) = self.store.remove_replica(&self.cluster.me.id).await {
            tracing::debug!(%error, "this replica could not be removed from the store");
        }
    }
}

/// Writes a heartbeat and reads the other replicas.
pub(super) async fn heartbeat(store: &Store, cluster: &Cluster) -> Result<(), StoreError> {
    let me = &cluster.me;
    let others = store.heartbeat(&me.id, &me.address.to_string()).await?;
    let peer = |(id, address): (String, String)| Some(Peer { id, address: address.parse().ok()? });
    let others: Vec<_> = others.into_iter().filter_map(peer).collect();
    cluster.count.store(others.len() as u32 + 1, Ordering::Relaxed);
    cluster.others.store(Arc::new(others));
    Ok(())
}

/// Runs for ever. While the store is away, known replicas count as present.
async fn keep_alive(store: &Store, cluster: &Cluster) {
    let mut heartbeats = interval(HEARTBEAT_EVERY);
    heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut outage = Outage::new(store, "the list of replicas", "known ones count as present");
    loop {
        heartbeats.tick().await;
        outage.note(heartbeat(store, cluster).await);
    }
}

/// Runs for ever, beside the heartbeat: a long deletion must not delay it.
async fn sweep(store: &Store) {
    loop {
        sleep(SWEEP_EVERY).await;
        // The rest is deleted the next time.
        let _ = store.delete_gone_replicas().await;
        let _ = store.delete_ended_sessions().await;
    }
}
