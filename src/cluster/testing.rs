//! A replica for tests.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use super::peer_request::RefusalLog;
use super::proof::{ACCEPTED_FOR, UsedProofs};
use super::{Cluster, Peer};
use crate::common::seal::Sealer;
use crate::common::tenant_quota::TenantQuota;
use crate::config::Secret;

/// Returns a replica that no other knows.
pub(crate) fn replica(key: &str) -> Cluster {
    let id = uuid::Uuid::new_v4().simple().to_string();
    Cluster {
        me: Peer { id, address: ([127, 0, 0, 1], 1).into() },
        sealer: Sealer::new(&[Secret::new(key.to_owned())]),
        http: reqwest::Client::new(),
        others: ArcSwap::default(),
        count: Arc::default(),
        ended_here: mpsc::channel(1).0,
        unwritten: TenantQuota::new(3, 3),
        unwritten_lost: AtomicU64::new(0),
        refusals: RefusalLog::default(),
        used_proofs: UsedProofs::new(ACCEPTED_FOR),
        cancels: TenantQuota::new(1, 1),
        use_notices: TenantQuota::new(1, 1),
    }
}
