//! A replica is killed under load, and comes back.

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use crate::calls::{Call, Outcome, Told};
use crate::docker::docker;
use crate::load::kinds;
use crate::report::{Case, seconds};
use crate::stack::Stack;
use crate::work::{self, Parked, count};

const CALLERS: usize = 18;
/// Calls that stand at a replica when it is killed: long enough for all that comes before.
const PARKED: usize = 16;
const PARKED_MS: u64 = 6000;
/// The answers to a lost call: the load balancer's own, since it knows no more.
const TOLD: [Told; 1] = [("backend_exited", "unknown")];
/// Calls before and after.
const CALLS: u64 = 400;
const MEASURED: Duration = Duration::from_secs(3);

pub async fn run(stack: &Stack, case: &mut Case) -> Result<()> {
    let victim = &stack.gateways[1];
    let long = |_| Call::sleep(PARKED_MS);
    let (parked, at_victim) = Parked::start(stack, victim, PARKED, long).await?;
    let load = work::start(stack, CALLERS, work::mixed).await?;
    load.more(CALLS).await?;
    let before = Instant::now();
    docker(["kill", &victim.container]).await?;
    let dead = Instant::now();
    load.more(CALLS).await?;
    let parked = parked.end().await;
    let seen = load.end().await?;

    case.check("long calls that it had", at_victim, "some", at_victim > 0);
    let failed = count(&parked, |it| *it != Outcome::Right);
    case.all("of the long calls, failed: those that it had", failed, at_victim);
    let [(code, executed)] = TOLD;
    let told = format!("of these, told `{code}`, `executed: {executed}`");
    case.all(&told, count(&parked, |it| it.is_told(&TOLD)), at_victim);
    // One that dies takes connections for a moment still: who is quick comes there a second time.
    let known = format!("at most {}, two of each caller", 2 * CALLERS);
    let failed = seen.failures.len();
    case.check("short calls that failed", format!("{failed} of {}", seen.calls), known, {
        let again = |n| seen.count(|failure| failure.caller == n) > 2;
        !(0..CALLERS).any(again)
    });
    let outside = seen.count(|it| it.began > dead || it.ended < before);
    case.none("failed though they began when it was dead, or ended when it lived", outside);
    case.none("short ones that were not told so", seen.count(|it| !it.outcome.is_told(&TOLD)));
    case.note("the long ones were told", kinds(parked.iter().filter(|it| **it != Outcome::Right)));
    case.note("the short ones", seen.kinds());
    let one = work::throughput(stack, MEASURED).await?;

    let began = Instant::now();
    docker(["start", &victim.container]).await?;
    victim.is_ready().await?;
    case.note("from `docker start` to ready", seconds(began.elapsed()));
    stack.serves_again(victim).await?;
    case.note("from `docker start` to its first call", seconds(began.elapsed()));
    let two = work::throughput(stack, MEASURED).await?;
    case.note("calls per second with one replica, and with two", format!("{one:.0}, {two:.0}"));
    Ok(())
}
