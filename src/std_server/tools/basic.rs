//! Small tools: all but `json_query`.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;
use sha2::{Digest, Sha256, Sha384, Sha512};
use uuid::Uuid;

use super::arguments::Misfit;
use super::{Called, Outcome, ToolSpec};

const SLEEP_MS_MAX: u32 = 60 * 60 * 1000;

pub(super) const ECHO: ToolSpec = ToolSpec {
    name: "echo",
    title: "Echo",
    description: "Returns the text it is given, unchanged.",
    required: &["text"],
    optional: &[],
    properties: || json!({"text": {"type": "string", "description": "The text to return"}}),
    output: None,
    run: |arguments| Ok(Called::Done(Outcome::text(arguments.text("text")?))),
};

pub(super) const SLEEP: ToolSpec = ToolSpec {
    name: "sleep",
    title: "Sleep",
    description: "Waits for a while, then returns. It can be cancelled.",
    required: &["ms"],
    optional: &[],
    properties: || {
        json!({"ms": {
            "type": "integer",
            "minimum": 0,
            "maximum": SLEEP_MS_MAX,
            "description": "How long to wait, in milliseconds",
        }})
    },
    output: None,
    run: |arguments| {
        let ms = arguments.integer("ms", 0..=SLEEP_MS_MAX)?;
        let sleep = tokio::time::sleep(Duration::from_millis(ms.into()));
        Ok(Called::Later(Box::pin(async move {
            sleep.await;
            Outcome::text(format!("slept {ms} ms"))
        })))
    },
};

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

pub(super) const HASH: ToolSpec = ToolSpec {
    name: "hash",
    title: "Hash",
    description: "Computes the SHA-2 hash of a text's UTF-8 bytes, in lower-case hexadecimal.",
    required: &["algorithm", "text"],
    optional: &[],
    properties: || {
        json!({
            "algorithm": {"type": "string", "enum": ["sha256", "sha384", "sha512"]},
            "text": {"type": "string", "description": "The text to hash"},
        })
    },
    output: Some(|| json!({"algorithm": {"type": "string"}, "hex": {"type": "string"}})),
    run: |arguments| {
        let text = arguments.text("text")?;
        let algorithm = arguments.text("algorithm")?;
        let hex = match algorithm.as_ref() {
            "sha256" => hex(&Sha256::digest(text.as_bytes())),
            "sha384" => hex(&Sha384::digest(text.as_bytes())),
            "sha512" => hex(&Sha512::digest(text.as_bytes())),
            _ => {
                let why = "`algorithm` must be one of `sha256`, `sha384` and `sha512`";
                return Err(Misfit(why.to_owned()));
            }
        };
        Ok(Called::Done(Outcome::structured(json!({"algorithm": algorithm, "hex": hex}))))
    },
};

pub(super) const UUID: ToolSpec = ToolSpec {
    name: "uuid",
    title: "Random UUID",
    description: "Makes a new random UUID (version 4).",
    required: &[],
    optional: &[],
    properties: || json!({}),
    output: Some(|| json!({"uuid": {"type": "string", "format": "uuid"}})),
    run: |_| Ok(Called::Done(Outcome::structured(json!({"uuid": Uuid::new_v4().to_string()})))),
};

pub(super) const FAIL: ToolSpec = ToolSpec {
    name: "fail",
    title: "Fail",
    description: "Always fails, with the message it is given. For trying out how failures look.",
    required: &["message"],
    optional: &[],
    properties: || json!({"message": {"type": "string", "description": "What to fail with"}}),
    output: None,
    run: |arguments| Ok(Called::Done(Outcome::error(arguments.text("message")?))),
};

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::outcome;
    use super::*;

    #[test]
    fn echo_returns_its_text() {
        let text = "line\nbreak \"quoted\" é";
        assert_eq!(outcome("echo", &json!({"text": text})).text, text);
    }

    #[test]
    fn uuids_are_random() {
        let one = outcome("uuid", &json!({})).structured.unwrap();
        let other = outcome("uuid", &json!({})).structured.unwrap();
        assert_ne!(one, other);
        let uuid: Uuid = one["uuid"].as_str().unwrap().parse().unwrap();
        assert_eq!(uuid.get_version_num(), 4);
    }

    #[test]
    fn fail_fails_with_its_message() {
        let outcome = outcome("fail", &json!({"message": "no luck"}));
        assert!(outcome.is_error && outcome.text == "no luck");
    }

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

    #[test]
    fn hashes_are_those_of_the_standard() {
        for (algorithm, hex) in [
            ("sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                "sha384",
                "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed\
                 8086072ba1e7cc2358baeca134c825a7",
            ),
            (
                "sha512",
                "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                 2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
            ),
        ] {
            let outcome = outcome("hash", &json!({"algorithm": algorithm, "text": "abc"}));
            assert_eq!(outcome.structured.unwrap(), json!({"algorithm": algorithm, "hex": hex}));
        }
    }

    #[test]
    fn other_algorithms_are_refused_with_the_known_ones() {
        let outcome = outcome("hash", &json!({"algorithm": "md5", "text": "abc"}));
        assert!(outcome.is_error && outcome.text.contains("`sha256`"), "{outcome:?}");
    }
}
