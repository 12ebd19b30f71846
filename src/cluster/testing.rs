//! Replicas for tests.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use super::notice_quota::Turns;
use super::peer_request::Refusals;
use super::proof::GOOD_FOR;
use super::seen::Seen;
use super::{Peer, Replicas};
use crate::common::seal::Sealer;
use crate::config::Secret;

/// One that nobody has heard of.
pub(crate) fn replica(key: &str) -> Replicas {
    let id = uuid::Uuid::new_v4().simple().to_string();
    Replicas {
        me: Peer { id, address: ([127, 0, 0, 1], 1).into() },
        sealer: Sealer::new(&[Secret::new(key.to_owned())]),
        http: reqwest::Client::new(),
        others: ArcSwap::default(),
        count: Arc::default(),
        endings: mpsc::channel(1).0,
        endings_lost: AtomicU64::new(0),
        refusals: Refusals::default(),
        seen: Seen::new(GOOD_FOR),
        telling: Turns::new(1, 1),
        telling_use: Turns::new(1, 1),
    }
}
