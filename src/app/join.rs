//! A gateway as one replica of a cluster.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use anyhow::{Context, Result};
use futures_util::FutureExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::cluster::{Cluster, EndedSessions, Membership};
use crate::config::Config;
use crate::http::AppState;
use crate::store::Store;
use crate::telemetry::tasks::restart_on_panic;

/// A replica that has joined its cluster and does not serve yet.
pub(super) struct JoinedCluster {
    /// Serves the other replicas.
    pub(super) listener: TcpListener,
    membership: Membership,
    ended_sessions: EndedSessions,
    cluster: Arc<Cluster>,
}

/// The tasks of a replica that serves.
pub(super) struct ClusterTasks {
    stop: CancellationToken,
    membership: JoinHandle<()>,
    _following: AbortOnDropHandle<()>,
}

impl JoinedCluster {
    /// Joins the cluster. `count` receives the number of replicas.
    pub(super) async fn join(
        listener: TcpListener,
        config: &Config,
        store: &Store,
        count: Arc<AtomicU32>,
    ) -> Result<Self> {
        let bound = listener.local_addr()?;
        let (cluster, membership) = Cluster::join(config, bound, store.clone(), count).await?;
        let ended_sessions = EndedSessions::new(store.clone());
        Ok(Self { listener, membership, ended_sessions, cluster })
    }

    /// Gives the HTTP state access to the cluster. Sessions that have ended so far are not read:
    /// there may be millions, and the store is asked about those that are still used.
    pub(super) async fn attach(&mut self, state: AppState, config: &Config) -> Result<AppState> {
        self.ended_sessions.skip().await.context("cannot read ended sessions")?;
        Ok(state.join(self.cluster.clone(), config))
    }

    /// Starts the heartbeat and follows ended sessions. Returns the listener, to be served.
    pub(super) fn start(self, state: Arc<AppState>) -> (TcpListener, ClusterTasks) {
        let stop = CancellationToken::new();
        let metrics = state.gateway().metrics().clone();
        let (mut membership, until, counted) = (self.membership, stop.clone(), metrics.clone());
        let membership = tokio::spawn(async move {
            let tasks =
                restart_on_panic(&counted, "membership", &mut membership, |it| it.run().boxed());
            until.run_until_cancelled(tasks).await;
            membership.leave().await;
        });
        let mut ended_sessions = self.ended_sessions;
        let following = tokio::spawn(async move {
            restart_on_panic(&metrics, "ended_sessions", &mut ended_sessions, |ended| {
                let state = state.clone();
                async move { state.follow_ended_sessions(ended).await }.boxed()
            })
            .await;
        });
        let _following = AbortOnDropHandle::new(following);
        (self.listener, ClusterTasks { stop, membership, _following })
    }
}

impl ClusterTasks {
    /// Leaves the cluster. Called when nothing is served any more.
    pub(super) async fn leave(self) {
        self.stop.cancel();
        let _ = self.membership.await;
    }
}
