//! A replica hangs, and then a server over HTTP: everything is there, and nothing answers.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep_until};

use crate::calls::{Call, Server};
use crate::cuts::{is_right, is_typed};
use crate::docker::{docker, eventually, pause};
use crate::load::kinds;
use crate::report::{Case, seconds};
use crate::stack::Stack;
use crate::work::{self, Parked, at_once, count};

const CALLERS: usize = 18;
/// Calls that stand at a replica when it is stopped, their time and their deadline.
const PARKED: usize = 12;
const PARKED_MS: u64 = 3000;
const PARKED_WITHIN: Duration = Duration::from_secs(8);
/// The load balancer must have noticed by then: from then on no call is held up.
const NOTICED_WITHIN: Duration = Duration::from_secs(3);
/// For so long it hangs.
const PAUSED: Duration = Duration::from_secs(6);
/// What is no longer held up takes no longer than this.
const USUAL_MAX: Duration = Duration::from_secs(1);
/// The deadline of calls to the server that hangs, and how much later they may end.
const DEADLINE: Duration = Duration::from_secs(2);
const DEADLINE_NOISE: Duration = Duration::from_secs(1);
const CALLS: usize = 20;
const HEALED_WITHIN: Duration = Duration::from_secs(40);

pub async fn run(stack: &Stack, case: &mut Case) -> Result<()> {
    replica(stack, case).await?;
    backend(stack, case).await
}

async fn replica(stack: &Stack, case: &mut Case) -> Result<()> {
    let victim = &stack.gateways[1];
    let call = Call::sleep(PARKED_MS).within(PARKED_WITHIN);
    let parked = Parked::start(stack, victim, PARKED, call).await?;
    let at_victim = parked.at_victim;
    let load = work::start(stack, CALLERS, |n| work::of_std(n).within(PARKED_WITHIN)).await?;
    load.more(200).await?;
    pause(&victim.container).await?;
    let paused = Instant::now();
    sleep_until(paused + NOTICED_WITHIN).await;
    load.stop();
    let others = work::start(stack, CALLERS, work::of_std).await?;
    sleep_until(paused + PAUSED).await;
    let beside = others.end().await?;
    docker(["unpause", &victim.container]).await?;
    let (parked, held_up) = (parked.end().await, load.end().await?);

    case.note("long calls that it had when it was stopped", format!("{at_victim} of {PARKED}"));
    let ended = count(&parked, |it| is_right(it) || it.is_told());
    case.all("long calls that were answered, or failed and said why", ended, PARKED);
    let failed = count(&parked, |it| !is_right(it));
    let aim = format!("at most {at_victim}");
    case.check("of them failed", failed, aim, failed <= at_victim);
    case.note("they were told", kinds(parked.iter().filter(|it| !is_right(it))));
    let failed = held_up.failures.len();
    let aim = format!("at most {CALLERS}, one of each caller");
    case.check("short calls that failed before it was noticed", failed, aim, failed <= CALLERS);
    case.none("without saying why", held_up.count(|it| !it.outcome.is_told()));
    if failed > 0 {
        case.note("they were told", held_up.kinds());
    }
    let what = format!("of {} calls begun after {}, failed", beside.calls, seconds(NOTICED_WITHIN));
    case.none(&what, beside.failures.len());
    case.within("the longest of those", beside.longest, USUAL_MAX);
    case.note("goes on, it has calls after", seconds(stack.serves_again(victim).await?));
    Ok(())
}

async fn backend(stack: &Stack, case: &mut Case) -> Result<()> {
    let everything = stack.container("everything");
    let load = work::start(stack, CALLERS, work::of_std).await?;
    pause(&everything).await?;
    let caller = stack.caller(&stack.amber, &stack.balancer);
    let began = Instant::now();
    let lost = at_once(&caller, CALLS, |_| Call::echo(Server::Everything).within(DEADLINE)).await;
    let took = began.elapsed();
    docker(["unpause", &everything]).await?;
    let began = Instant::now();
    let echo = || Call::echo(Server::Everything).within(DEADLINE);
    let healed = async || is_right(&caller.call(&echo()).await).then_some(());
    eventually("`everything` answers", HEALED_WITHIN, healed).await?;
    let healed = began.elapsed();
    let seen = load.end().await?;
    case.all("`everything` hangs: its calls failed, with a code", count(&lost, is_typed), CALLS);
    case.within("the longest took", took, DEADLINE + DEADLINE_NOISE);
    case.note("with", kinds(lost.iter()));
    case.none(&format!("of {} calls of `std` beside it, failed", seen.calls), seen.failures.len());
    case.note("goes on, it answers after", seconds(healed));
    Ok(())
}
