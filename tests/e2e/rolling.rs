//! Every replica is restarted, one after the other, while calls of all kinds go on.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use crate::calls::Call;
use crate::cuts::is_right;
use crate::docker::docker;
use crate::report::{Case, seconds};
use crate::stack::{Gateway, Stack};
use crate::work::{self, Parked, count};

const CALLERS: usize = 18;
/// Calls between one thing that is done and the next.
const CALLS: u64 = 200;
/// Calls that are made before each stop, and last until after the replica has stopped listening
/// (`drain_delay`).
const PARKED: usize = 12;
const PARKED_MS: u64 = 6500;
/// How often to look how many there are.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The outcome of all restarts.
#[derive(Default)]
struct Restarts {
    count: usize,
    /// Of these, as `docs/operate/upgrade-and-backup.md` says.
    recreated: usize,
    /// Long calls that replicas had when they stopped listening, and the fewest that one had.
    parked: usize,
    parked_min: Option<usize>,
    /// Long calls in all, and how many were answered.
    long: usize,
    right: usize,
    unclean: usize,
    longest: Duration,
}

pub async fn run(stack: &Stack, case: &mut Case, rounds: u32) -> Result<()> {
    let load = work::start(stack, CALLERS, work::mixed).await?;
    load.more(CALLS).await?;
    let mut restarts = Restarts::default();
    for _ in 0..rounds {
        for (n, gateway) in stack.gateways.iter().enumerate() {
            restart(stack, gateway, n == 0, &mut restarts).await?;
            stack.serves_again(gateway).await?;
            load.more(CALLS).await?;
        }
    }
    let seen = load.end().await?;
    let Restarts { count, recreated, parked, parked_min, long, right, unclean, longest } = restarts;
    case.note("restarts", format!("{count}, {recreated} of them by `up --force-recreate`"));
    case.note("calls meanwhile, REST and both eras of MCP", seen.calls);
    case.none("calls that failed", seen.failures.len());
    if !seen.failures.is_empty() {
        case.note("they were told", seen.kinds());
    }
    let fewest = parked_min.unwrap_or_default();
    let what = "long calls that replicas had when they stopped listening";
    case.check(what, format!("{parked}, {fewest} or more each"), "some each", fewest > 0);
    case.all("long calls, right", right, long);
    case.none("replicas that did not exit with 0", unclean);
    case.note("longest restart", seconds(longest));
    case.note("longest short call", seconds(seen.longest));
    Ok(())
}

/// Restarts one with long calls on it: its container is stopped and started, or made anew.
async fn restart(
    stack: &Stack,
    gateway: &Gateway,
    recreate: bool,
    restarts: &mut Restarts,
) -> Result<()> {
    let long = Parked::beside_others(stack, PARKED, |_| Call::sleep(PARKED_MS)).await?;
    let container = &gateway.container;
    let began = Instant::now();
    let again = async {
        if recreate {
            return stack.recreate(gateway).await;
        }
        docker(["stop", container]).await?;
        docker(["start", container]).await?;
        gateway.is_ready().await
    };
    let (again, code, parked) =
        tokio::join!(again, docker(["wait", container]), last_in_flight(gateway));
    again?;
    let outcomes = long.end().await;
    restarts.count += 1;
    restarts.recreated += usize::from(recreate);
    restarts.parked += parked;
    restarts.parked_min = Some(restarts.parked_min.map_or(parked, |fewest| fewest.min(parked)));
    restarts.long += outcomes.len();
    restarts.right += count(&outcomes, is_right);
    restarts.unclean += usize::from(code? != "0");
    restarts.longest = restarts.longest.max(began.elapsed());
    Ok(())
}

/// How many calls a replica has when it stops listening: the load balancer has looked away by then,
/// and what is left is what takes long.
async fn last_in_flight(gateway: &Gateway) -> usize {
    let mut last = 0;
    while let Ok(calls) = gateway.in_flight().await {
        last = calls;
        sleep(LOOK_EVERY).await;
    }
    last
}
