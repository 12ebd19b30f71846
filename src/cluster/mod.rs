//! Several gateways that stand for one behind a load balancer: who they are, and how one reaches another.
//!
//! Any replica answers nearly everything. What belongs to one of them is sent on to it:
//!
//! - `address`: where others reach this one
//! - `request`: a request on its way to another replica, `proof`: how that one knows where it comes from, and `seen`: that it has
//!   not come before
//! - `quota`: how much is told at once
//! - `members`: who is there, by the store
//! - `ended_here`: which sessions have ended, by the store

mod address;
mod ended_sessions;
mod members;
mod notice_quota;
mod peer_request;
mod proof;
#[cfg(test)]
pub(crate) mod testing;
mod used_proofs;

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
use crate::config::Config;
use crate::store::{Store, StoreError};

use self::ended_sessions::{UNWRITTEN_MAX, UnwrittenEnd};
use self::notice_quota::NoticeQuota;
use self::peer_request::RefusalLog;
use self::used_proofs::UsedProofs;

pub use self::address::AddressError;
pub use self::ended_sessions::EndedSessions;
pub use self::members::Membership;
pub use self::notice_quota::NoticePermit;
pub use self::peer_request::{PROOF, PeerRequest, REFUSED_BY, REPLICA, SendError, end_to_end};
pub use self::proof::{OpenedProof, ProofError};

/// Cluster are near each other: one that does not take a connection by then is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Less than what a gateway keeps an unused connection open for.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How a replica is found out that has gone without a word.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long all others together may take to hear something.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(1);
/// Words that may be on their way at once, with nobody waiting for them: for all others, and, apart from these, for those that
/// keep sessions which are used here.
const NOTICES_MAX: usize = 256;
/// Of these, one tenant's.
const NOTICES_OF_TENANT_MAX: usize = 16;

/// One of the replicas, as the others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Another one each time that it is started.
    pub id: String,
    /// Where others reach it.
    pub address: SocketAddr,
}

/// This replica among the others.
pub struct Cluster {
    me: Peer,
    sealer: Sealer,
    http: reqwest::Client,
    /// The others, as of the last time that the store told.
    others: ArcSwap<Vec<Peer>>,
    /// How many that are, with this one.
    count: Arc<AtomicU32>,
    /// Sessions that have ended here, to be written down.
    ended_here: mpsc::Sender<UnwrittenEnd>,
    /// Those that could not be.
    unwritten_lost: AtomicU64,
    refusals: RefusalLog,
    /// The proofs of others.
    used_proofs: UsedProofs,
    /// For what all others have to hear.
    notices: Arc<NoticeQuota>,
    /// For what keeps sessions from ending.
    use_notices: Arc<NoticeQuota>,
}

/// Why this gateway cannot be one of several.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Others could not reach it.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// It cannot reach others.
    #[error("HTTP cannot be spoken to other replicas: {0}")]
    Http(#[from] reqwest::Error),
    /// It does not learn of others.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Cluster {
    /// Joins the others, by the store. `bound` is where this one listens for them, by `config.replicas`; how many there are is
    /// kept in `count`. What is given besides is to be kept running.
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
        let replicas = Arc::new(Self {
            me,
            sealer: Sealer::new(&config.session_keys),
            http,
            others: ArcSwap::default(),
            count,
            ended_here,
            unwritten_lost: AtomicU64::new(0),
            refusals: RefusalLog::default(),
            used_proofs: UsedProofs::new(proof::ACCEPTED_FOR),
            notices: NoticeQuota::new(NOTICES_MAX, NOTICES_OF_TENANT_MAX),
            use_notices: NoticeQuota::new(NOTICES_MAX, NOTICES_OF_TENANT_MAX),
        });
        let membership = Membership::new(replicas.clone(), store, ended);
        membership.heartbeat().await?;
        Ok((replicas, membership))
    }

    /// This one, as the others know it.
    pub fn me(&self) -> &Peer {
        &self.me
    }

    /// All others, and `owner` if it is not known to be one of them.
    pub fn others_and(&self, owner: Option<&Peer>) -> Vec<Peer> {
        let others = self.others.load();
        let unknown = owner.filter(|owner| others.iter().all(|other| other.id != owner.id));
        others.iter().chain(unknown).cloned().collect()
    }

    /// Tells others something, and waits a little while until they have heard it. Who cannot be reached is left out.
    pub async fn notify(&self, to: &[Peer], request: &PeerRequest) {
        let told = to.iter().map(|peer| async {
            match self.send(peer, request).await {
                // Read to its end, so that the connection can be used again.
                Ok(heard) => drop(heard.bytes().await),
                Err(error) => {
                    tracing::debug!(replica = %peer.address, %error, "a replica was not told");
                }
            }
        });
        let _ = timeout(NOTICE_TIMEOUT, join_all(told)).await;
    }

    /// A permit to tell something that concerns `tenant`. There is none while too much is being told.
    pub fn notice_permit(&self, tenant: &TenantId) -> Option<NoticePermit> {
        self.notices.take(tenant)
    }

    /// The same to tell that a session of `tenant` is in use.
    pub fn use_notice_permit(&self, tenant: &TenantId) -> Option<NoticePermit> {
        self.use_notices.take(tenant)
    }

    /// Tells others something without waiting.
    pub fn notify_in_background(
        self: &Arc<Self>,
        permit: NoticePermit,
        to: Vec<Peer>,
        request: PeerRequest,
    ) {
        let replicas = self.clone();
        tokio::spawn(async move {
            replicas.notify(&to, &request).await;
            drop(permit);
        });
    }
}
