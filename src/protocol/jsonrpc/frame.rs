//! Encodes messages: one frame is one line.

use std::io::Write;

use serde::Serialize;
use serde_json::value::RawValue;

/// One message with its newline, ready to be written.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame(Vec<u8>);

impl Frame {
    /// Writes a request. `params` is JSON in pieces, so that a large body is copied only once.
    pub fn request(id: u64, method: &str, params: &[&str]) -> Self {
        let params_len: usize = params.iter().map(|piece| piece.len()).sum();
        Self::write(params_len + method.len() + 72, |out| {
            let _ = write!(out, r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":"#);
            for piece in params {
                out.extend_from_slice(piece.as_bytes());
            }
            out.push(b'}');
        })
    }

    /// Writes a notification. `params` is JSON.
    pub fn notification(method: &str, params: &str) -> Self {
        Self::write(params.len() + method.len() + 48, |out| {
            let _ = write!(out, r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        })
    }

    /// Writes a successful answer and echoes the id byte for byte.
    pub fn result(id: &RawValue, result: &impl Serialize) -> Self {
        Self::write(128, |out| {
            let _ = write!(out, r#"{{"jsonrpc":"2.0","id":{},"result":"#, id.get());
            serde_json::to_writer(&mut *out, result).expect("results are plain data");
            out.push(b'}');
        })
    }

    /// Writes an answer that is passed on from a peer.
    pub fn answer(id: &RawValue, outcome: Result<&RawValue, &RawValue>) -> Self {
        let (member, body) = match outcome {
            Ok(result) => ("result", result),
            Err(error) => ("error", error),
        };
        Self::write(body.get().len() + 64, |out| {
            let _ =
                write!(out, r#"{{"jsonrpc":"2.0","id":{},"{member}":{}}}"#, id.get(), body.get());
        })
    }

    /// Writes an error. Without a readable id JSON-RPC answers with `null`.
    pub fn error(id: Option<&RawValue>, code: i64, message: &str, data: Option<&RawValue>) -> Self {
        #[derive(Serialize)]
        struct Error<'a> {
            code: i64,
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            data: Option<&'a RawValue>,
        }
        Self::write(128, |out| {
            let id = id.map_or("null", RawValue::get);
            let _ = write!(out, r#"{{"jsonrpc":"2.0","id":{id},"error":"#);
            serde_json::to_writer(&mut *out, &Error { code, message, data })
                .expect("errors are plain data");
            out.push(b'}');
        })
    }

    /// Returns the bytes to write, newline included.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Ensures that a frame is one line; the only constructor. Line breaks in JSON occur only
    /// between tokens, where a space is equivalent. [`super::RawObject`] has removed those from
    /// outside already.
    fn write(capacity: usize, body: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        body(&mut bytes);
        super::raw::blank_line_breaks(&mut bytes);
        bytes.push(b'\n');
        Self(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::jsonrpc::{Message, decode};

    #[test]
    fn a_frame_is_one_line_even_if_its_body_has_line_breaks() {
        let frame = Frame::request(5, "tools/call", &["{\n\"a\":", "\r\n1}"]);
        assert_eq!(
            std::str::from_utf8(frame.as_bytes()).unwrap(),
            "{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"tools/call\",\"params\":{ \"a\":  1}}\n"
        );
    }

    #[test]
    fn answers_echo_the_id() {
        let id = RawValue::from_string("1.10".into()).unwrap();
        let frame = Frame::result(&id, &serde_json::json!({"ok": true}));
        let Ok(Message::Response { id, outcome: Ok(result) }) = decode(frame.as_bytes()) else {
            panic!()
        };
        assert_eq!((id.get(), result.get()), ("1.10", r#"{"ok":true}"#));
    }

    #[test]
    fn an_error_without_a_readable_id_answers_null() {
        let frame = Frame::error(None, -32700, "no \"JSON\"", None);
        assert_eq!(
            std::str::from_utf8(frame.as_bytes()).unwrap(),
            concat!(
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no \"JSON\""}}"#,
                "\n"
            )
        );
    }
}
