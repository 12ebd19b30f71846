//! A policy as written in JSON: missing fields have their defaults.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Grants, IN_FLIGHT_DEFAULT, InvalidPolicy, Limit, Pattern, Policy, Rate};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyText {
    rate: Option<Rate>,
    burst: Option<u32>,
    /// The default if missing; `null` for no limit.
    #[serde(default = "in_flight_default")]
    max_in_flight: Option<u32>,
    weight: Option<u32>,
    servers: Option<Grants>,
    limits: Option<BTreeMap<Pattern, Limit>>,
}

#[allow(clippy::unnecessary_wraps)]
fn in_flight_default() -> Option<u32> {
    Some(IN_FLIGHT_DEFAULT)
}

impl TryFrom<PolicyText> for Policy {
    type Error = InvalidPolicy;

    fn try_from(text: PolicyText) -> Result<Self, InvalidPolicy> {
        let defaults = Self::new();
        let policy = Self {
            limit: Limit { rate: text.rate, burst: text.burst, max_in_flight: text.max_in_flight },
            weight: text.weight.unwrap_or(defaults.weight),
            servers: text.servers.unwrap_or_default(),
            limits: text.limits.unwrap_or_default(),
        };
        policy.check()?;
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_policy_can_be_read_again() {
        let text = r#"{"rate":"100/s","burst":5,"weight":2,"servers":["std","a/*"],
            "limits":{"a/b":{"rate":"1/s"}}}"#;
        let policy: Policy = serde_json::from_str(text).unwrap();
        assert_eq!((policy.weight, policy.limit.max_in_flight), (2, Some(256)));
        let again: Policy = serde_json::from_value(serde_json::json!(policy)).unwrap();
        assert_eq!(again, policy);
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
        ] {
            let error = serde_json::from_str::<Policy>(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
