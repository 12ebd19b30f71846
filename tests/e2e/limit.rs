//! A tenant's rate over both replicas.

use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::caller::Caller;
use crate::calls::{Call, Outcome, Server};
use crate::report::Case;
use crate::stack::{Stack, Tenant};

/// The rate, and how many calls may come at once, which are gone before anything is counted.
const RATE: u32 = 200;
const BURST: u32 = 50;
/// How many times the rate is asked for.
const TIMES: u32 = 3;
const CALLERS: u32 = 24;
/// From the first call on nothing is counted for so long: what was saved is used up by then.
const SETTLED_AFTER: Duration = Duration::from_secs(1);
/// How far from the rate it may be.
const TOLERANCE: f64 = 0.01;
/// How often it is measured at most.
const ATTEMPTS: usize = 5;
const FALLBACKS: &str = "trunkline_shared_limits_fallbacks_total";
/// Each replica must have some of it.
const PART_MIN: f64 = 0.2;

/// The outcome of calls that were offered for a while.
pub struct Offered {
    /// Calls that were made while it was counted, per second.
    pub offered: f64,
    /// The admitted part of the rate.
    pub part: f64,
    /// By each replica.
    by_each: [f64; 2],
    /// Calls for which a replica went by its own part of the rate.
    pub without_valkey: f64,
    /// Neither let through nor refused because of the rate.
    pub failures: Vec<Outcome>,
}

impl Offered {
    pub fn part(&self) -> String {
        format!("{:.2} %", 100.0 * self.part)
    }

    pub fn by_each(&self) -> String {
        let [one, other] = self.by_each;
        format!("{one:.0} and {other:.0}")
    }
}

pub async fn run(stack: &Stack, case: &mut Case, time: Duration) -> Result<()> {
    let tenant = metered(stack, "metered").await?;
    let offered = offer_undisturbed(stack, &tenant, time).await?;
    let (seen, aim) = (format!("{:.0}/s", offered.offered), format!("over {}/s", 2 * RATE));
    case.check("offered", seen, aim, offered.offered > f64::from(2 * RATE));
    let what = format!("let through, of {RATE}/s in {} s", time.as_secs());
    let is_good = (offered.part - 1.0).abs() <= TOLERANCE;
    case.check(&what, offered.part(), "99 to 101 %", is_good);
    let [one, other] = offered.by_each;
    let least = one.min(other) / (one + other);
    case.check("by each replica", offered.by_each(), "a fifth at least", least >= PART_MIN);
    case.note("went without Valkey", offered.without_valkey);
    case.none("failed otherwise", offered.failures.len());
    Ok(())
}

/// If Valkey does not answer in 50 ms each replica goes by its own part of the rate, which is
/// not what is measured here. On a machine that is busy with other things that happens; then it is
/// measured again.
pub async fn offer_undisturbed(stack: &Stack, tenant: &Tenant, time: Duration) -> Result<Offered> {
    for _ in 1..ATTEMPTS {
        let offered = offer(stack, tenant, time).await?;
        if offered.without_valkey == 0.0 {
            return Ok(offered);
        }
    }
    offer(stack, tenant, time).await
}

/// A tenant with the rate.
pub async fn metered(stack: &Stack, name: &'static str) -> Result<Tenant> {
    let (rate, burst) = (format!("{RATE}/s"), BURST.to_string());
    stack.add_tenant(name, &["--servers", "std", "--rate", &rate, "--burst", &burst]).await
}

/// A metric of each replica.
async fn of_each(stack: &Stack, name: &str, label: &str) -> Result<[f64; 2]> {
    let [one, other] = &stack.gateways;
    Ok([one.metric(name, label).await?, other.metric(name, label).await?])
}

/// Offers several times the rate through the load balancer, and counts once it has settled.
pub async fn offer(stack: &Stack, tenant: &Tenant, time: Duration) -> Result<Offered> {
    let callers = stack.callers(tenant, CALLERS as usize).await?;
    let counted = async || {
        let admitted = of_each(stack, "trunkline_calls_total", "outcome=\"ok\"").await?;
        anyhow::Ok((admitted, of_each(stack, FALLBACKS, "").await?))
    };
    let before = counted().await?;
    let began = Instant::now();
    let (from, until) = (began + SETTLED_AFTER, began + SETTLED_AFTER + time);
    let every = Duration::from_secs(1) * CALLERS / (RATE * TIMES);
    let mut tasks = JoinSet::new();
    for (n, caller) in (0..).zip(callers) {
        tasks.spawn(call_regularly(caller, began + every * n / CALLERS, every, until));
    }
    let mut outcomes: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    let after = counted().await?;
    let more = |after: [f64; 2], before: [f64; 2]| [after[0] - before[0], after[1] - before[1]];
    outcomes.retain(|(ended, _)| *ended > from && *ended <= until);
    let offered = outcomes.len() as f64 / time.as_secs_f64();
    let admitted = outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::Right).count();
    let expected = f64::from(RATE) * time.as_secs_f64();
    let is_failure = |it: &Outcome| *it != Outcome::Right && !it.has_code("rate_limited");
    let failures = outcomes.into_iter().map(|(_, it)| it).filter(is_failure).collect();
    Ok(Offered {
        offered,
        part: admitted as f64 / expected,
        by_each: more(after.0, before.0),
        without_valkey: more(after.1, before.1).iter().sum(),
        failures,
    })
}

async fn call_regularly(
    caller: Caller,
    first: Instant,
    every: Duration,
    until: Instant,
) -> Vec<(Instant, Outcome)> {
    let mut due = interval_at(first, every);
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut outcomes = vec![];
    while due.tick().await < until {
        let outcome = caller.call(&Call::echo(Server::Std)).await;
        outcomes.push((Instant::now(), outcome));
    }
    outcomes
}
