//! Follows a stream of events that is relayed: whether it is between two events, and whether the
//! response that the client waits for has passed. Only the beginning of each event is kept.

use serde_json::value::RawValue;

use super::sse;
use crate::http::mcp::rpc::{self, RpcError};

pub(crate) struct SseProgress {
    /// The beginnings of an event that is the response: with a result, or with an error.
    response_heads: Vec<Vec<u8>>,
    /// The beginning of the current event.
    head: Vec<u8>,
    ends_line: bool,
    /// The stream is between two events.
    pub(crate) is_at_boundary: bool,
    /// The response has passed.
    pub(crate) has_response: bool,
}

impl SseProgress {
    /// Follows a stream that another replica writes, in response to the request with this id.
    pub(crate) fn new(id: Option<&RawValue>) -> Self {
        let response_heads = id.map_or(vec![], |id| vec![result_head(id), error_head(id)]);
        Self {
            response_heads,
            head: vec![],
            ends_line: false,
            is_at_boundary: true,
            has_response: false,
        }
    }

    /// Takes the next bytes of the stream, which may be cut anywhere.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        for part in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.is_at_boundary = self.ends_line && part == b"\n";
            self.ends_line = part.ends_with(b"\n");
            if self.is_at_boundary {
                self.has_response |= self.response_heads.iter().any(|it| self.head.starts_with(it));
                self.head.clear();
            } else {
                let longest = self.response_heads.iter().map(Vec::len).max().unwrap_or_default();
                let room = longest.saturating_sub(self.head.len());
                self.head.extend_from_slice(&part[..part.len().min(room)]);
            }
        }
    }
}

fn result_head(id: &RawValue) -> Vec<u8> {
    let whole = sse::event(&rpc::result(id, ""));
    whole.strip_suffix(b"}\n\n").unwrap_or(&whole).to_vec()
}

fn error_head(id: &RawValue) -> Vec<u8> {
    let whole = sse::event(&RpcError::new(0, "").body(Some(id)));
    let rest = br#"{"code":0,"message":""}}"#.len() + 2;
    whole[..whole.len() - rest].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    /// Streams, and whether each has the response to the request `7`.
    fn streams() -> [(String, bool); 6] {
        let id = raw("7");
        let event = |message: &[u8]| String::from_utf8(sse::event(message).to_vec()).unwrap();
        let question = event(br#"{"jsonrpc":"2.0","id":7,"method":"roots/list"}"#);
        let result = event(&rpc::result(&id, &format!("{{\"a\":\"{}\"}}", "x".repeat(500))));
        let error = event(&RpcError::new(-32000, "no").body(Some(&id)));
        let other = event(&rpc::result(&raw("70"), "{}"));
        [
            (String::new(), false),
            (format!(":\n\n{question}"), false),
            (other, false),
            (format!("{question}{result}"), true),
            (error, true),
            (format!("{result}:\n\n"), true),
        ]
    }

    #[test]
    fn the_response_is_found_wherever_the_stream_is_cut() {
        for (stream, has_response) in streams() {
            for len in 1..=stream.len().max(1) {
                let mut progress = SseProgress::new(Some(&raw("7")));
                stream.as_bytes().chunks(len).for_each(|chunk| progress.push(chunk));
                assert!(progress.is_at_boundary, "{stream} by {len}");
                assert_eq!(progress.has_response, has_response, "{stream} by {len}");
            }
        }
    }

    #[test]
    fn half_an_event_is_neither_whole_nor_a_response() {
        let response = sse::event(&rpc::result(&raw("7"), "{}"));
        for len in 1..response.len() {
            let mut progress = SseProgress::new(Some(&raw("7")));
            progress.push(&response[..len]);
            assert!(!progress.is_at_boundary && !progress.has_response, "{len} bytes");
        }
    }
}
