//! The driver's plan for each call, drawn from the seed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Servers that share the calls.
pub const SERVERS: usize = 6;
/// Further servers of the MCP storm. One tenant calls them, one call at a time, and others only
/// subscribe: a log line there may be about either.
pub const QUIET_SERVERS: usize = 2;
/// Answers over this fail their call; small, so that some can be.
pub const MAX_RESPONSE: usize = 64 * 1024;

/// One call, as it will be made.
#[derive(Debug)]
pub struct Plan {
    /// Tells it from all others.
    pub mark: String,
    /// How its client numbers it; other clients have the same numbers.
    pub client_id: u64,
    /// The server to call, if it is up.
    pub server: usize,
    /// How long its caller has.
    pub timeout: Duration,
    /// When its caller goes away.
    pub cancel: Cancel,
}

/// When a caller goes away.
#[derive(Clone, Copy, Debug)]
pub enum Cancel {
    Never,
    /// So early that the call may not have been written: after this many turns of the scheduler.
    Turns(u32),
    /// While the server is at it.
    After(Duration),
}

impl Plan {
    /// The plan for the `client_id`th call of one worker. Drawn from these alone: what became of
    /// earlier calls makes no difference.
    pub fn draw(round_seed: u64, tenant: usize, worker: usize, client_id: u64) -> Self {
        let mut rng = rng((round_seed, tenant, worker, client_id));
        let timeout_us = match rng.random_range(0..100) {
            0..4 => rng.random_range(0..1_000),
            4..10 => rng.random_range(1_000..10_000),
            _ => rng.random_range(250_000..450_000),
        };
        let cancel = match rng.random_range(0..100) {
            0..80 => Cancel::Never,
            80..88 => Cancel::Turns(rng.random_range(0..6)),
            _ => Cancel::After(Duration::from_millis(rng.random_range(0..12))),
        };
        Self {
            mark: format!("t{tenant}-id{client_id}-w{worker}-{:x}", round_seed & 0xffff),
            client_id,
            server: rng.random_range(0..SERVERS),
            timeout: Duration::from_micros(timeout_us),
            cancel,
        }
    }
}

/// The resource that is named for a tenant.
pub fn resource_of(tenant: usize) -> String {
    format!("storm:///t{tenant}")
}

/// Returns the tenant that a mark or the URI of a resource names.
pub fn tenant_in(text: &str) -> Option<&str> {
    let text = text.strip_prefix("storm:///").unwrap_or(text);
    text.split('-').next().filter(|name| name.starts_with('t'))
}

/// A generator for one purpose.
pub fn rng(purpose: impl Hash) -> SmallRng {
    SmallRng::seed_from_u64(hash(purpose))
}

/// A number that stands for all of `parts`.
pub fn hash(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}
