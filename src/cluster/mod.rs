//! Several gateways that stand for one behind a load balancer: who they are, and how one reaches another.
//!
//! Any replica answers nearly everything. What belongs to one of them is sent on to it:
//!
//! - `address`: where others reach this one
//! - `letter`: a request on its way to another replica, `proof`: how that one knows where it comes from, and `seen`: that it has
//!   not come before
//! - `turns`: how much is told at once
//! - `members`: who is there, by the store
//! - `endings`: which sessions have ended, by the store

mod address;
mod ended_sessions;
mod members;
mod notice_quota;
mod peer_request;
mod proof;
mod seen;
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
use crate::config::Config;
use crate::store::{Store, StoreError};

use self::ended_sessions::{ENDINGS_WAITING_MAX, Ending};
use self::notice_quota::Turns;
use self::peer_request::Refusals;
use self::seen::Seen;

pub use self::address::AddressError;
pub use self::ended_sessions::Endings;
pub use self::members::Membership;
pub use self::notice_quota::Turn;
pub use self::peer_request::{Letter, PROOF, REFUSED_BY, REPLICA, SendError, end_to_end};
pub use self::proof::{Opened, Refused};

/// Replicas are near each other: one that does not take a connection by then is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Less than what a gateway keeps an unused connection open for.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How a replica is found out that has gone without a word.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long all others together may take to hear something.
const TELL_TIMEOUT: Duration = Duration::from_secs(1);
/// Words that may be on their way at once, with nobody waiting for them: for all others, and, apart from these, for those that
/// keep sessions which are used here.
const TELLING_MAX: usize = 256;
/// Of these, one tenant's.
const TELLING_OF_TENANT_MAX: usize = 16;

/// One of the replicas, as the others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Another one each time that it is started.
    pub id: String,
    /// Where others reach it.
    pub address: SocketAddr,
}

/// This replica among the others.
pub struct Replicas {
    me: Peer,
    sealer: Sealer,
    http: reqwest::Client,
    /// The others, as of the last time that the store told.
    others: ArcSwap<Vec<Peer>>,
    /// How many that are, with this one.
    count: Arc<AtomicU32>,
    /// Sessions that have ended here, to be written down.
    endings: mpsc::Sender<Ending>,
    /// Those that could not be.
    endings_lost: AtomicU64,
    refusals: Refusals,
    /// The proofs of others.
    seen: Seen,
    /// For what all others have to hear.
    telling: Arc<Turns>,
    /// For what keeps sessions from ending.
    telling_use: Arc<Turns>,
}

/// Why this gateway cannot be one of several.
#[derive(Debug, thiserror::Error)]
pub enum ReplicasError {
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

impl Replicas {
    /// Joins the others, by the store. `bound` is where this one listens for them, by `config.replicas`; how many there are is
    /// kept in `count`. What is given besides is to be kept running.
    pub async fn join(
        config: &Config,
        bound: SocketAddr,
        store: Store,
        count: Arc<AtomicU32>,
    ) -> Result<(Arc<Self>, Membership), ReplicasError> {
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
        let (endings, ended) = mpsc::channel(ENDINGS_WAITING_MAX);
        let replicas = Arc::new(Self {
            me,
            sealer: Sealer::new(&config.session_keys),
            http,
            others: ArcSwap::default(),
            count,
            endings,
            endings_lost: AtomicU64::new(0),
            refusals: Refusals::default(),
            seen: Seen::new(proof::GOOD_FOR),
            telling: Turns::new(TELLING_MAX, TELLING_OF_TENANT_MAX),
            telling_use: Turns::new(TELLING_MAX, TELLING_OF_TENANT_MAX),
        });
        let membership = Membership::new(replicas.clone(), store, ended);
        membership.beat().await?;
        Ok((replicas, membership))
    }

    /// This one, as the others know it.
    pub fn me(&self) -> &Peer {
        &self.me
    }

    /// All others, and `keeper` if it is not known to be one of them.
    pub fn others_and(&self, keeper: Option<&Peer>) -> Vec<Peer> {
        let others = self.others.load();
        let unknown = keeper.filter(|keeper| others.iter().all(|other| other.id != keeper.id));
        others.iter().chain(unknown).cloned().collect()
    }

    /// Tells others something, and waits a little while until they have heard it. Who cannot be reached is left out.
    pub async fn tell(&self, to: &[Peer], letter: &Letter) {
        let told = to.iter().map(|peer| async {
            match self.send(peer, letter).await {
                // Read to its end, so that the connection can be used again.
                Ok(heard) => drop(heard.bytes().await),
                Err(error) => {
                    tracing::debug!(replica = %peer.address, %error, "a replica was not told");
                }
            }
        });
        let _ = timeout(TELL_TIMEOUT, join_all(told)).await;
    }

    /// A turn to tell something that concerns `tenant`. There is none while too much is being told.
    pub fn turn(&self, tenant: &TenantId) -> Option<Turn> {
        self.telling.take(tenant)
    }

    /// The same to tell that a session of `tenant` is in use.
    pub fn turn_for_use(&self, tenant: &TenantId) -> Option<Turn> {
        self.telling_use.take(tenant)
    }

    /// Tells others something without waiting.
    pub fn tell_later(self: &Arc<Self>, turn: Turn, to: Vec<Peer>, letter: Letter) {
        let replicas = self.clone();
        tokio::spawn(async move {
            replicas.tell(&to, &letter).await;
            drop(turn);
        });
    }
}
