//! A request, and how to recognise the answer that is its own.

use std::ops::Range;

use memchr::memmem;

use crate::options::{Options, Tool};
use crate::target::{Kind, Target};

/// Digits of the serial number: more calls than any run makes.
const SERIAL_LEN: usize = 12;

/// One connection's request, built once. From call to call only its serial number changes, so that
/// every text that is sent is different from every other.
pub struct Exchange {
    request: Vec<u8>,
    serial: Option<Range<usize>>,
    expected: Expected,
}

enum Expected {
    /// The body is this part of the request.
    Body(Range<usize>),
    /// The body has this part of the request in it.
    Part(Range<usize>),
    /// The body has this text in it.
    Text(String),
}

impl Exchange {
    pub fn new(target: &Target, options: &Options, connection: usize) -> Self {
        match options.tool {
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
        let body = format!("{{{member}}}");
        let request = post(target, "echo", &body);
        let body = request.len() - body.len()..request.len();
        let member = body.start + 1..body.end - 1;
        let serial_at = member.end - 1 - text.len() + serial_at;
        let expected = match target.kind() {
            Kind::Floor => Expected::Body(body),
            Kind::Gateway => Expected::Part(member),
        };
        Self { request, serial: Some(serial_at..serial_at + SERIAL_LEN), expected }
    }

    /// The answer of `sleep` holds nothing of the call but the time: a mix-up would go unnoticed here.
    pub fn sleep(target: &Target, ms: u32) -> Self {
        let body = format!("{{\"ms\":{ms}}}");
        let request = post(target, "sleep", &body);
        let expected = match target.kind() {
            Kind::Floor => Expected::Body(request.len() - body.len()..request.len()),
            Kind::Gateway => Expected::Text(format!("\"text\":\"slept {ms} ms\"")),
        };
        Self { request, serial: None, expected }
    }

    /// The next request.
    pub fn next(&mut self) -> &[u8] {
        if let Some(serial) = self.serial.clone() {
            count_up(&mut self.request[serial]);
        }
        &self.request
    }

    pub fn is_own(&self, body: &[u8]) -> bool {
        match &self.expected {
            Expected::Body(range) => body == &self.request[range.clone()],
            Expected::Part(range) => memmem::find(body, &self.request[range.clone()]).is_some(),
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

fn post(target: &Target, tool: &str, body: &str) -> Vec<u8> {
    let path = match target.kind() {
        Kind::Floor => "/echo".to_owned(),
        Kind::Gateway => format!("/v1/servers/std/tools/{tool}"),
    };
    format!(
        "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        target.address(),
        body.len()
    )
    .into_bytes()
}
