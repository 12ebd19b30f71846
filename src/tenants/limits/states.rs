//! The states of a tenant's limits, to explain how they decided about a call.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::bucket::{Bucket, TENANT};
use super::in_flight::InFlightLimit;
use super::{Limits, PatternLimit};
use crate::events::explanation::{LimitRule, LimitState, Verdict};

/// Refused calls that each limit remembers.
const REFUSED_MAX: usize = 1024;

/// When the calls that a limit has refused would have ended at the latest.
#[derive(Debug, Default)]
pub(super) struct RefusedCalls(Mutex<VecDeque<Instant>>);

impl RefusedCalls {
    /// Notes a refused call; returns how many before it might still run.
    fn note(&self, until: Instant) -> u32 {
        let now = Instant::now();
        let mut ends = self.0.lock();
        ends.retain(|end| *end > now);
        let before = ends.len() as u32;
        if ends.len() == REFUSED_MAX {
            ends.pop_front();
        }
        ends.push_back(until);
        before
    }
}

/// The limit that has refused a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedBy {
    pub rule: LimitRule,
    /// The limit's pattern, or `tenant`.
    pub scope: String,
}

/// A limit that covers a call.
enum Covering<'a> {
    InFlight(&'a str, &'a InFlightLimit, u32),
    Rate(&'a Bucket),
}

impl Limits {
    /// Returns the limits that cover a call, in the order in which they are consulted, as they
    /// stand now. If one of them has refused the call, the call is noted there until its deadline.
    pub fn explain(
        &self,
        server: &str,
        tool: Option<&str>,
        refused_by: Option<&RefusedBy>,
        deadline: Instant,
    ) -> Vec<LimitState> {
        let replicas = self.shared.as_ref().map_or(1, |shared| shared.replicas());
        let mut verdict = Verdict::Passed;
        let states = self.covering(server, tool).into_iter().map(|limit| {
            let is_refusing = refused_by.is_some_and(|by| limit.is(by));
            if verdict == Verdict::Refused {
                verdict = Verdict::NotReached;
            } else if is_refusing {
                verdict = Verdict::Refused;
            }
            LimitState { verdict, ..limit.state(is_refusing, deadline, replicas) }
        });
        states.collect()
    }

    fn covering(&self, server: &str, tool: Option<&str>) -> Vec<Covering<'_>> {
        let covers = |scoped: &&PatternLimit| scoped.pattern.covers(server, tool);
        let scoped = || self.scoped.iter().filter(covers);
        let of_tenant = Covering::in_flight(TENANT, &self.in_flight).into_iter();
        let of_tenant = of_tenant.chain(self.rate.as_deref().map(Covering::Rate));
        let calls =
            scoped().filter_map(|scoped| Covering::in_flight(&scoped.scope, &scoped.in_flight));
        let rates = scoped().filter_map(|scoped| scoped.rate.as_deref().map(Covering::Rate));
        of_tenant.chain(calls).chain(rates).collect()
    }
}

impl<'a> Covering<'a> {
    fn in_flight(scope: &'a str, limit: &'a InFlightLimit) -> Option<Self> {
        Some(Self::InFlight(scope, limit, limit.max?))
    }

    fn is(&self, refused_by: &RefusedBy) -> bool {
        let (rule, scope) = match self {
            Self::InFlight(scope, ..) => (LimitRule::MaxInFlight, *scope),
            Self::Rate(bucket) => (LimitRule::Rate, &*bucket.scope),
        };
        rule == refused_by.rule && scope == refused_by.scope
    }

    fn state(&self, is_refusing: bool, deadline: Instant, replicas: u32) -> LimitState {
        match *self {
            Self::InFlight(scope, limit, max) => {
                let refused_before = if is_refusing { limit.refused.note(deadline) } else { 0 };
                // A call that has ended since was there when the limit refused.
                let used = limit.now().max(if is_refusing { max } else { 0 });
                LimitState {
                    rule: LimitRule::MaxInFlight,
                    scope: scope.to_owned(),
                    used,
                    max,
                    missing: (used + 1).saturating_sub(max),
                    refused_before,
                    frees_in: None,
                    verdict: Verdict::Passed,
                }
            }
            Self::Rate(bucket) => {
                let (remaining, quota) = (bucket.remaining(replicas), bucket.quota);
                let frees_in = (remaining.calls == 0).then_some(remaining.reset);
                let intervals = |wait: Duration| {
                    let intervals = wait.as_nanos().div_ceil(quota.interval.as_nanos().max(1));
                    u32::try_from(intervals).unwrap_or(u32::MAX)
                };
                LimitState {
                    rule: LimitRule::Rate,
                    scope: bucket.scope.clone(),
                    used: quota.burst.get().saturating_sub(remaining.calls),
                    max: quota.burst.get(),
                    missing: frees_in.map_or(0, |wait| intervals(wait).max(1)),
                    refused_before: 0,
                    frees_in,
                    verdict: Verdict::Passed,
                }
            }
        }
    }
}
