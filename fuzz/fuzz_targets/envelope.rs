//! Checks that decoding any line never panics and agrees with a plain JSON parser, and that the id
//! scanner never finds another id.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use trunkline_fuzz::protocol::jsonrpc::id_scan::{IdScanner, LineKind};
use trunkline_fuzz::protocol::jsonrpc::{Message, decode};

fuzz_target!(|line: &[u8]| {
    let mut scanner = IdScanner::default();
    scanner.feed(line);
    let Ok(message) = decode(line) else { return };
    // The plain parser refuses numbers out of its range; the envelope leaves them raw.
    let Ok(value) = serde_json::from_slice::<Value>(line) else { return };
    match message {
        Message::Response { id, outcome } => {
            assert_eq!(serde_json::from_str::<Value>(id.get()).ok().as_ref(), value.get("id"));
            assert_eq!(outcome.is_ok(), value.get("result").is_some());
            if let LineKind::AnswerTo(found) = scanner.kind() {
                assert_eq!(id.get(), found.to_string());
            }
        }
        Message::Request { id, method, .. } => {
            assert_eq!(serde_json::from_str::<Value>(id.get()).ok().as_ref(), value.get("id"));
            assert_eq!(value["method"], *method);
        }
        Message::Notification { method, .. } => {
            assert!(value.get("id").is_none());
            assert_eq!(value["method"], *method);
        }
    }
});
