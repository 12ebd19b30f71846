//! Checks that any accepted request body becomes one line with one message, and that its arguments
//! stay as sent except for line breaks.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use serde::Deserialize;
use serde_json::value::RawValue;
use trunkline_fuzz::protocol::jsonrpc::{Message, RawObject, decode};
use trunkline_fuzz::protocol::mcp::ProtocolVersion;
use trunkline_fuzz::protocol::mcp::requests::{CallMeta, Dialect};

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    arguments: &'a RawValue,
}

fuzz_target!(|body: &[u8]| {
    let Ok(arguments) = RawObject::parse(Bytes::copy_from_slice(body)) else { return };
    let text = std::str::from_utf8(body).expect("accepted, so it is JSON");
    let expected = text.trim_matches([' ', '\t', '\n', '\r']).replace(['\n', '\r'], " ");
    for version in [ProtocolVersion::LATEST, ProtocolVersion::LATEST_LEGACY] {
        let meta = CallMeta::default();
        let frame = Dialect::new(version).tools_call(7, "\"tool\"", &arguments, "", &meta);
        let bytes = frame.bytes();
        let (last, line) = bytes.split_last().expect("never empty");
        assert!(*last == b'\n' && !line.iter().any(|byte| matches!(byte, b'\n' | b'\r')));
        let Ok(Message::Request { id, params: Some(params), .. }) = decode(line) else {
            panic!("not one request")
        };
        assert_eq!(id.get(), "7");
        let params: Params<'_> = serde_json::from_str(params.get()).expect("valid");
        assert_eq!(params.arguments.get(), expected);
    }
});
