//! Measures the queue and the accounting of a call on their own. Every call pays for both, so no
//! gateway without them can be measured.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::time::Instant;
use trunkline::backend::queue::{Queue, QueueOptions};
use trunkline::common::ids::{ServerId, TenantGeneration, TenantName};
use trunkline::common::usage::{Counts, Meter};

use crate::usage;

/// Calls of each thread.
const CALLS: u32 = 500_000;
/// As the gateway's bundled server has.
const SLOTS: usize = 64;
const ESTIMATE: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(600);

/// The processor time of both for one call, in microseconds. All processors do nothing else at the
/// same time, for one tenant: more than a gateway's calls, which have other things to do, are ever
/// in each other's way.
pub fn queue_and_usage_us() -> Result<f64> {
    let threads = std::thread::available_parallelism()?.get();
    let (queue, meter) = (Queue::new(SLOTS, QueueOptions::default()), Arc::new(Meter::default()));
    let used = || usage::cpu_time(std::process::id()).context("no processor time can be read");
    let before = used()?;
    let running: Vec<_> = (0..threads)
        .map(|_| {
            let (queue, meter) = (queue.clone(), meter.clone());
            std::thread::spawn(move || calls(&queue, &meter))
        })
        .collect();
    for thread in running {
        thread.join().map_err(|_| anyhow!("a thread broke down"))??;
    }
    Ok((used()? - before).as_secs_f64() * 1e6 / f64::from(CALLS) / threads as f64)
}

fn calls(queue: &Arc<Queue>, meter: &Meter) -> Result<()> {
    let (tenant, server) =
        (TenantName::parse("load")?.of(TenantGeneration::BUILT_IN), ServerId::parse("std")?);
    let once = Counts { calls: 1, bytes_in: 100, bytes_out: 100, ..Counts::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let deadline = Instant::now() + TIMEOUT;
        for _ in 0..CALLS {
            let slot = queue.enqueue(&tenant, 1, 100).acquire(ESTIMATE, deadline).await;
            drop(black_box(slot.map_err(|_| anyhow!("no slot is free"))?));
            meter.add(&server, black_box("echo"), once);
        }
        Ok(())
    })
}
