//! What a tenant may do: which servers and tools it may use, and how much. Plain data, checked when it is read; the
//! configuration file, the store, the command line and the admin API all speak of it in these words.

mod grants;
mod rate;
mod text;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::grants::{Grants, InvalidPattern, Pattern};
pub use self::rate::{InvalidRate, Rate};

/// What tenants that say nothing else may have in flight.
pub const IN_FLIGHT_DEFAULT: u32 = 256;
/// The most that can be asked for.
pub const IN_FLIGHT_MAX: u32 = 100_000;
/// The largest burst.
pub const BURST_MAX: u32 = 1_000_000;
/// The largest weight.
pub const WEIGHT_MAX: u32 = 100;
/// Limits of one tenant for single servers or tools. Each call is compared with all of them.
pub const SCOPED_MAX: usize = 32;
/// Patterns that one tenant may be granted.
pub const GRANTS_MAX: usize = 256;

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "text::PolicyText")]
pub struct Policy {
    /// For all its calls together.
    #[serde(flatten)]
    pub limit: Limit,
    /// Its part of a server, where there is not enough for all.
    pub weight: u32,
    /// What it may use.
    pub servers: Grants,
    /// For its calls to single servers or tools, beyond `limit`: one for all calls that a pattern covers.
    pub limits: BTreeMap<Pattern, Limit>,
}

/// How much. What is not there is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// How many calls may begin in a time.
    pub rate: Option<Rate>,
    /// How many of them may begin at once; as many as the rate names, if it does not say.
    pub burst: Option<u32>,
    /// How many calls may be in flight.
    pub max_in_flight: Option<u32>,
}

/// What is wrong with a policy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidPolicy {
    /// A number is out of its range.
    #[error("`{name}` must be from 1 to {max}, and it is {value}")]
    OutOfRange {
        /// Which.
        name: &'static str,
        /// The largest.
        max: u32,
        /// What it is.
        value: u32,
    },
    /// A burst of nothing.
    #[error("`burst` says how much of a `rate` may come at once, and there is no `rate`")]
    BurstWithoutRate,
    /// A further limit has something wrong.
    #[error("the limit for `{0}`: {1}")]
    Scoped(Pattern, Box<InvalidPolicy>),
    /// Nothing is limited.
    #[error("the limit for `{0}` limits nothing: give it a `rate` or `max_in_flight`")]
    NoLimit(Pattern),
    /// Too many of something.
    #[error("`{name}` may have at most {max} entries, and it has {len}")]
    TooMany {
        /// Which.
        name: &'static str,
        /// How many there may be.
        max: usize,
        /// How many there are.
        len: usize,
    },
}

impl Policy {
    /// What nobody has limited: the anonymous tenant, unless the operator says otherwise.
    pub fn unlimited() -> Self {
        let servers = Grants::everything();
        Self { limit: Limit::default(), weight: 1, servers, limits: BTreeMap::new() }
    }

    /// What a tenant has of which nothing is said.
    pub fn new() -> Self {
        let limit = Limit { max_in_flight: Some(IN_FLIGHT_DEFAULT), ..Limit::default() };
        Self { limit, weight: 1, servers: Grants::default(), limits: BTreeMap::new() }
    }

    /// Checks what types do not.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        in_range("weight", Some(self.weight), WEIGHT_MAX)?;
        self.limit.check()?;
        not_too_many("servers", self.servers.patterns().len(), GRANTS_MAX)?;
        not_too_many("limits", self.limits.len(), SCOPED_MAX)?;
        for (pattern, limit) in &self.limits {
            limit.check().map_err(|error| InvalidPolicy::Scoped(pattern.clone(), error.into()))?;
            if limit.rate.is_none() && limit.max_in_flight.is_none() {
                return Err(InvalidPolicy::NoLimit(pattern.clone()));
            }
        }
        Ok(())
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::new()
    }
}

impl Limit {
    fn check(&self) -> Result<(), InvalidPolicy> {
        in_range("burst", self.burst, BURST_MAX)?;
        in_range("max_in_flight", self.max_in_flight, IN_FLIGHT_MAX)?;
        match (self.rate, self.burst) {
            (None, Some(_)) => Err(InvalidPolicy::BurstWithoutRate),
            _ => Ok(()),
        }
    }
}

fn in_range(name: &'static str, value: Option<u32>, max: u32) -> Result<(), InvalidPolicy> {
    match value {
        Some(value) if value == 0 || value > max => {
            Err(InvalidPolicy::OutOfRange { name, max, value })
        }
        _ => Ok(()),
    }
}

fn not_too_many(name: &'static str, len: usize, max: usize) -> Result<(), InvalidPolicy> {
    if len > max { Err(InvalidPolicy::TooMany { name, max, len }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_says_what_is_wrong_with_it() {
        let with = |change: fn(&mut Policy)| {
            let mut policy = Policy::new();
            change(&mut policy);
            policy.check().map_err(|error| error.to_string())
        };
        assert_eq!(with(|_| ()), Ok(()));
        let error = with(|policy| policy.weight = 101).unwrap_err();
        assert_eq!(error, "`weight` must be from 1 to 100, and it is 101");
        assert!(with(|policy| policy.weight = 0).is_err());
        assert!(with(|policy| policy.limit.max_in_flight = Some(0)).is_err());
        assert!(with(|policy| policy.limit.burst = Some(5)).unwrap_err().contains("no `rate`"));
        let error = with(|policy| {
            policy.limits.insert(Pattern::parse("std/echo").unwrap(), Limit::default());
        });
        assert!(error.unwrap_err().contains("`std/echo` limits nothing"));
        let error = with(|policy| {
            let burst = Limit { burst: Some(5), ..Limit::default() };
            policy.limits.insert(Pattern::parse("std/echo").unwrap(), burst);
        });
        let error = error.unwrap_err();
        assert!(error.starts_with("the limit for `std/echo`: `burst` says"), "{error}");
    }
}
