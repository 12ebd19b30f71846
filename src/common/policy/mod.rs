//! A tenant's policy: the servers and tools that it may use, and its limits. Plain data, checked
//! when parsed. The configuration file, the store, the command line and the admin API share its
//! terms.

mod callback_host;
mod grants;
mod rate;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::suggest::did_you_mean;

pub use self::callback_host::{CallbackHost, InvalidCallbackHost};
pub use self::grants::{Grant, Grants, InvalidGrant, InvalidPattern, Pattern};
pub use self::rate::{InvalidRate, Rate};

pub const IN_FLIGHT_DEFAULT: u32 = 256;
pub const IN_FLIGHT_MAX: u32 = 100_000;
pub const BURST_MAX: u32 = 1_000_000;
pub const WEIGHT_MAX: u32 = 100;
/// Each call is compared with all of them.
pub const SCOPED_MAX: usize = 32;
pub const GRANTS_MAX: usize = 256;
pub const CALLBACK_HOSTS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "PolicyText")]
pub struct Policy {
    /// For all calls of the tenant together.
    #[serde(flatten)]
    pub limit: Limit,
    /// The tenant's share of a busy server, relative to others.
    pub weight: u32,
    pub servers: Grants,
    /// For the calls that a pattern covers, beside `limit`.
    pub limits: BTreeMap<Pattern, Limit>,
    /// Hosts that callbacks may go to.
    pub callback_hosts: Vec<CallbackHost>,
}

/// Missing limits do not apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Calls that may begin in a period.
    pub rate: Option<Rate>,
    /// Calls that may begin at once; by default as many as the rate's count.
    #[schemars(range(min = 1, max = BURST_MAX))]
    pub burst: Option<u32>,
    #[schemars(range(min = 1, max = IN_FLIGHT_MAX))]
    pub max_in_flight: Option<u32>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidPolicy {
    #[error("`{name}` must be from 1 to {max}, and it is {value}")]
    OutOfRange { name: &'static str, max: u32, value: u32 },
    #[error("`burst` says how much of a `rate` may come at once, and there is no `rate`")]
    BurstWithoutRate,
    #[error("the limit for `{0}`: {1}")]
    Scoped(Pattern, Box<InvalidPolicy>),
    #[error("the limit for `{0}` limits nothing: give it a `rate` or `max_in_flight`")]
    NoLimit(Pattern),
    #[error("`{name}` may have at most {max} entries, and it has {len}")]
    TooMany { name: &'static str, max: usize, len: usize },
}

impl Policy {
    /// The anonymous tenant's policy, unless it is configured.
    pub fn unlimited() -> Self {
        Self { limit: Limit::default(), servers: Grants::everything(), ..Self::new() }
    }

    /// The defaults of a configured tenant.
    pub fn new() -> Self {
        let limit = Limit { max_in_flight: Some(IN_FLIGHT_DEFAULT), ..Limit::default() };
        let servers = Grants::default();
        Self { limit, weight: 1, servers, limits: BTreeMap::new(), callback_hosts: vec![] }
    }

    /// Says which parts of the policy match none of these servers, and so have no effect.
    pub fn without_effect(&self, servers: &[&str]) -> Vec<String> {
        if self.servers.list().is_empty() {
            return vec!["it may use no server: grant some, or all with `*`, in `servers`".into()];
        }
        let of_grants = self.servers.patterns().map(|pattern| ("servers", pattern));
        let of_limits = self.limits.keys().map(|pattern| ("limits", pattern));
        let unmatched = of_grants
            .chain(of_limits)
            .filter(|(_, pattern)| !servers.iter().any(|server| pattern.covers_part_of(server)));
        let describe = |(key, pattern): (&str, &Pattern)| {
            let meant = did_you_mean(pattern.server(), servers.iter().copied());
            format!("`{key}` has `{pattern}`, which matches no server{meant}")
        };
        unmatched.map(describe).collect()
    }

    /// Checks what the types do not ensure.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        in_range("weight", Some(self.weight), WEIGHT_MAX)?;
        self.limit.check()?;
        not_too_many("servers", self.servers.list().len(), GRANTS_MAX)?;
        not_too_many("limits", self.limits.len(), SCOPED_MAX)?;
        not_too_many("callback_hosts", self.callback_hosts.len(), CALLBACK_HOSTS_MAX)?;
        for (pattern, limit) in &self.limits {
            limit.check().map_err(|error| InvalidPolicy::Scoped(pattern.clone(), error.into()))?;
            if limit.rate.is_none() && limit.max_in_flight.is_none() {
                return Err(InvalidPolicy::NoLimit(pattern.clone()));
            }
        }
        Ok(())
    }
}

/// A policy as written in JSON, or a change of one: missing fields have their defaults, and `null`
/// stands for no limit.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyText {
    rate: Option<Rate>,
    #[schemars(range(min = 1, max = BURST_MAX))]
    burst: Option<u32>,
    /// The default if missing.
    #[serde(default = "in_flight_default")]
    #[schemars(range(min = 1, max = IN_FLIGHT_MAX))]
    max_in_flight: Option<u32>,
    #[schemars(range(min = 1, max = WEIGHT_MAX))]
    weight: Option<u32>,
    #[schemars(length(max = GRANTS_MAX))]
    servers: Option<Grants>,
    #[schemars(extend("maxProperties" = SCOPED_MAX))]
    limits: Option<BTreeMap<Pattern, Option<Limit>>>,
    #[schemars(length(max = CALLBACK_HOSTS_MAX))]
    callback_hosts: Option<Vec<CallbackHost>>,
}

