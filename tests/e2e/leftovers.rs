//! Checks what is left at the end: processes, memory, descriptors, and any wrong answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use crate::docker::{docker, eventually};
use crate::processes::{FIRST, Usage, gateway, processes, usage};
use crate::report::Case;
use crate::stack::{Gateway, Stack};
use crate::work;

/// Brings the stack into one state before each look, so that looks can be compared.
const CALLERS: usize = 24;
const LOAD: Duration = Duration::from_secs(3);
const IDLE_WITHIN: Duration = Duration::from_secs(20);
/// One that is left behind lasts for a second.
const ORPHAN_WITHIN: Duration = Duration::from_secs(5);
/// By how much memory and descriptors differ from look to look though nothing is leaked, several
/// times over.
const GROWTH_MAX_KIB: u64 = 12 << 10;
const GROWTH_MAX_DESCRIPTORS: u64 = 10;
const SERVICES: [&str; 6] =
    ["gateway-1", "gateway-2", "haproxy", "postgres", "valkey", "everything"];

/// How a gateway is at rest.
pub struct Look {
    started: String,
    processes: usize,
    usage: Usage,
}

/// Looks at both after some load.
pub async fn look(stack: &Stack) -> Result<[Look; 2]> {
    let load = work::start(stack, CALLERS, work::mixed).await?;
    sleep(LOAD).await;
    load.end().await?;
    let [one, other] = &stack.gateways;
    Ok([look_at(one).await?, look_at(other).await?])
}

async fn look_at(gateway: &Gateway) -> Result<Look> {
    let container = &gateway.container;
    let idle = async || (gateway.in_flight().await.ok()? == 0).then_some(());
    eventually("nobody calls", IDLE_WITHIN, idle).await?;
    let started = docker(["inspect", "-f", "{{.State.StartedAt}}", container]).await?;
    let processes = processes(container).await?;
    let own = self::gateway(&processes).context("no gateway in its container")?;
    Ok(Look { started, processes: processes.len(), usage: usage(container, own.pid).await? })
}

pub async fn run(stack: &Stack, case: &mut Case, before: &[Look; 2]) -> Result<()> {
    let after = look(stack).await?;
    for gateway in &stack.gateways {
        takes_in(case, gateway).await?;
    }
    for ((gateway, before), after) in stack.gateways.iter().zip(before).zip(&after) {
        compare(case, gateway.service, before, after);
    }
    let (mut zombies, mut orphans) = (0, 0);
    for service in SERVICES {
        let processes = processes(&stack.container(service)).await?;
        zombies += processes.iter().filter(|process| process.is_zombie()).count();
        if let Some(own) = gateway(&processes) {
            // Whatever the gateway has started belongs to a guard of its own.
            let is_orphan = |pid, parent| parent == 1 && pid != own.pid;
            orphans += processes.iter().filter(|it| is_orphan(it.pid, it.parent)).count();
        }
    }
    case.none("zombies in any container", zombies);
    case.none("orphans in the gateways", orphans);
    let mut alarms = 0.0;
    for gateway in &stack.gateways {
        alarms += gateway.metric("trunkline_identity_alarms_total", "").await?;
        alarms += gateway.metric("trunkline_unknown_answers_total", "").await?;
    }
    case.none("answers that the gateways took for somebody else's", alarms as usize);
    let calls = stack.tally.calls.load(Ordering::Relaxed);
    let wrong = stack.tally.wrong.load(Ordering::Relaxed);
    case.none(&format!("of all {calls} calls, wrong answers"), wrong as usize);
    Ok(())
}

/// A process that a server leaves behind is process 1's from then on, and goes when it has ended.
async fn takes_in(case: &mut Case, gateway: &Gateway) -> Result<()> {
    let container = &gateway.container;
    let leave = "sleep 1 </dev/null >/dev/null 2>&1 &";
    docker(["exec", container, "sh", "-c", leave]).await?;
    let left = async || {
        let all = processes(container).await.ok()?;
        Some(all.into_iter().filter(|it| it.parent == FIRST && it.name == "sleep").count())
    };
    let seen = left().await.context("no processes are seen")?;
    let gone = async || left().await.filter(|left| *left == 0);
    let is_gone = eventually("the process is gone", ORPHAN_WITHIN, gone).await.is_ok();
    let first = docker(["exec", container, "cat", "/proc/1/comm"]).await?;
    let is_good = seen == 1 && is_gone && first == "tini";
    let what = format!("{}: a process that was left behind", gateway.service);
    let fate = if is_gone { "gone" } else { "stays" };
    case.check(
        &what,
        format!("{seen} of `{first}`, then {fate}"),
        "1 of `tini`, then gone",
        is_good,
    );
    Ok(())
}

fn compare(case: &mut Case, service: &str, before: &Look, after: &Look) {
    if before.started != after.started {
        case.check(&format!("{service} was restarted"), "yes", "it must not be", false);
    }
    let same = before.processes == after.processes;
    let what = format!("{service}: processes");
    case.check(&what, after.processes, format!("{} before", before.processes), same);
    let (was, is) = (before.usage.memory_kib, after.usage.memory_kib);
    let what = format!("{service}: memory");
    let aim = format!("{:.1} before", was as f64 / 1024.0);
    let is_good = is <= was + GROWTH_MAX_KIB;
    case.check(&what, format!("{:.1} MiB", is as f64 / 1024.0), aim, is_good);
    let (was, is) = (before.usage.descriptors, after.usage.descriptors);
    let what = format!("{service}: descriptors");
    case.check(&what, is, format!("{was} before"), is <= was + GROWTH_MAX_DESCRIPTORS);
}
