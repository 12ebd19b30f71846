//! Sessions that end before their tokens expire. Each replica writes those that ended there to the
//! store, and reads those that ended elsewhere. So no replica accepts such a token. One that starts
//! later asks the store about the tokens that it meets.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::Cluster;
use crate::common::ids::{SessionId, TenantId};
use crate::common::tenant_quota::{QuotaPermit, TenantQuota};
use crate::store::{
    EndedCursor, EndedSession, Follower, Outage, RETRY_EVERY, Store, StoreError, Subject,
};

/// Ended sessions that may wait for the store.
pub(super) const UNWRITTEN_MAX: usize = 4096;
/// The most of one tenant: a quarter is kept for others, however many sessions a tenant ends.
const UNWRITTEN_OF_TENANT_MAX: usize = UNWRITTEN_MAX - UNWRITTEN_MAX / 4;
const BATCH: usize = 1000;

/// A session that ended here and is not in the store yet.
pub(super) struct UnwrittenEnd {
    session: EndedSession,
    /// Fires when the store has it.
    written: oneshot::Sender<()>,
    _permit: QuotaPermit,
}

/// Returns the places of sessions that wait for the store.
pub(super) fn unwritten() -> Arc<TenantQuota> {
    TenantQuota::new(UNWRITTEN_MAX, UNWRITTEN_OF_TENANT_MAX)
}

impl Cluster {
    /// Queues the end of a session for the store. Its token would be valid until `expires`, in
    /// milliseconds since 1970. The receiver fires when it is written, or fails if the queue is
    /// full, or has as many of the tenant as it may.
    pub fn record_ended(
        &self,
        tenant: &TenantId,
        id: SessionId,
        expires: i64,
    ) -> oneshot::Receiver<()> {
        let (written, done) = oneshot::channel();
        let session = EndedSession { id, tenant: Some(tenant.unique_text()), expires };
        let is_queued = self.unwritten.take(tenant).is_some_and(|_permit| {
            let end = UnwrittenEnd { session, written, _permit };
            !matches!(self.ended_here.try_send(end), Err(TrySendError::Full(_)))
        });
        if !is_queued {
            let lost = self.unwritten_lost.fetch_add(1, Ordering::Relaxed) + 1;
            // Logged less and less often.
            if lost.is_power_of_two() {
                tracing::warn!(
                    lost,
                    "too many sessions have ended while the store is away: \
                     replicas that start later will accept the tokens of some"
                );
            }
        }
        done
    }
}

/// Writes sessions that ended here to the store.
pub(super) struct EndedSessionWriter {
    store: Store,
    ended: mpsc::Receiver<UnwrittenEnd>,
    /// Received, and not written yet.
    unwritten: Vec<UnwrittenEnd>,
}

impl EndedSessionWriter {
    pub(super) fn new(store: Store, ended: mpsc::Receiver<UnwrittenEnd>) -> Self {
        Self { store, ended, unwritten: vec![] }
    }

    /// Returns when no more can come. Cancelling loses nothing.
    pub(super) async fn run(&mut self) {
        let mut outage = Outage::new(&self.store, "ends of sessions", "they are written later");
        loop {
            if self.unwritten.is_empty()
                && self.ended.recv_many(&mut self.unwritten, BATCH).await == 0
            {
                return;
            }
            if outage.note(self.write().await).is_none() {
                sleep(RETRY_EVERY).await;
            }
        }
    }

    /// Writes the rest, without retrying.
    pub(super) async fn flush(&mut self) {
        while let Ok(end) = self.ended.try_recv() {
            self.unwritten.push(end);
        }
        if !self.unwritten.is_empty()
            && let Err(error) = self.write().await
        {
            let lost = self.unwritten.len();
            tracing::warn!(%error, lost, "sessions that ended here could not be written");
        }
    }

    async fn write(&mut self) -> Result<(), StoreError> {
        let rows: Vec<_> = self.unwritten.iter().map(|end| end.session.clone()).collect();
        self.store.end_sessions(&rows).await?;
        for end in self.unwritten.drain(..) {
            let _ = end.written.send(());
        }
        Ok(())
    }
}

/// Reads the sessions that ended on any replica.
pub struct EndedSessions {
    store: Store,
    follower: Follower,
    cursor: EndedCursor,
}

impl EndedSessions {
    pub fn new(store: Store) -> Self {
        let meanwhile = "sessions that end on other replicas may still be accepted here";
        let follower = Follower::new(store.changes(Subject::Sessions), "ended sessions", meanwhile);
        Self { follower, store, cursor: EndedCursor::default() }
    }

    /// Skips those that have ended so far.
    pub async fn skip(&mut self) -> Result<(), StoreError> {
        self.cursor = self.store.ended_so_far().await?;
        Ok(())
    }

    /// Returns some that were not returned before; none if there are no more.
    pub async fn read(&mut self) -> Result<Vec<EndedSession>, StoreError> {
        self.store.ended_sessions(&mut self.cursor).await
    }

    /// Waits until there are some.
    pub async fn next(&mut self) -> Vec<EndedSession> {
        loop {
            let read = self.read().await;
            match self.follower.retry(read).await {
                Some(ended) if !ended.is_empty() => return ended,
                Some(_) => self.follower.changed(pending()).await,
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::replica;

    #[tokio::test]
    async fn ended_sessions_beyond_the_queue_are_counted() {
        let (ended_here, mut waiting) = mpsc::channel(1);
        let replica = Cluster { ended_here, ..replica("a key") };
        let tenant = TenantId::testing("a");
        let record = || replica.record_ended(&tenant, SessionId::generate(), 0);
        let recorded = [(); 3].map(|()| record());
        assert_eq!(replica.unwritten_lost.load(Ordering::Relaxed), 2);
        // Waiting for a lost one fails at once.
        let [first, second, third] = recorded;
        assert!(second.await.is_err() && third.await.is_err());
        let _ = waiting.recv().await.unwrap().written.send(());
        assert!(first.await.is_ok());
        // At shutdown the receiver is gone, and none counts as lost.
        drop(waiting);
        drop(record());
        assert_eq!(replica.unwritten_lost.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_tenant_that_ends_many_sessions_leaves_room_for_those_of_others() {
        let (ended_here, _waiting) = mpsc::channel(UNWRITTEN_MAX);
        let replica = Cluster { ended_here, unwritten: unwritten(), ..replica("a key") };
        let [a, b] = ["a", "b"].map(TenantId::testing);
        let record = |tenant| replica.record_ended(tenant, SessionId::generate(), 0);
        let _of_a: Vec<_> = (0..UNWRITTEN_MAX).map(|_| record(&a)).collect();
        let lost = || replica.unwritten_lost.load(Ordering::Relaxed);
        assert_eq!(lost(), UNWRITTEN_MAX as u64 / 4);
        let _of_b: Vec<_> = (0..UNWRITTEN_MAX / 4).map(|_| record(&b)).collect();
        assert_eq!(lost(), UNWRITTEN_MAX as u64 / 4);
    }
}
