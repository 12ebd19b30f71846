//! The work of callers, and calls that stay at a replica while something is done to it.

use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;

use crate::caller::Caller;
use crate::calls::{Call, Outcome, Server};
use crate::docker::eventually;
use crate::load::{Load, Work};
use crate::stack::{Gateway, Stack};

/// The time for all of them to be at a replica.
const PARKED_WITHIN: Duration = Duration::from_secs(10);

/// A bit of everything: short calls of both servers, and some that take up to a tenth of a second.
pub fn mixed(n: u64) -> Call {
    match n % 8 {
        0 => Call::sleep(5 + n % 97),
        1 | 5 => Call::echo(Server::Everything),
        _ => Call::echo(Server::Std),
    }
}

/// Calls `std` alone.
pub fn of_std(n: u64) -> Call {
    match n % 4 {
        0 => Call::sleep(5 + n % 97),
        _ => Call::echo(Server::Std),
    }
}

/// The quickest call.
pub fn quick(_: u64) -> Call {
    Call::echo(Server::Std)
}

/// Starts callers of all kinds, of both tenants.
pub async fn start(stack: &Stack, count: usize, work: Work) -> Result<Load> {
    let mut callers = stack.callers(&stack.amber, count.div_ceil(2)).await?;
    callers.extend(stack.callers(&stack.blue, count / 2).await?);
    Ok(Load::start(callers.into_iter().map(|caller| (caller, work)).collect()))
}

/// Calls per second through the load balancer, by callers over REST that do nothing else.
pub async fn throughput(stack: &Stack, time: Duration) -> Result<f64> {
    let caller = stack.caller(&stack.amber, &stack.balancer);
    let load = Load::start((0..32).map(|_| (caller.clone(), quick as Work)).collect());
    load.more(100).await?;
    let before = load.right();
    tokio::time::sleep(time).await;
    let calls = load.right() - before;
    load.end().await?;
    Ok(calls as f64 / time.as_secs_f64())
}

/// Makes a call so often at once; gives what became of each.
pub async fn at_once(caller: &Caller, count: usize, work: Work) -> Vec<Outcome> {
    let mut calls = JoinSet::new();
    for n in 0..count as u64 {
        let caller = caller.clone();
        calls.spawn(async move { caller.call(&work(n)).await });
    }
    calls.join_all().await
}

/// How many of them are such.
pub fn count(outcomes: &[Outcome], is_such: impl Fn(&Outcome) -> bool) -> usize {
    outcomes.iter().filter(|outcome| is_such(outcome)).count()
}

/// Calls that take a while, by callers of all kinds in turn, spread by the load balancer.
pub struct Parked(JoinSet<(usize, Outcome)>);

impl Parked {
    /// Makes them, while nobody else calls, and waits until all are at a replica. Gives how many
    /// are at the one that something will be done to.
    pub async fn start(
        stack: &Stack,
        victim: &Gateway,
        count: usize,
        work: Work,
    ) -> Result<(Self, usize)> {
        let idle = async || (in_flight(stack).await? == 0).then_some(());
        eventually("nobody calls", PARKED_WITHIN, idle).await?;
        let parked = Self::beside_others(stack, count, work).await?;
        let all = async || (in_flight(stack).await? == count).then_some(());
        eventually("all calls are at a replica", PARKED_WITHIN, all).await?;
        Ok((parked, victim.in_flight().await?))
    }

    /// Makes them while others call.
    pub async fn beside_others(stack: &Stack, count: usize, work: Work) -> Result<Self> {
        let mut calls = JoinSet::new();
        for (n, caller) in stack.callers(&stack.amber, count).await?.into_iter().enumerate() {
            calls.spawn(async move { (n, caller.call(&work(n as u64)).await) });
        }
        Ok(Self(calls))
    }

    /// Returns the outcome of each call, in order.
    pub async fn end(self) -> Vec<Outcome> {
        let mut outcomes = self.0.join_all().await;
        outcomes.sort_by_key(|(n, _)| *n);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

async fn in_flight(stack: &Stack) -> Option<usize> {
    let [one, other] = &stack.gateways;
    Some(one.in_flight().await.ok()? + other.in_flight().await.ok()?)
}
