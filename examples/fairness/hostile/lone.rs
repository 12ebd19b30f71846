//! The price of the reserve: a lone tenant on a shared server, next to the same server for itself.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::gateway::Gateway;
use super::neighbour::Neighbour;
use super::servers::bundled;
use crate::rows::verdict;
use crate::target::Tenant;

pub const NAME: &str = "slots-lone";

/// Calls of a tenant for which the 64 slots of a server are too few, and enough.
const BOUND_BY_SLOTS: usize = 96;
const NOT_BOUND: usize = 40;
/// A quarter of the slots is kept for others.
const BOUND_MIN: f64 = 0.75;
const NOT_BOUND_MIN: f64 = 1.0;
/// The part by which two runs of the same differ.
const NOISE: f64 = 0.02;

/// Measures and prints both ratios. Tells whether they are large enough.
pub async fn measure(time: Duration, rounds: u32) -> Result<bool> {
    let mut good = true;
    for (callers, min) in [(BOUND_BY_SLOTS, BOUND_MIN), (NOT_BOUND, NOT_BOUND_MIN)] {
        let (mut shared, mut own) = (0, 0);
        // In turns: whatever else the machine does, it does to both.
        for _ in 0..rounds {
            let neighbour = Neighbour { callers, request, answer: "slept 200 ms" };
            shared += throughput(|_| settings("shared"), neighbour, time).await?;
            own += throughput(|_| settings("tenant"), neighbour, time).await?;
        }
        let ratio = shared as f64 / own as f64;
        let is_kept = ratio >= min * (1.0 - NOISE);
        println!(
            "{NAME:16} a lone tenant's {callers} callers of 64 slots: {ratio:.3} of the throughput \
             without a reserve, aim {min}  {}",
            verdict(is_kept)
        );
        good &= is_kept;
    }
    Ok(good)
}

/// Returns how many calls are answered.
pub async fn throughput(
    settings: impl Fn(&Path) -> Result<String>,
    neighbour: Neighbour,
    time: Duration,
) -> Result<usize> {
    let gateway = Gateway::start(settings).await?;
    let outcome = neighbour.call(gateway.tenant("neighbour"), time).await;
    gateway.stop().await;
    Ok(outcome.latencies.len())
}

fn request(tenant: &Tenant) -> Vec<u8> {
    tenant.call("std", "sleep", "", r#"{"ms":200}"#)
}

fn settings(sharing: &str) -> Result<String> {
    Ok(bundled(&format!("sharing = \"{sharing}\"")))
}
