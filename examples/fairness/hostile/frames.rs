//! Frames of HTTP/2 by hand, for what no client would send.

use crate::target::Tenant;

/// The longest payload that every server accepts.
pub const PAYLOAD_MAX: usize = 16 * 1024;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
/// A type that nobody knows, and everybody has to ignore.
const UNKNOWN: u8 = 0xfa;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The bytes of one connection.
#[derive(Default)]
pub struct Frames {
    bytes: Vec<u8>,
    streams: u32,
}

impl Frames {
    /// Begins a connection whose streams have this window.
    pub fn begin(window: u32) -> Self {
        let bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let mut frames = Self { bytes, streams: 0 };
        let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
        frames.frame(SETTINGS, 0, 0, &settings);
        frames
    }

    /// Asks for a page.
    pub fn get(&mut self, path: &str, key: Option<&str>) {
        let fields = fields("GET", path, key);
        let stream = self.next_stream();
        self.frame(HEADERS, END_STREAM | END_HEADERS, stream, &fields);
    }

    /// Calls a tool. Without its end, the gateway waits for more of the body.
    pub fn call(&mut self, tenant: &Tenant, path: &str, body: &str, is_whole: bool) {
        let fields = fields("POST", path, Some(&tenant.key));
        let stream = self.next_stream();
        self.frame(HEADERS, END_HEADERS, stream, &fields);
        self.frame(DATA, if is_whole { END_STREAM } else { 0 }, stream, body.as_bytes());
    }

    /// Begins a head with a field that goes on for so many more frames, and has no end.
    pub fn half_head(&mut self, frames: usize) {
        let mut fields = fields("GET", "/healthz", None);
        // A name of one letter, and the length of its value: some megabytes.
        fields.extend([0, 1, b'x', 0x7f, 0xff, 0xff, 0x7f]);
        fields.resize(PAYLOAD_MAX, b'a');
        let stream = self.next_stream();
        self.frame(HEADERS, 0, stream, &fields);
        for _ in 0..frames {
            self.frame(CONTINUATION, 0, stream, &[b'a'; PAYLOAD_MAX]);
        }
    }

    /// Asks for a page so often that the header table is full of its path, with so much between
    /// that no two entries share a buffer.
    pub fn fill_header_table(&mut self, between: usize) {
        const ENTRIES: usize = 4096 / (":path/healthz".len() + 32);
        for _ in 0..ENTRIES {
            let mut fields = fields("GET", "", None);
            fields.extend(field(0x44, "/healthz"));
            let stream = self.next_stream();
            self.frame(HEADERS, END_STREAM | END_HEADERS, stream, &fields);
            self.frame(UNKNOWN, 0, 0, &vec![0; between]);
        }
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn next_stream(&mut self) -> u32 {
        self.streams += 1;
        2 * self.streams - 1
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let len = (payload.len() as u32).to_be_bytes();
        self.bytes.extend([len[1], len[2], len[3], kind, flags]);
        self.bytes.extend(stream.to_be_bytes());
        self.bytes.extend(payload);
    }
}

/// Returns the fields of a request; without a path if that is empty.
fn fields(method: &str, path: &str, key: Option<&str>) -> Vec<u8> {
    let mut all = vec![];
    let known = [(2, method), (6, "http"), (1, "localhost"), (4, path)];
    for (name, value) in known.into_iter().filter(|(_, value)| !value.is_empty()) {
        all.extend(field(name, value));
    }
    if let Some(key) = key {
        all.extend([0, 9]);
        all.extend(b"x-api-key");
        all.push(key.len() as u8);
        all.extend(key.as_bytes());
    }
    all
}

/// Returns a field with a name of the static table.
fn field(name: u8, value: &str) -> Vec<u8> {
    [&[name, value.len() as u8], value.as_bytes()].concat()
}
