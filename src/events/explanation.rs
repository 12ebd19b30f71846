//! How the gateway decided about a call, step by step, and what would have let it through.

use std::fmt;
use std::time::Duration;

use super::Ahead;
use crate::common::in_words::in_words;
use crate::protocol::mcp::requests::ProtocolVersion;
use crate::protocol::mcp::trace::SpanId;

#[derive(Debug, Default)]
pub struct Explanation {
    /// The tenant's limits that cover the call, in the order in which they are consulted.
    pub limits: Vec<LimitState>,
    /// The last wait for a slot, if there was none at once.
    pub wait: Option<QueueWait>,
    /// The attempts that were given to an instance.
    pub attempts: Vec<AttemptRecord>,
    /// The ways in which the call would have been let through. Each is enough.
    pub remedies: Vec<Remedy>,
}

/// One limit of a tenant, as it stood at the end of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitState {
    pub rule: LimitRule,
    /// The limit's pattern, or `tenant`.
    pub scope: String,
    /// Calls in flight, or calls that are charged and not earned back.
    pub used: u32,
    /// The most calls in flight; or the burst.
    pub max: u32,
    /// Until the next call is admitted, where that is known and the limit is reached.
    pub frees_in: Option<Duration>,
    /// How many more it would have to admit for one more call; 0 if it admits one.
    pub missing: u32,
    /// Calls that the limit refused before this one, and that might still run.
    pub refused_before: u32,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Refused,
    /// Another limit had refused the call before.
    NotReached,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitRule {
    MaxInFlight,
    Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueWait {
    /// From the call's arrival.
    pub after: Duration,
    pub took: Duration,
    pub ahead: Ahead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The number of the instance, from 0.
    pub instance: usize,
    pub choice: InstanceChoice,
    /// From the call's arrival.
    pub after: Duration,
    pub took: Duration,
    /// The error code, if it failed.
    pub code: Option<&'static str>,
    pub peer: AttemptPeer,
    /// Its span, if the call is traced.
    pub span: Option<SpanId>,
}

/// How the gateway spoke with an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptPeer {
    pub version: ProtocolVersion,
    /// Over HTTP, else over stdio.
    pub is_http: bool,
}

/// Why an instance was chosen: of those that are ready, the one with the fewest calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstanceChoice {
    pub ready: u32,
    /// Other calls in flight there.
    pub in_flight: u32,
}

/// A way in which the call would have been let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// To send the call again, that much later.
    Retry { after: Duration },
    /// To raise all of these.
    Raise(Vec<Raise>),
    /// To run more instances of the server.
    Instances { server: String, value: u32, more: u32 },
}

/// A limit of a tenant to be raised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raise {
    pub setting: &'static str,
    pub scope: String,
    pub value: u32,
    /// For this call alone.
    pub more: u32,
    /// For this call and those before it that the limit refused and that might still run.
    pub more_for_all: u32,
}

impl Explanation {
    /// Returns the memory that it takes beside itself.
    pub(super) fn heap(&self) -> usize {
        let scopes: usize = self.limits.iter().map(|it| it.scope.capacity()).sum();
        let remedies = self.remedies.iter().map(|remedy| match remedy {
            Remedy::Raise(raises) => {
                let scopes: usize = raises.iter().map(|it| it.scope.capacity()).sum();
                allocated(raises) + scopes
            }
            Remedy::Instances { server, .. } => server.capacity(),
            Remedy::Retry { .. } => 0,
        });
        let lists = allocated(&self.limits) + allocated(&self.remedies) + allocated(&self.attempts);
        lists + scopes + remedies.sum::<usize>()
    }
}

fn allocated<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}

impl LimitRule {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MaxInFlight => "max_in_flight",
            Self::Rate => "rate",
        }
    }

    /// Returns the setting that is to be raised.
    pub fn setting(self) -> &'static str {
        match self {
            Self::MaxInFlight => "max_in_flight",
            Self::Rate => "burst",
        }
    }
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Refused => "refused",
            Self::NotReached => "not_reached",
        }
    }
}