#[allow(clippy::unnecessary_wraps)]
fn in_flight_default() -> Option<u32> {
    Some(IN_FLIGHT_DEFAULT)
}

impl TryFrom<PolicyText> for Policy {
    type Error = InvalidPolicy;

    fn try_from(text: PolicyText) -> Result<Self, InvalidPolicy> {
        let defaults = Self::new();
        let limits = text.limits.into_iter().flatten();
        let policy = Self {
            limit: Limit { rate: text.rate, burst: text.burst, max_in_flight: text.max_in_flight },
            weight: text.weight.unwrap_or(defaults.weight),
            servers: text.servers.unwrap_or_default(),
            limits: limits.filter_map(|(pattern, limit)| Some((pattern, limit?))).collect(),
            callback_hosts: text.callback_hosts.unwrap_or_default(),
        };
        policy.check()?;
        Ok(policy)
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

    #[test]
    fn a_written_policy_can_be_read_again() {
        let text = r#"{"rate":"100/s","burst":5,"weight":2,"servers":["std","a/*"],
            "limits":{"a/b":{"rate":"1/s"}},"callback_hosts":["Hooks.example"]}"#;
        let policy: Policy = serde_json::from_str(text).unwrap();
        assert_eq!((policy.weight, policy.limit.max_in_flight), (2, Some(256)));
        let again: Policy = serde_json::from_value(serde_json::json!(policy)).unwrap();
        assert_eq!(again, policy);
        let without: Policy = serde_json::from_str(r#"{"limits":{"a/b":null}}"#).unwrap();
        assert_eq!(without, Policy::new());
        for policy in [Policy::new(), Policy::unlimited()] {
            let again: Policy = serde_json::from_value(serde_json::json!(policy)).unwrap();
            assert_eq!(again, policy);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            (r#"{"rat":"1/s"}"#, "unknown field `rat`"),
            (r#"{"rate":"fast"}"#, "`fast` is not a rate"),
            (r#"{"weight":0}"#, "`weight` must be from 1 to 100"),
            (r#"{"servers":["a b"]}"#, "`a b` is not a pattern"),
            (r#"{"limits":{"std":{"rat":"1/s"}}}"#, "unknown field `rat`"),
            (r#"{"callback_hosts":["https://a"]}"#, "`https://a` is not a host"),
        ] {
            let error = serde_json::from_str::<Policy>(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
