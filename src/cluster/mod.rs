//! Several gateways behind one load balancer: their membership, and requests between them.
//!
//! Any replica answers nearly everything. A request that concerns one replica's session is
//! forwarded to it.
//!
//! - `address`: the address that this replica advertises
//! - `peer_request`: a request to another replica; `proof` authenticates it, once
//! - `members`: membership, through the store
//! - `ended_sessions`: sessions that ended, through the store

mod address;
mod ended_sessions;
mod members;
mod peer_request;
mod proof;
#[cfg(test)]
pub(crate) mod testing;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use reqwest::redirect::Policy;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::common::ids::TenantId;
use crate::common::seal::Sealer;
use crate::common::tenant_quota::{QuotaPermit, TenantQuota};
use crate::config::Config;
use crate::store::{Store, StoreError};

use self::ended_sessions::{EndedSessionWriter, UNWRITTEN_MAX, UnwrittenEnd};
use self::peer_request::RefusalLog;
use self::proof::UsedProofs;

pub use self::address::AddressError;
pub use self::ended_sessions::EndedSessions;
pub use self::members::Membership;
pub use self::peer_request::{PROOF, PeerRequest, PeerSendError, REFUSED_BY, REPLICA, end_to_end};
pub use self::proof::{OpenedProof, ProofError};

/// Replicas are near each other: one that does not accept a connection by then is gone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Shorter than a gateway keeps idle connections open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Detects a replica that vanished silently.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// For all receivers of a notice together.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(1);
/// Notices in flight to the owners of sessions that are used here.
const NOTICES_MAX: usize = 256;
const NOTICES_OF_TENANT_MAX: usize = 16;
/// Notices in flight that a request was cancelled. Each is small, and goes to all replicas.
const CANCELS_MAX: usize = 1024;
pub const CANCELS_OF_TENANT_MAX: usize = 64;
/// Longer than a notice takes, even to a replica that hangs.
const CANCEL_WAIT: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Different after each start.
    pub id: String,
    pub address: SocketAddr,
}

/// This replica's view of the cluster.
pub struct Cluster {
    me: Peer,
    sealer: Sealer,
    http: reqwest::Client,
    /// The other replicas, as last read from the store.
    others: ArcSwap<Vec<Peer>>,
    /// The number of replicas, this one included.
    count: Arc<AtomicU32>,
    /// Sessions that ended here, on their way to the store.
    ended_here: mpsc::Sender<UnwrittenEnd>,
    /// Counts the places of the queue, by tenant.
    unwritten: Arc<TenantQuota>,
    /// Ended sessions that did not fit into the queue.
    unwritten_lost: AtomicU64,
    refusals: RefusalLog,
    used_proofs: UsedProofs,
    /// For notices to all replicas that a request was cancelled.
    cancels: Arc<TenantQuota>,
    /// For notices that keep a session alive.
    use_notices: Arc<TenantQuota>,
}

#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("cannot send requests to other replicas: {0}")]
    Http(#[from] reqwest::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Cluster {
    /// Joins the cluster. `bound` is the address on which this replica listens for others; `count`
    /// receives the number of replicas. The membership must be kept running.
    pub async fn join(
        config: &Config,
        bound: SocketAddr,
        store: Store,
        count: Arc<AtomicU32>,
    ) -> Result<(Arc<Self>, Membership), ClusterError> {
        let advertised = config.replicas.as_ref().and_then(|replicas| replicas.address);
        let address = address::own(advertised, bound).await?;
        let me = Peer { id: uuid::Uuid::new_v4().simple().to_string(), address };
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .tcp_keepalive(KEEP_ALIVE)
            .tcp_nodelay(true)
            .build()?;
        let (ended_here, ended) = mpsc::channel(UNWRITTEN_MAX);
        let cluster = Arc::new(Self {
            me,
            sealer: Sealer::new(&config.session_keys),
            http,
            others: ArcSwap::default(),
            count,
            ended_here,
            unwritten: ended_sessions::unwritten(),
            unwritten_lost: AtomicU64::new(0),
            refusals: RefusalLog::default(),
            used_proofs: UsedProofs::new(proof::ACCEPTED_FOR),
            cancels: TenantQuota::new(CANCELS_MAX, CANCELS_OF_TENANT_MAX),
            use_notices: TenantQuota::new(NOTICES_MAX, NOTICES_OF_TENANT_MAX),
        });
        members::heartbeat(&store, &cluster).await?;
        let ended_sessions = EndedSessionWriter::new(store.clone(), ended);
        Ok((cluster.clone(), Membership { cluster, store, ended_sessions }))
    }

    pub fn me(&self) -> &Peer {
        &self.me
    }

    /// Returns another replica by its id, if it is known to live.
    pub fn peer(&self, id: &str) -> Option<Peer> {
        self.others.load().iter().find(|peer| peer.id == id).cloned()
    }

    /// Returns all other replicas, and `owner` if it is not among them.
    pub fn others_and(&self, owner: Option<&Peer>) -> Vec<Peer> {
        let others = self.others.load();
        let unknown = owner.filter(|owner| others.iter().all(|other| other.id != owner.id));
        others.iter().chain(unknown).cloned().collect()
    }

    /// Sends a request to several replicas, and waits briefly for their answers. Unreachable ones
    /// are skipped.
    pub async fn notify(&self, to: &[Peer], request: &PeerRequest) {
        let sent = to.iter().map(|peer| async {
            match self.send(peer, request).await {
                // Read to the end, so that the connection can be reused.
                Ok(answer) => drop(answer.bytes().await),
                Err(error) => {
                    tracing::debug!(replica = %peer.address, %error, "a notice was not received");
                }
            }
        });
        let _ = timeout(NOTICE_TIMEOUT, join_all(sent)).await;
    }

    /// Waits for a permit for one notice that a request of `tenant` was cancelled. Returns `None`
    /// if too many are in flight for too long.
    pub async fn cancel_permit(&self, tenant: &TenantId) -> Option<QuotaPermit> {
        self.cancels.wait(tenant, CANCEL_WAIT).await
    }

    /// Returns a permit for one notice that a session of `tenant` is in use.
    pub fn use_notice_permit(&self, tenant: &TenantId) -> Option<QuotaPermit> {
        self.use_notices.take(tenant)
    }

    /// Sends a notice without waiting for answers.
    pub fn notify_in_background(
        self: &Arc<Self>,
        permit: QuotaPermit,
        to: Vec<Peer>,
        request: PeerRequest,
    ) {
        let cluster = self.clone();
        tokio::spawn(async move {
            cluster.notify(&to, &request).await;
            drop(permit);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::replica;

    #[tokio::test]
    async fn notices_of_use_have_a_quota_of_their_own() {
        let (replica, tenant) = (replica("a key"), TenantId::testing("acme"));
        let _permit = replica.cancel_permit(&tenant).await.unwrap();
        assert!(replica.cancels.take(&tenant).is_none());
        assert!(replica.use_notice_permit(&tenant).is_some());
    }
}
