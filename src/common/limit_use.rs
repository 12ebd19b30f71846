//! A limit of one tenant and how much of it is used: as a refusal names it, and as `GET /v1/limits`
//! lists it.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LimitUse {
    pub name: &'static str,
    /// The pattern of servers and tools that the limit covers, or the server. Absent: everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The most that may be used; of a rate, the calls that may come at once. `None`: no limit.
    pub value: Option<u64>,
    pub used: u64,
    #[serde(flatten)]
    pub rate: Option<RateUse>,
}

/// The members that only a rate has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RateUse {
    /// As it is configured: `100/s`.
    pub rate: String,
    /// Until the next call may come, if none may now; else until all of the value may.
    #[serde(rename = "reset_ms", serialize_with = "whole_millis")]
    #[schemars(with = "u64")]
    pub reset: Duration,
}

impl LimitUse {
    pub fn new(name: &'static str, value: usize, used: usize) -> Self {
        let (value, used) = (Some(value as u64), used as u64);
        Self { name, scope: None, value, used, rate: None }
    }

    /// Returns a limit that is reached.
    pub fn reached(name: &'static str, value: usize) -> Self {
        Self::new(name, value, value)
    }

    pub fn of(self, scope: impl ToString) -> Self {
        Self { scope: Some(scope.to_string()), ..self }
    }
}

/// Rounds up: a caller that comes back too early is refused again.
pub fn millis_up(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

fn whole_millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(millis_up(*time))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_rate_has_the_members_of_rates() {
        let plain = LimitUse::new("in_flight", 5, 2).of("std");
        assert_eq!(
            json!(plain),
            json!({"name": "in_flight", "scope": "std", "value": 5, "used": 2})
        );
        let rate = RateUse { rate: "1/s".to_owned(), reset: Duration::from_micros(1001) };
        let rate = LimitUse { rate: Some(rate), ..LimitUse::reached("rate", 1) };
        assert_eq!(
            json!(rate),
            json!({"name": "rate", "value": 1, "used": 1, "rate": "1/s", "reset_ms": 2})
        );
    }
}
