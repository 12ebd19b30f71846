//! What has been heard of a stream that is passed on: whether it stands between two events, and whether the answer that
//! somebody waits for was among them. Only the beginning of each event is kept, however long it is.

use serde_json::value::RawValue;

use super::sse;
use crate::http::mcp::rpc;
use crate::http::mcp::rpc::RpcError;

/// So much of a stream.
pub(crate) struct Heard {
    /// How an event begins that is the answer, for each kind of answer.
    answers: Vec<Vec<u8>>,
    /// The beginning of the event that is coming.
    head: Vec<u8>,
    /// Whether the last that came was the end of a line.
    ends_line: bool,
    /// Whether what has come so far is whole events.
    pub(crate) is_whole: bool,
    /// Whether the answer has come.
    pub(crate) is_answered: bool,
}

impl Heard {
    /// Of a stream that answers the request with this id, if it answers one. It is written by a gateway like this one.
    pub(crate) fn new(id: Option<&RawValue>) -> Self {
        let answers = id.map_or(vec![], |id| vec![result_head(id), error_head(id)]);
        Self { answers, head: vec![], ends_line: false, is_whole: true, is_answered: false }
    }

    /// More of it has come, cut anywhere.
    pub(crate) fn hear(&mut self, chunk: &[u8]) {
        for part in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.is_whole = self.ends_line && part == b"\n";
            self.ends_line = part.ends_with(b"\n");
            if self.is_whole {
                self.is_answered |= self.answers.iter().any(|it| self.head.starts_with(it));
                self.head.clear();
            } else {
                let longest = self.answers.iter().map(Vec::len).max().unwrap_or_default();
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

    /// A stream whose last event may be the answer to the request `7`.
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
    fn it_is_known_whether_the_answer_has_come_wherever_the_stream_is_cut() {
        for (stream, is_answered) in streams() {
            for len in 1..=stream.len().max(1) {
                let mut heard = Heard::new(Some(&raw("7")));
                stream.as_bytes().chunks(len).for_each(|chunk| heard.hear(chunk));
                assert!(heard.is_whole, "{stream} by {len}");
                assert_eq!(heard.is_answered, is_answered, "{stream} by {len}");
            }
        }
    }

    #[test]
    fn half_an_event_is_neither_whole_nor_an_answer() {
        let answer = sse::event(&rpc::result(&raw("7"), "{}"));
        for len in 1..answer.len() {
            let mut heard = Heard::new(Some(&raw("7")));
            heard.hear(&answer[..len]);
            assert!(!heard.is_whole && !heard.is_answered, "{len} bytes");
        }
    }
}