impl LimitState {
    /// Returns whether the limit would have refused the call, if it had been reached.
    fn is_in_the_way(&self) -> bool {
        self.verdict == Verdict::Refused || self.verdict == Verdict::NotReached && self.missing > 0
    }
}

/// Returns the ways past the limits that refused a call, or would have. All else being equal, each
/// is enough.
pub fn remedies_of_limits(limits: &[LimitState]) -> Vec<Remedy> {
    let in_the_way: Vec<_> = limits.iter().filter(|limit| limit.is_in_the_way()).collect();
    let mut remedies = vec![];
    // A rate alone can be waited for: nobody knows when a call in flight ends.
    let waits: Option<Vec<_>> = in_the_way.iter().map(|limit| limit.frees_in).collect();
    if let Some(after) = waits.and_then(|waits| waits.into_iter().max()) {
        remedies.push(Remedy::Retry { after });
    }
    let raises: Vec<_> = in_the_way.into_iter().map(Raise::of).collect();
    if !raises.is_empty() {
        remedies.push(Remedy::Raise(raises));
    }
    remedies
}

/// Returns how many more instances of so many slots would have left no call waiting: a quarter of
/// all slots may be kept for other tenants.
pub fn more_instances(ahead: Ahead, slots_of_each: u32) -> u32 {
    let calls = ahead.taken + ahead.own + ahead.others + 1;
    let slots = calls.saturating_mul(4).div_ceil(3);
    slots.saturating_sub(ahead.slots).div_ceil(slots_of_each.max(1)).max(1)
}

impl Raise {
    fn of(limit: &LimitState) -> Self {
        let more = limit.missing.max(1);
        Self {
            setting: limit.rule.setting(),
            scope: limit.scope.clone(),
            value: limit.max,
            more,
            more_for_all: more + limit.refused_before,
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry { after } => write!(f, "retry in {}", in_words(*after)),
            Self::Raise(raises) => {
                for (number, raise) in raises.iter().enumerate() {
                    f.write_str(if number > 0 { "; and " } else { "" })?;
                    raise.fmt(f)?;
                }
                Ok(())
            }
            Self::Instances { server, value, more } => {
                let more = more_in_words(*more);
                write!(f, "`instances` of server `{server}` is {value}: {more}")
            }
        }
    }
}

impl fmt::Display for Raise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, scope, value, more, more_for_all } = self;
        write!(f, "`{setting}` of `{scope}` is {value}: {}", more_in_words(*more))?;
        if more_for_all > more {
            let before = more_for_all - more;
            write!(f, ", or {more_for_all} more with the {before} refused before it")?;
        }
        Ok(())
    }
}

fn more_in_words(more: u32) -> String {
    const WORDS: [&str; 4] = ["no", "one", "two", "three"];
    match WORDS.get(more as usize) {
        Some(word) => format!("{word} more"),
        None => format!("{more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_was_lowered_needs_more_than_one_place() {
        let limit = LimitState {
            rule: LimitRule::MaxInFlight,
            scope: "search".to_owned(),
            used: 5,
            max: 3,
            frees_in: None,
            missing: 3,
            refused_before: 2,
            verdict: Verdict::Refused,
        };
        let [remedy] = &remedies_of_limits(&[limit])[..] else { panic!() };
        let text = "`max_in_flight` of `search` is 3: three more, or 5 more with the 2 refused \
                    before it";
        assert_eq!(remedy.to_string(), text);
    }

    #[test]
    fn further_instances_have_slots_for_all_that_wait_and_a_quarter_more() {
        let ahead = Ahead { own: 1, others: 2, held: 0, taken: 1, slots: 1 };
        assert_eq!((more_instances(ahead, 1), more_instances(ahead, 4)), (6, 2));
        assert_eq!(more_instances(Ahead { slots: 100, ..ahead }, 4), 1);
    }
}
