//! A tenant's rates in HTTP: the fields `RateLimit-Policy` and `RateLimit` of "RateLimit header
//! fields for HTTP" (draft-ietf-httpapi-ratelimit-headers).

use std::time::Duration;

use super::RateStatus;
use super::quota::Quota;
use crate::common::decimal::push_number;

impl RateStatus {
    /// Returns the value of `RateLimit-Policy`: the burst (`q`), and the seconds in which it is
    /// earned (`w`).
    pub fn policy(&self) -> String {
        let mut text = String::with_capacity(self.0.iter().map(|(b, _)| b.policy.len() + 2).sum());
        for (bucket, _) in &self.0 {
            separate(&mut text);
            text.push_str(&bucket.policy);
        }
        text
    }

    /// Returns the value of `RateLimit`: the calls that may come now (`r`), and the seconds (`t`)
    /// until the quota is full, or until the next call if nothing remains.
    pub fn remaining(&self) -> String {
        let mut text = String::with_capacity(self.0.iter().map(|(b, _)| b.name_len + 32).sum());
        for (bucket, remaining) in &self.0 {
            separate(&mut text);
            text.push_str(&bucket.policy[..bucket.name_len]);
            text.push_str(";r=");
            push_number(&mut text, remaining.calls.into());
            text.push_str(";t=");
            push_number(&mut text, whole_seconds(remaining.reset));
        }
        text
    }
}

/// Returns a quota's item in `RateLimit-Policy`, and the length of its name.
pub(super) fn policy_text(name: &str, quota: Quota) -> (String, usize) {
    let (name, burst) = (quoted(name), quota.burst);
    let seconds = whole_seconds(quota.capacity()).max(1);
    (format!("{name};q={burst};w={seconds}"), name.len())
}

/// Quotes a name for a header: printable ASCII as it is, other bytes percent-encoded.
fn quoted(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    text.push('"');
    for byte in name.bytes() {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text.push('"');
    text
}

fn separate(text: &mut String) {
    if !text.is_empty() {
        text.push_str(", ");
    }
}

/// Rounds up, so that a caller that waits so long is not too early.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_name_can_be_carried(name: String) {
            let text = quoted(&name);
            prop_assert!(axum::http::HeaderValue::from_str(&text).is_ok() && text.is_ascii());
        }
    }

    #[test]
    fn the_policy_header_has_burst_and_period() {
        let text =
            |name, rate: &str, burst| policy_text(name, Quota::new(rate.parse().unwrap(), burst)).0;
        assert_eq!(text("tenant", "100/s", Some(200)), r#""tenant";q=200;w=2"#);
        assert_eq!(text("search/query", "4/s", Some(10)), r#""search/query";q=10;w=3"#);
        assert_eq!(text("tenant", "1000000/s", Some(1)), r#""tenant";q=1;w=1"#);
        assert_eq!(text("tenant", "1/h", None), r#""tenant";q=1;w=3600"#);
        assert_eq!(text("a/\"\\ü", "1/s", None), r#""a/\"\\%C3%BC";q=1;w=1"#);
    }
}
