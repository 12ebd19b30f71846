//! Small tools.

use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

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
}
