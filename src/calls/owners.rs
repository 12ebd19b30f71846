//! Knows which gateways live that have calls in the store.

use std::sync::Arc;

use uuid::Uuid;

use crate::cluster::{Cluster, Peer};
use crate::store::{Store, StoreError};

pub(super) struct Owners {
    /// This gateway, different after each start.
    pub(super) me: Arc<str>,
    /// `None`: this gateway stands alone, so every other one was an earlier run.
    cluster: Option<Arc<Cluster>>,
    store: Store,
}

impl Owners {
    pub(super) fn new(cluster: Option<Arc<Cluster>>, store: Store) -> Self {
        let me = match &cluster {
            Some(cluster) => cluster.me().id.as_str().into(),
            None => Uuid::new_v4().simple().to_string().into(),
        };
        Self { me, cluster, store }
    }

    pub(super) fn peer(&self, owner: &str) -> Option<Peer> {
        self.cluster.as_ref()?.peer(owner)
    }

    pub(super) async fn is_alive(&self, owner: &str) -> Result<bool, StoreError> {
        if owner == &*self.me {
            return Ok(true);
        }
        match &self.cluster {
            Some(cluster) if cluster.peer(owner).is_some() => Ok(true),
            // It may have joined since the list of replicas was read.
            Some(_) => self.store.is_replica_alive(owner).await,
            None => Ok(false),
        }
    }
}
