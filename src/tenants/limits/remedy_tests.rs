//! Generated refusals: what is said to let a refused call through does, when it is applied and the
//! calls are made again.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use governor::clock::FakeRelativeClock;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, advance};

use super::*;
use crate::events::explanation::{LimitRule, Raise, Remedy, remedies_of_limits};

const REFUSALS: usize = 1000;
const SCOPES: [&str; 3] = ["search/query", "search/*", "search"];
const TOOLS: [&str; 2] = ["query", "index"];

#[derive(Clone, Copy, Debug)]
struct Made {
    at: Duration,
    takes: Duration,
    tool: &'static str,
}

/// A refused call, with what would have let it through.
struct Refused {
    /// Its place among the calls.
    number: usize,
    by: RefusedBy,
    remedies: Vec<Remedy>,
}

fn generated_limit(rng: &mut StdRng) -> Limit {
    let has_rate = rng.random_bool(0.5);
    let rate = format!("{}/s", rng.random_range(1..40));
    let has_max = !has_rate || rng.random_bool(0.5);
    Limit {
        rate: has_rate.then(|| rate.parse().unwrap()),
        burst: has_rate.then(|| rng.random_range(1..6)),
        max_in_flight: has_max.then(|| rng.random_range(1..6)),
    }
}

fn generated_policy(rng: &mut StdRng) -> Policy {
    let mut limits = BTreeMap::new();
    for scope in SCOPES {
        if rng.random_bool(0.5) {
            limits.insert(Pattern::parse(scope).unwrap(), generated_limit(rng));
        }
    }
    Policy { limit: generated_limit(rng), limits, ..Policy::unlimited() }
}

fn generated_calls(rng: &mut StdRng) -> Vec<Made> {
    let mut at = Duration::ZERO;
    let mut next = || {
        at += Duration::from_micros(rng.random_range(1..100_000));
        let takes = Duration::from_micros(rng.random_range(1..400_000));
        Made { at, takes, tool: TOOLS[rng.random_range(0..TOOLS.len())] }
    };
    (0..40).map(|_| next()).collect()
}

/// Makes the calls in their order; returns those that were refused.
async fn make(policy: &Policy, calls: &[Made]) -> Vec<Refused> {
    let clock = FakeRelativeClock::default();
    let tenant = TenantId::testing("acme");
    let limits = Limits::with_clock(&tenant, policy, None, Clock::Fake(clock.clone()));
    let (mut now, mut running, mut refused) = (Duration::ZERO, vec![], vec![]);
    for (number, call) in calls.iter().enumerate() {
        clock.advance(call.at - now);
        advance(call.at - now).await;
        now = call.at;
        running.retain(|(ends, _)| *ends > now);
        let tool = Some(call.tool);
        let admit = async {
            let mut admission = limits.admit(Cost::Call).await?;
            limits.admit_to(&mut admission, "search", tool).await?;
            Ok(admission)
        };
        match admit.now_or_never().expect("nothing in memory is waited for") {
            Ok(admission) => running.push((now + call.takes, admission)),
            Err(refusal) => {
                let by = match refusal {
                    LimitRefusal::Busy { scope, .. } => {
                        RefusedBy { rule: LimitRule::MaxInFlight, scope }
                    }
                    LimitRefusal::RateLimited { scope, .. } => {
                        RefusedBy { rule: LimitRule::Rate, scope }
                    }
                };
                let deadline = Instant::now() + Duration::from_secs(1);
                let states = limits.explain("search", tool, Some(&by), deadline);
                let remedies = remedies_of_limits(&states);
                refused.push(Refused { number, by, remedies });
            }
        }
    }
    refused
}

fn raised(policy: &Policy, raises: &[Raise], more: impl Fn(&Raise) -> u32) -> Policy {
    let mut policy = policy.clone();
    for raise in raises {
        let limit = match raise.scope.as_str() {
            TENANT => &mut policy.limit,
            scope => policy.limits.get_mut(&Pattern::parse(scope).unwrap()).unwrap(),
        };
        let setting = match raise.setting {
            "max_in_flight" => &mut limit.max_in_flight,
            _ => &mut limit.burst,
        };
        assert_eq!(*setting, Some(raise.value));
        *setting = Some(raise.value + more(raise));
    }
    policy
}

/// The calls before a refused one that were admitted, and that one, so much later.
fn all_else_equal(
    calls: &[Made],
    refused: &[Refused],
    number: usize,
    later: Duration,
) -> Vec<Made> {
    let was_refused = |at: usize| refused.iter().any(|refused| refused.number == at);
    let mut again: Vec<_> =
        (0..number).filter(|at| !was_refused(*at)).map(|at| calls[at]).collect();
    again.push(Made { at: calls[number].at + later, ..calls[number] });
    again
}

async fn passes_now(policy: &Policy, calls: &[Made]) -> bool {
    let last = calls.len() - 1;
    make(policy, calls).await.iter().all(|refused| refused.number != last)
}

#[tokio::test(start_paused = true)]
async fn what_would_have_let_a_refused_call_through_does() {
    let mut rng = StdRng::seed_from_u64(19);
    let (mut tried, mut by_retry, mut by_raise, mut for_all) = (0, 0, 0, 0);
    while tried < REFUSALS {
        let (policy, calls) = (generated_policy(&mut rng), generated_calls(&mut rng));
        let refused = make(&policy, &calls).await;
        for call in &refused {
            tried += 1;
            assert!(!call.remedies.is_empty(), "{policy:?}, {calls:?}");
            // Refused calls stay charged to the tenant's rate, and are not made again.
            let is_first = call.number == refused[0].number;
            for remedy in &call.remedies {
                let again = |later| all_else_equal(&calls, &refused, call.number, later);
                let context = || format!("{remedy:?}: {policy:?}, {:?}", again(Duration::ZERO));
                match remedy {
                    Remedy::Retry { after } => {
                        by_retry += 1;
                        let later = *after + Duration::from_micros(1);
                        assert!(passes_now(&policy, &again(later)).await, "{}", context());
                        // Not much earlier: the wait is no guess.
                        let early = after.mul_f64(0.9);
                        let is_early = passes_now(&policy, &again(early)).await;
                        assert!(!(is_first && is_early), "{}", context());
                    }
                    Remedy::Raise(raises) => {
                        by_raise += 1;
                        let higher = raised(&policy, raises, |raise| raise.more);
                        assert!(passes_now(&higher, &again(Duration::ZERO)).await, "{}", context());
                        let less = raised(&policy, raises, |raise| raise.more - 1);
                        let is_enough = passes_now(&less, &again(Duration::ZERO)).await;
                        assert!(!(is_first && is_enough), "less is enough: {}", context());
                    }
                    Remedy::Instances { .. } => panic!("no server is asked: {}", context()),
                }
            }
            // With every call before it, too, where one limit of calls in flight refused them all.
            let others = refused.iter().take_while(|other| other.number < call.number);
            if call.by.rule == LimitRule::MaxInFlight
                && others.into_iter().all(|other| other.by == call.by)
                && let [Remedy::Raise(raises)] = &call.remedies[..]
                && let [raise] = &raises[..]
                && policy.limits.is_empty()
                && policy.limit.rate.is_none()
            {
                for_all += 1;
                let higher = raised(&policy, raises, |raise| raise.more_for_all);
                let made = &calls[..=call.number];
                assert!(passes_now(&higher, made).await, "{raise:?}: {policy:?}, {made:?}");
            }
        }
    }
    assert!(by_retry > 50 && by_raise > 500 && for_all > 10, "{by_retry} {by_raise} {for_all}");
}
