//! Checks trace context from a caller's headers (W3C Trace Context) before it is passed on in
//! `_meta`.
//!
//! Invalid values are dropped without an error, as the standard asks: a broken trace must not break
//! a call.

/// `00-` trace id `-` parent id `-` flags: the length of version 00, and the beginning of later
/// ones.
const TRACEPARENT_LEN: usize = 55;
/// The standard allows dropping a longer `tracestate`. Later versions of `traceparent` get as much.
const LEN_MAX: usize = 512;

/// Returns the value of a `traceparent` header if it is valid.
pub fn traceparent(value: &str) -> Option<&str> {
    let value = value.trim_matches([' ', '\t']);
    let (known, rest) = value.split_at_checked(TRACEPARENT_LEN)?;
    let mut fields = known.split('-');
    let mut field = |len: usize| fields.next().filter(|field| field.len() == len && is_hex(field));
    let (version, trace_id, parent_id, _flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
    let is_rest_fine = match version {
        "ff" => false,
        "00" => rest.is_empty(),
        _ => is_later_part(rest) && value.len() <= LEN_MAX,
    };
    (is_rest_fine && !is_zero(trace_id) && !is_zero(parent_id)).then_some(value)
}

/// Returns the value of a `tracestate` header as a JSON string, quotes included, if it may be
/// passed on. The entries belong to tracing systems and are not parsed.
pub fn tracestate(value: &str) -> Option<String> {
    let value = value.trim_matches([' ', '\t']);
    let is_fine = !value.is_empty()
        && value.len() <= LEN_MAX
        && value.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    is_fine.then(|| serde_json::json!(value).to_string())
}

/// Checks the fields that a later version adds: they must be safe between quotes in JSON.
fn is_later_part(rest: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    rest.is_empty() || (rest.starts_with('-') && rest.bytes().all(is_plain))
}

fn is_hex(field: &str) -> bool {
    field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_zero(id: &str) -> bool {
    id.bytes().all(|byte| byte == b'0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_examples_of_the_standard_pass() {
        for value in [
            EXAMPLE,
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future-will-be-like",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
        ] {
            assert_eq!(traceparent(value), Some(value));
            assert_eq!(traceparent(&format!(" {value}\t")), Some(value));
        }
    }

    #[test]
    fn invalid_values_are_dropped() {
        for value in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.what",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-\"",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-\\",
            "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473.-00f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-é",
        ] {
            assert_eq!(traceparent(value), None, "{value}");
        }
    }

    #[test]
    fn tracestate_becomes_a_json_string() {
        for (value, json) in [
            (
                "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
                "\"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE\"",
            ),
            (" a=1 , b=2 ", "\"a=1 , b=2\""),
            ("a=\"\\", "\"a=\\\"\\\\\""),
        ] {
            assert_eq!(tracestate(value).as_deref(), Some(json));
        }
        assert!(tracestate(&"a".repeat(LEN_MAX)).is_some());
        for value in ["", " ", "a=é", "a=\n", "a=\u{7f}", &"a".repeat(LEN_MAX + 1)] {
            assert_eq!(tracestate(value), None, "{value:?}");
        }
    }

    proptest! {
        /// Accepted values can be put between quotes in JSON as they are.
        #[test]
        fn accepted_values_are_safe_in_json(
           rest in ".{0,8}", version in "[0-9a-f]{2}", state in ".{0,40}"
        ) {
            let value = format!("{version}{}{rest}", &EXAMPLE[2..]);
            if let Some(parent) = traceparent(&value) {
                let json: String = serde_json::from_str(&format!("\"{parent}\"")).unwrap();
                prop_assert_eq!(json, parent);
            }
            if let Some(json) = tracestate(&state) {
                prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), state.trim());
            }
        }
    }
}
