//! How the gateway decided about a call, step by step, and what would have let it through.

use std::fmt;
use std::time::Duration;

use super::Ahead;

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
    /// Calls that the limit refused before this one, and that might still run.
    pub refused_before: u32,
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
    /// For the calls before it, too, that the limit refused and that might still run.
    pub more_for_all: u32,
}

impl Explanation {
    /// Returns the memory that it takes beside itself.
    pub(super) fn heap(&self) -> usize {
        let limits: usize =
            self.limits.iter().map(|it| size_of::<LimitState>() + it.scope.capacity()).sum();
        let raises = |remedy: &Remedy| match remedy {
            Remedy::Raise(raises) => {
                raises.iter().map(|it| size_of::<Raise>() + it.scope.capacity()).sum()
            }
            Remedy::Instances { server, .. } => server.capacity(),
            Remedy::Retry { .. } => 0,
        };
        let remedies: usize = self.remedies.iter().map(|it| size_of::<Remedy>() + raises(it)).sum();
        limits + remedies + self.attempts.capacity() * size_of::<AttemptRecord>()
    }
}

impl LimitRule {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MaxInFlight => "max_in_flight",
            Self::Rate => "rate",
        }
    }

    /// Returns the setting that holds the most calls at once.
    pub fn setting(self) -> &'static str {
        match self {
            Self::MaxInFlight => "max_in_flight",
            Self::Rate => "burst",
        }
    }
}

impl LimitState {
    /// Returns how many more calls the limit would have to admit for one more; 0 if it admits one.
    pub fn missing(&self) -> u32 {
        (self.used + 1).saturating_sub(self.max)
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry { after } => write!(f, "retry in {} ms", after.as_millis() + 1),
            Self::Raise(raises) => {
                for (number, raise) in raises.iter().enumerate() {
                    f.write_str(if number > 0 { "; and " } else { "" })?;
                    raise.fmt(f)?;
                }
                Ok(())
            }
            Self::Instances { server, value, more } => {
                write!(f, "`instances` of `{server}` is {value}: {}", more_in_words(*more))
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
