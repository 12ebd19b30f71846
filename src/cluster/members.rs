//! Who is there: each replica says so in the store every two seconds, and reads who else does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::ended_sessions::{Ending, Notes};
use super::{Peer, Replicas};
use crate::store::{Outage, Store, StoreError};

/// How often to say so. Who has not for ten seconds is taken for gone.
const BEAT_EVERY: Duration = Duration::from_secs(2);
/// How often to look for what can be deleted.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// What keeps a replica among the others, to be run beside the calls.
pub struct Membership {
    replicas: Arc<Replicas>,
    store: Store,
    notes: Notes,
}

impl Membership {
    pub(super) fn new(
        replicas: Arc<Replicas>,
        store: Store,
        ended: mpsc::Receiver<Ending>,
    ) -> Self {
        let notes = Notes::new(store.clone(), ended);
        Self { replicas, store, notes }
    }

    /// Says that this one is there, and learns who else is.
    pub(super) async fn beat(&self) -> Result<(), StoreError> {
        beat(&self.store, &self.replicas).await
    }

    /// Keeps it until `stop`, and then leaves.
    pub async fn run(mut self, stop: CancellationToken) {
        let Self { replicas, store, notes } = &mut self;
        let keeping =
            async { tokio::join!(beat_on(store, replicas), notes.write_on(), sweep_on(store)) };
        stop.run_until_cancelled(keeping).await;
        self.notes.write_last().await;
        // Otherwise the others find out by themselves.
        if let Err(error) = self.store.leave(&self.replicas.me.id).await {
            tracing::debug!(%error, "this replica could not say that it leaves");
        }
    }
}

async fn beat(store: &Store, replicas: &Replicas) -> Result<(), StoreError> {
    let me = &replicas.me;
    let others = store.beat(&me.id, &me.address.to_string()).await?;
    let peer = |(id, address): (String, String)| Some(Peer { id, address: address.parse().ok()? });
    let others: Vec<_> = others.into_iter().filter_map(peer).collect();
    replicas.count.store(others.len() as u32 + 1, Ordering::Relaxed);
    replicas.others.store(Arc::new(others));
    Ok(())
}

/// Never done. While the store is away, those who were there are taken to be there still.
async fn beat_on(store: &Store, replicas: &Replicas) {
    let mut beats = interval(BEAT_EVERY);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut outage = Outage::new("the list of replicas", "known ones count as present");
    loop {
        beats.tick().await;
        outage.note(beat(store, replicas).await);
    }
}

/// Never done. Beside the beats: who has much to delete must not be taken for gone.
async fn sweep_on(store: &Store) {
    loop {
        sleep(SWEEP_EVERY).await;
        // What is left is deleted the next time.
        let _ = store.delete_gone_replicas().await;
        let _ = store.delete_ended_sessions().await;
    }
}
