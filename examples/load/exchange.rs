//! A request, and how to recognise the answer that is its own.

use std::ops::Range;

use memchr::memmem;
use trunkline::protocol::mcp::{ProtocolVersion, meta, method};
use uuid::Uuid;

use crate::options::{Options, Tool};
use crate::target::{Kind, Target};

/// Digits of the serial number: more calls than any run makes.
const SERIAL_LEN: usize = 12;
const KEY_HEADER: &str = "idempotency-key: ";

/// One connection's request, built once. From call to call only its serial numbers change, so that
/// every text and every `Idempotency-Key` that is sent is different from every other.
pub struct Exchange {
    request: Vec<u8>,
    serials: Vec<Range<usize>>,
    expected: Expected,
    calls: u64,
}

enum Expected {
    /// The body is this part of the request.
    Body(Range<usize>),
    /// The body has this part of the request in it.
    Part(Range<usize>),
    /// The body has these parts of the request in it, one behind the other.
    Parts(Vec<Range<usize>>),
    /// The body has this text in it.
    Text(String),
}

impl Exchange {
    pub fn new(target: &Target, options: &Options, connection: usize) -> Self {
        match options.tool {
            Tool::Echo if target.kind() == Kind::Batch => {
                Self::batch(target, options.body, connection, options.batch.get())
            }
            Tool::Echo => Self::echo(target, options.body, connection),
            Tool::Sleep => Self::sleep(target, options.sleep_ms),
        }
    }

    pub fn echo(target: &Target, text_len: usize, connection: usize) -> Self {
        let mut text = format!("{connection:05}-{:0SERIAL_LEN$}", 0);
        let serial_at = text.len() - SERIAL_LEN;
        text.extend(std::iter::repeat_n('x', text_len.saturating_sub(text.len())));
        // The answer holds the text in the very form that the request does.
        let member = format!("\"text\":\"{text}\"");
        let arguments = format!("{{{member}}}");
        let request = post(target, "echo", &arguments);
        let arguments = position(&request, &arguments);
        let member = arguments.start + 1..arguments.end - 1;
        let serial_at = member.end - 1 - text.len() + serial_at;
        let expected = match target.kind() {
            Kind::Floor => Expected::Body(arguments),
            _ => Expected::Part(member),
        };
        let key_at = match target.kind() {
            Kind::Keyed => Some(position(&request, KEY_HEADER).end),
            _ => None,
        };
        let starts = [Some(serial_at), key_at].into_iter().flatten();
        let serials = starts.map(|start| start..start + SERIAL_LEN).collect();
        Self { request, serials, expected, calls: 1 }
    }

    /// Many calls of `echo` in one request.
    fn batch(target: &Target, text_len: usize, connection: usize, calls: usize) -> Self {
        let member = |call: usize| {
            let text = format!("{connection:05}-{call:05}-");
            let rest = "x".repeat(text_len.saturating_sub(text.len() + SERIAL_LEN));
            format!("\"text\":\"{text}{rest}{:0SERIAL_LEN$}\"", 0)
        };
        let call = |call: usize| {
            let member = member(call);
            format!(
                "{{\"id\":\"{call}\",\"server\":\"std\",\"tool\":\"echo\",\
                 \"arguments\":{{{member}}}}}"
            )
        };
        let list: Vec<_> = (0..calls).map(call).collect();
        let request = post(target, "echo", &format!("{{\"calls\":[{}]}}", list.join(",")));
        let parts: Vec<_> = (0..calls).map(|call| position(&request, &member(call))).collect();
        let serial = |part: &Range<usize>| part.end - 1 - SERIAL_LEN..part.end - 1;
        let serials = parts.iter().map(serial).collect();
        Self { request, serials, expected: Expected::Parts(parts), calls: calls as u64 }
    }

