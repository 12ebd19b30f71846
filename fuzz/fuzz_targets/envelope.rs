//! Any line: reading it never panics, agrees with a plain JSON parser, and the quick scan for the
//! id never claims another one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use trunkline_fuzz::protocol::jsonrpc::id_scan::{IdScanner, Whose};
use trunkline_fuzz::protocol::jsonrpc::{Message, decode};

fuzz_target!(|line: &[u8]| {
    let mut scanner = IdScanner::default();
    scanner.feed(line);
    let Ok(message) = decode(line) else { return };
    // The plain parser knows no numbers beyond its own; ours pass through unread.
    let Ok(value) = serde_json::from_slice::<Value>(line) else { return };
    match message {
        Message::Response { id, outcome } => {
            assert_eq!(serde_json::from_str::<Value>(id.get()).ok().as_ref(), value.get("id"));
            assert_eq!(outcome.is_ok(), value.get("result").is_some());
            if let Whose::AnswerTo(found) = scanner.whose() {
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
