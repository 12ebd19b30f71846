//! Decodes the envelope of one message and leaves the bodies raw.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::members::Text;
use super::text::JsonText;

/// One JSON-RPC message, borrowing from the line it was read from.
#[derive(Debug)]
pub enum Message<'a> {
    Request {
        /// A string, a number or `null`. Raw, so that it can be echoed exactly.
        id: &'a RawValue,
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    Notification {
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    Response {
        id: &'a RawValue,
        /// The `result` or the `error` member.
        outcome: Result<&'a RawValue, &'a RawValue>,
    },
}

/// A line that is no JSON-RPC message.
#[derive(Debug)]
pub enum Malformed<'a> {
    /// Not one JSON value, or not UTF-8.
    NotJson,
    /// A JSON array. MCP dropped batches with 2025-06-18.
    Batch,
    /// JSON, but no message. The id is given if it could be read and has a legal type.
    Invalid { id: Option<&'a RawValue>, why: &'static str },
}

impl<'a> Malformed<'a> {
    pub fn id(&self) -> Option<&'a RawValue> {
        match self {
            Self::Invalid { id, .. } => *id,
            Self::NotJson | Self::Batch => None,
        }
    }
}

/// A duplicate of any of these keys is an error, so that no two parsers see different messages.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present_text")]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// Distinguishes an explicit `null` from an absent member, which serde's `Option` alone does not.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(value).map(Some)
}

/// Does what [`present`] does, for a member that must be a string.
fn present_text<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    Text::deserialize(value).map(|text| Some(text.0))
}

pub fn decode(line: &[u8]) -> Result<Message<'_>, Malformed<'_>> {
    // Without this check serde would also accept an array, member by member.
    if line.trim_ascii_start().first() != Some(&b'{') {
        return Err(explain(line));
    }
    let envelope: Envelope<'_> = match serde_json::from_slice(line) {
        Ok(envelope) => envelope,
        Err(_) => return Err(explain(line)),
    };
    let id = envelope.id;
    let invalid = |why| Malformed::Invalid { id: id.filter(|id| is_legal_id(id)), why };
    if envelope.jsonrpc.as_deref() != Some("2.0") {
        return Err(invalid("`jsonrpc` must be \"2.0\""));
    }
    if id.is_some_and(|id| !is_legal_id(id)) {
        return Err(invalid("`id` must be a string, a number or null"));
    }
    match (envelope.method, id, envelope.result, envelope.error) {
        (Some(method), Some(id), None, None) => {
            Ok(Message::Request { id, method, params: envelope.params })
        }
        (Some(method), None, None, None) => {
            Ok(Message::Notification { method, params: envelope.params })
        }
        (None, Some(id), Some(result), None) => Ok(Message::Response { id, outcome: Ok(result) }),
        (None, Some(id), None, Some(error)) => Ok(Message::Response { id, outcome: Err(error) }),
        (Some(_), ..) => Err(invalid("a message has either `method` or an answer, not both")),
        (None, ..) => {
            Err(invalid("a message needs `method`, or `id` with one of `result` and `error`"))
        }
    }
}

/// Finds out why a line did not parse as an envelope. The slow path.
fn explain(line: &[u8]) -> Malformed<'_> {
    let Ok(value) = serde_json::from_slice::<&RawValue>(line) else {
        return Malformed::NotJson;
    };
    match value.get().as_bytes()[0] {
        b'[' => Malformed::Batch,
        b'{' => {
            Malformed::Invalid { id: None, why: "a member is of the wrong type, or appears twice" }
        }
        _ => Malformed::Invalid { id: None, why: "a message is a JSON object" },
    }
}

fn is_legal_id(id: &RawValue) -> bool {
    !matches!(id.get().as_bytes()[0], b'{' | b'[' | b't' | b'f')
}

/// The `error` member of a response, with `data` left raw.
#[derive(Clone, Debug, Deserialize)]
pub struct ErrorObject {
    pub code: i64,
    pub message: JsonText,
    pub data: Option<Box<RawValue>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_str(line: &str) -> Result<Message<'_>, Malformed<'_>> {
        decode(line.as_bytes())
    }

    #[test]
    fn ids_come_back_exactly_as_written() {
        for id in ["1", "1.10", "12345678901234567890123", "\"a\\u0062\"", "null", "-0", "\"\""] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            let Ok(Message::Request { id: read, .. }) = decode_str(&line) else { panic!("{line}") };
            assert_eq!(read.get(), id);
        }
    }

    #[test]
    fn ids_of_other_types_are_refused_without_echo() {
        for id in ["true", "false", "[1]", "{}"] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            assert!(
                matches!(decode_str(&line), Err(Malformed::Invalid { id: None, .. })),
                "{line}"
            );
        }
    }

    #[test]
    fn an_absent_id_makes_a_notification_and_null_does_not() {
        assert!(matches!(
            decode_str(r#"{"jsonrpc":"2.0","method":"m"}"#),
            Ok(Message::Notification { .. })
        ));
        assert!(matches!(
            decode_str(r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#),
            Ok(Message::Request { .. })
        ));
    }

    #[test]
    fn results_stay_raw() {
        let body = r#"{"b":1.10,"a": 12345678901234567890123,"b2":null}"#;
        let line = format!(r#"{{"id":7,"result":{body},"jsonrpc":"2.0"}}"#);
        let Ok(Message::Response { id, outcome: Ok(result) }) = decode_str(&line) else { panic!() };
        assert_eq!((id.get(), result.get()), ("7", body));
    }

    #[test]
    fn duplicate_members_are_refused() {
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"id":2,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{},"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#,
        ] {
            assert!(matches!(decode_str(line), Err(Malformed::Invalid { .. })), "{line}");
        }
    }

    #[test]
    fn a_line_that_is_no_message_is_refused_with_the_reason() {
        assert!(matches!(decode_str("npm warn hello"), Err(Malformed::NotJson)));
        assert!(matches!(decode_str(""), Err(Malformed::NotJson)));
        assert!(matches!(
            decode(b"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"m\"}"),
            Err(Malformed::NotJson)
        ));
        assert!(matches!(decode_str(r#"[{"jsonrpc":"2.0"}]"#), Err(Malformed::Batch)));
        assert!(matches!(decode_str(r#"["2.0",1,"ping"]"#), Err(Malformed::Batch)));
        assert!(matches!(decode_str("7"), Err(Malformed::Invalid { .. })));
        assert!(matches!(
            decode_str(r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#),
            Err(Malformed::Invalid { id: Some(_), .. })
        ));
        assert!(matches!(
            decode_str(r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#),
            Err(Malformed::Invalid { .. })
        ));
        assert!(matches!(
            decode_str(r#"{"jsonrpc":"2.0","id":1,"method":"m","result":1}"#),
            Err(Malformed::Invalid { .. })
        ));
    }
}