    /// Returns the number of calls that one request makes.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// The answer of `sleep` holds nothing of the call but the time: a mix-up would go unnoticed
    /// here.
    pub fn sleep(target: &Target, ms: u32) -> Self {
        let arguments = format!("{{\"ms\":{ms}}}");
        let request = post(target, "sleep", &arguments);
        let expected = match target.kind() {
            Kind::Floor => Expected::Body(position(&request, &arguments)),
            _ => Expected::Text(format!("\"text\":\"slept {ms} ms\"")),
        };
        Self { request, serials: vec![], expected, calls: 1 }
    }

    /// The next request.
    pub fn next(&mut self) -> &[u8] {
        for serial in &self.serials {
            count_up(&mut self.request[serial.clone()]);
        }
        &self.request
    }

    pub fn is_own(&self, body: &[u8]) -> bool {
        match &self.expected {
            Expected::Body(range) => body == &self.request[range.clone()],
            Expected::Part(range) => memmem::find(body, &self.request[range.clone()]).is_some(),
            Expected::Parts(parts) => {
                let mut rest = body;
                parts.iter().all(|part| {
                    let part = &self.request[part.clone()];
                    memmem::find(rest, part).is_some_and(|at| {
                        rest = &rest[at + part.len()..];
                        true
                    })
                })
            }
            Expected::Text(text) => memmem::find(body, text.as_bytes()).is_some(),
        }
    }
}

fn count_up(digits: &mut [u8]) {
    for digit in digits.iter_mut().rev() {
        if *digit < b'9' {
            *digit += 1;
            return;
        }
        *digit = b'0';
    }
}

fn position(request: &[u8], part: &str) -> Range<usize> {
    let start = memmem::find(request, part.as_bytes()).expect("it was put in");
    start..start + part.len()
}

fn post(target: &Target, tool: &str, arguments: &str) -> Vec<u8> {
    let (path, headers, body) = match target.kind() {
        Kind::Floor => ("/echo".to_owned(), String::new(), arguments.to_owned()),
        Kind::Rest | Kind::Limited | Kind::Keyed => {
            let path = format!("/v1/servers/std/tools/{tool}");
            (path, rest_headers(target), arguments.to_owned())
        }
        Kind::Batch => ("/v1/batch".to_owned(), String::new(), arguments.to_owned()),
        Kind::Mcp => ("/mcp/std".to_owned(), mcp_headers(tool), mcp_body(tool, arguments)),
    };
    format!(
        "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         {headers}content-length: {}\r\n\r\n{body}",
        target.address(),
        body.len()
    )
    .into_bytes()
}

fn rest_headers(target: &Target) -> String {
    let key = match target.key() {
        Some(key) => format!("authorization: Bearer {key}\r\n"),
        None => String::new(),
    };
    match target.kind() {
        // A store that was there before must not have seen these keys.
        Kind::Keyed => format!("{key}{KEY_HEADER}{:0SERIAL_LEN$}-{}\r\n", 0, Uuid::new_v4()),
        _ => key,
    }
}

/// The headers that a client of the modern era sends: what they repeat of the body is compared with
/// it.
fn mcp_headers(tool: &str) -> String {
    let version = ProtocolVersion::LATEST.as_str();
    format!(
        "accept: application/json, text/event-stream\r\nmcp-protocol-version: \
         {version}\r\nmcp-method: {}\r\nmcp-name: {tool}\r\n",
        method::TOOLS_CALL
    )
}

/// All clients and all calls have the same id: that is how common clients are.
fn mcp_body(tool: &str, arguments: &str) -> String {
    let method = method::TOOLS_CALL;
    let version = ProtocolVersion::LATEST.as_str();
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\",\"params\":{{\"name\":\"{tool}\
            \",\"arguments\":{arguments},\"_meta\":{{\"{}\":\"{version}\",\
             \"{}\":{{\"name\":\"load\",\
            \"version\":\"1\"}},\"{}\":{{}}}}}}}}",
        meta::PROTOCOL_VERSION,
        meta::CLIENT_INFO,
        meta::CLIENT_CAPABILITIES,
    )
}
