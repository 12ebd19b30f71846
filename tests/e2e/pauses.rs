//! A replica hangs, and then a server over HTTP: everything is there, and nothing answers.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep_until};

use crate::calls::{Call, Outcome, Server, Told};
use crate::cuts::{LOST, is_right};
use crate::docker::{docker, eventually, pause};
use crate::load::kinds;
use crate::report::{Case, seconds};
use crate::stack::Stack;
use crate::work::{self, Parked, at_once, count};

const CALLERS: usize = 18;
/// Calls that stand at a replica when it is stopped, and their time. Every other two of them have a
/// deadline that passes meanwhile, those between not.
const PARKED: usize = 16;
const PARKED_MS: u64 = 3500;
const HOPELESS_WITHIN: Duration = Duration::from_secs(4);
const PATIENT_WITHIN: Duration = Duration::from_secs(20);
/// The deadline of short ones.
const SHORT_WITHIN: Duration = Duration::from_secs(3);
/// The codes that such callers get: from the load balancer while the replica hangs, from the
/// replica afterwards.
const UNANSWERED: [Told; 1] = [("deadline_exceeded", "unknown")];
const LATE: [Told; 2] = [("deadline_exceeded", "unknown"), ("deadline_exceeded", "no")];
/// The load balancer must have noticed by then: from then on no call is held up.
const NOTICED_WITHIN: Duration = Duration::from_secs(3);
/// For so long it hangs: longer than such a deadline, and the five seconds that the load balancer
/// waits beyond it.
const PAUSED: Duration = Duration::from_millis(9500);
/// The longest time of a call that is no longer held up.
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
    let (parked, at_victim) = Parked::start(stack, victim, PARKED, long).await?;
    let load = work::start(stack, CALLERS, |n| work::of_std(n).within(SHORT_WITHIN)).await?;
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

    let at_victim = format!("{at_victim} of {PARKED}");
    case.note("long calls that it had when it was stopped", at_victim);
    let (hopeless, patient): (Vec<_>, Vec<_>) =
        (0..).zip(parked).partition(|(n, _)| is_hopeless(*n));
    let outcomes = |some: Vec<(u64, Outcome)>| some.into_iter().map(|(_, it)| it).collect();
    let (hopeless, patient): (Vec<_>, Vec<_>) = (outcomes(hopeless), outcomes(patient));
    let late = count(&hopeless, |it| it.is_told(&UNANSWERED));
    let what = "long calls whose deadline passed, told `deadline_exceeded`, `executed: unknown`";
    case.check(what, late, "some", late > 0);
    case.all("of the others of them, right", count(&hopeless, is_right), hopeless.len() - late);
    case.all(
        "long calls whose deadline did not pass, right",
        count(&patient, is_right),
        patient.len(),
    );
    case.note("the others were told", kinds(patient.iter().filter(|it| !is_right(it))));
    let failed = held_up.failures.len();
    let aim = format!("at most {CALLERS}, one of each caller");
    case.check("short calls that failed before it was noticed", failed, aim, failed <= CALLERS);
    case.none("not told so", held_up.count(|it| !it.outcome.is_told(&LATE)));
    if failed > 0 {
        case.note("they were told", held_up.kinds());
    }
    let what = format!("of {} calls begun after {}, failed", beside.calls, seconds(NOTICED_WITHIN));
    case.none(&what, beside.failures.len());
    case.within("the longest of those", beside.longest, USUAL_MAX);
    case.note("goes on, it has calls after", seconds(stack.serves_again(victim).await?));
    Ok(())
}

fn is_hopeless(n: u64) -> bool {
    (n / 2).is_multiple_of(2)
}

/// The n-th call that stands at a replica.
fn long(n: u64) -> Call {
    Call::sleep(PARKED_MS).within(if is_hopeless(n) { HOPELESS_WITHIN } else { PATIENT_WITHIN })
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
    let told = count(&lost, |it| it.is_told(&LOST));
    case.all("`everything` hangs: its calls failed, and were told so", told, CALLS);
    case.within("the longest took", took, DEADLINE + DEADLINE_NOISE);
    case.note("with", kinds(lost.iter()));
    case.none(&format!("of {} calls of `std` beside it, failed", seen.calls), seen.failures.len());
    case.note("goes on, it answers after", seconds(healed));
    Ok(())
}
