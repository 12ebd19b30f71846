//! `time`: the current time.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;

use super::arguments::Misfit;
use super::{Called, Outcome, ToolSpec};

pub(super) const TIME: ToolSpec = ToolSpec {
    name: "time",
    title: "Current time",
    description: "Tells the current time in a time zone.",
    required: &[],
    optional: &["timezone"],
    properties: || {
        json!({"timezone": {
            "type": "string",
            "default": "UTC",
            "description": "An IANA time zone name, such as Europe/Berlin",
        }})
    },
    output: Some(|| {
        json!({
            "time": {"type": "string", "format": "date-time"},
            "timezone": {"type": "string"},
            "unix_ms": {"type": "integer"},
        })
    }),
    run: |arguments| {
        let name = arguments.optional_text("timezone")?.unwrap_or("UTC".into());
        let zone = TimeZone::get(&name).map_err(|_| {
            let expected = "an IANA time zone name, such as `Europe/Berlin`";
            Misfit(format!("`timezone` must be {expected}, and it is `{name}`"))
        })?;
        let unix_ms = Timestamp::now().as_millisecond();
        let now = Timestamp::from_millisecond(unix_ms).unwrap_or_default();
        Ok(Called::Done(Outcome::structured(json!({
            "time": now.display_with_offset(zone.to_offset(now)).to_string(),
            "timezone": zone.iana_name().unwrap_or(&name),
            "unix_ms": unix_ms,
        }))))
    },
};

#[cfg(test)]
mod tests {
    use super::super::outcome;
    use super::*;

    #[test]
    fn the_time_is_now_in_any_time_zone() {
        for (zone, offset) in [("UTC", "+00:00"), ("Asia/Kolkata", "+05:30")] {
            let time = outcome("time", &json!({"timezone": zone})).structured.unwrap();
            assert_eq!(time["timezone"], zone);
            let text = time["time"].as_str().unwrap();
            assert!(text.ends_with(offset), "{text}");
            let told: Timestamp = text.parse().unwrap();
            assert_eq!(Some(told.as_millisecond()), time["unix_ms"].as_i64());
            assert!(Timestamp::now().duration_since(told).as_secs() < 60);
        }
    }

    #[test]
    fn without_a_time_zone_it_is_utc() {
        let time = outcome("time", &json!({})).structured.unwrap();
        assert_eq!(time["timezone"], "UTC");
    }

    #[test]
    fn an_unknown_time_zone_is_refused_with_an_example() {
        for zone in ["Mars/Olympus", "", "../../etc/passwd"] {
            let outcome = outcome("time", &json!({"timezone": zone}));
            assert!(outcome.is_error && outcome.text.contains("Europe/Berlin"), "{outcome:?}");
        }
    }
}
