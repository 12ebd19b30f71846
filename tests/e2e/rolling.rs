//! Every replica is restarted, one after the other, while calls of all kinds go on.

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use crate::docker::docker;
use crate::report::{Case, seconds};
use crate::stack::Stack;
use crate::work;

const CALLERS: usize = 18;
/// Calls between one thing that is done and the next.
const CALLS: u64 = 200;

pub async fn run(stack: &Stack, case: &mut Case, rounds: u32) -> Result<()> {
    let load = work::start(stack, CALLERS, work::mixed).await?;
    load.more(CALLS).await?;
    let (mut stopping, mut starting) = (Duration::ZERO, Duration::ZERO);
    let mut unclean = 0;
    for _ in 0..rounds {
        for gateway in &stack.gateways {
            let began = Instant::now();
            docker(["stop", &gateway.container]).await?;
            stopping = stopping.max(began.elapsed());
            let code = docker(["inspect", "-f", "{{.State.ExitCode}}", &gateway.container]).await?;
            unclean += usize::from(code != "0");
            load.more(CALLS).await?;
            let began = Instant::now();
            docker(["start", &gateway.container]).await?;
            gateway.is_ready().await?;
            starting = starting.max(began.elapsed());
            stack.serves_again(gateway).await?;
            load.more(CALLS).await?;
        }
    }
    let seen = load.end().await?;
    case.note("restarts", rounds as usize * stack.gateways.len());
    case.note("calls meanwhile, REST and both eras of MCP", seen.calls);
    case.none("calls that failed", seen.failures.len());
    if !seen.failures.is_empty() {
        case.note("they were told", seen.kinds());
    }
    case.none("replicas that did not exit with 0", unclean);
    case.note("longest stop", seconds(stopping));
    case.note("longest start", seconds(starting));
    case.note("longest call", seconds(seen.longest));
    Ok(())
}
