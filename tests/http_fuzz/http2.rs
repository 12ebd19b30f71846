//! Scripts of HTTP/2: frames, in and out of order.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::http1::{NAMES, PATHS, VALUES, body};
use crate::hunt::{Script, Step, noise, pick};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEAD_LEN: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status: 500` in the static table of HPACK.
const STATUS_500: u8 = 0x80 | 14;

pub fn script(rng: &mut SmallRng) -> Script {
    let mut bytes = PREFACE.to_vec();
    bytes.extend(settings(rng));
    let mut steps = vec![];
    let mut stream = 1;
    for _ in 0..rng.random_range(1..12) {
        match rng.random_range(0..12) {
            0..5 => {
                bytes.extend(request(rng, stream));
                stream += 2;
            }
            5 => bytes.extend(reset(rng, stream)),
            6 => bytes.extend(window_update(rng, stream)),
            7 => bytes.extend(settings(rng)),
            8 => bytes.extend(frame(PING, rng.random_range(0..2), 0, &noise(rng, 9))),
            9 => {
                let (kind, flags) = (rng.random_range(0..12), rng.random());
                let id = rng.random_range(0..stream + 3);
                bytes.extend(frame(kind, flags, id, &noise(rng, 40)));
            }
            10 => {
                let kind = pick(rng, &[PRIORITY, GOAWAY, CONTINUATION, DATA]);
                bytes.extend(frame(kind, 0, stream, &noise(rng, 20)));
            }
            _ => {
                let at = rng.random_range(0..bytes.len());
                bytes[at] = rng.random();
            }
        }
        if rng.random_ratio(1, 3) {
            steps.push(Step::Send(std::mem::take(&mut bytes)));
            steps.push(Step::Pause(Duration::from_millis(rng.random_range(0..5))));
            bytes = frame(PING, 0, 0, &[0; 8]);
        }
        if rng.random_ratio(1, 6) {
            steps.push(Step::Read);
        }
    }
    steps.push(Step::Send(bytes));
    match rng.random_range(0..8) {
        0 => steps.push(Step::Abort),
        1..5 => steps.push(Step::Read),
        _ => {}
    }
    Script { steps, has_status_500 }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![len[1], len[2], len[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns settings: windows of nothing, of the largest size, too large; tiny tables and frames.
fn settings(rng: &mut SmallRng) -> Vec<u8> {
    let mut payload = vec![];
    for _ in 0..rng.random_range(0..4) {
        let name: u16 = pick(rng, &[1, 2, 3, 4, 4, 4, 5, 6, 8, 99]);
        let value: u32 = pick(rng, &[0, 0, 1, 100, 16_384, 65_535, 0x7fff_ffff, 0xffff_ffff]);
        payload.extend(name.to_be_bytes());
        payload.extend(value.to_be_bytes());
    }
    frame(SETTINGS, pick(rng, &[0, 0, 0, 1]), 0, &payload)
}

/// Returns a request, its body in frames, perhaps without an end, perhaps reset.
fn request(rng: &mut SmallRng, stream: u32) -> Vec<u8> {
    let headers = headers(rng);
    let has_body = rng.random_ratio(3, 4);
    let end = if has_body { 0 } else { END_STREAM };
    let mut bytes = vec![];
    if rng.random_ratio(1, 5) {
        let (first, rest) = headers.split_at(rng.random_range(0..headers.len()));
        bytes.extend(frame(HEADERS, end, stream, first));
        for piece in rest.chunks(rng.random_range(1..100)) {
            bytes.extend(frame(CONTINUATION, 0, stream, piece));
        }
        bytes.extend(frame(CONTINUATION, END_HEADERS, stream, &[]));
    } else {
        bytes.extend(frame(HEADERS, end | END_HEADERS, stream, &headers));
    }
    if has_body {
        // Within the window that every peer has at first.
        let body = body(rng);
        for piece in body[..body.len().min(60_000)].chunks(rng.random_range(1..16_384)).take(50) {
            bytes.extend(frame(DATA, 0, stream, piece));
        }
        if rng.random_ratio(4, 5) {
            bytes.extend(frame(DATA, END_STREAM, stream, &[]));
        }
    }
    if rng.random_ratio(1, 6) {
        bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    bytes
}

fn reset(rng: &mut SmallRng, stream: u32) -> Vec<u8> {
    let id = rng.random_range(0..stream + 2);
    let code: u32 = rng.random_range(0..20);
    frame(RST_STREAM, 0, id, &code.to_be_bytes()[..pick(rng, &[4, 4, 4, 3])])
}

fn window_update(rng: &mut SmallRng, stream: u32) -> Vec<u8> {
    let id = pick(rng, &[0, 1, stream]);
    let by: u32 = pick(rng, &[0, 1, 100, 0x7fff_ffff, 0xffff_ffff]);
    frame(WINDOW_UPDATE, 0, id, &by.to_be_bytes())
}

/// Returns a block of headers, each written out in full.
fn headers(rng: &mut SmallRng) -> Vec<u8> {
    let mut block = vec![];
    let mut header = |name: &str, value: &str| {
        block.push(0);
        write_text(&mut block, name);
        write_text(&mut block, value);
    };
    for (name, values) in [
        (":method", &["POST", "POST", "GET", "DELETE", "CONNECT", ""][..]),
        (":scheme", &["http", "http", "https", "ftp"]),
        (":authority", &["localhost", "localhost", "evil.example", "["]),
        (":path", PATHS),
    ] {
        if rng.random_ratio(19, 20) {
            header(name, pick(rng, values));
        }
    }
    for _ in 0..pick(rng, &[0, 1, 2, 4, 100]) {
        header(pick(rng, NAMES), pick(rng, VALUES));
    }
    if rng.random_ratio(1, 10) {
        header(pick(rng, &[":path", ":status", "Upper", "connection", "te", ""]), "x");
    }
    if rng.random_ratio(1, 10) {
        block.extend(noise(rng, 30));
    }
    block
}

/// Writes a text with its length, as HPACK does without Huffman coding.
fn write_text(block: &mut Vec<u8>, text: &str) {
    let mut len = text.len();
    if len < 127 {
        block.push(len as u8);
    } else {
        block.push(127);
        len -= 127;
        while len >= 128 {
            block.push((len % 128) as u8 | 128);
            len /= 128;
        }
        block.push(len as u8);
    }
    block.extend(text.bytes());
}

/// Looks at the first header of each response.
fn has_status_500(mut bytes: &[u8]) -> bool {
    while let Some((head, rest)) = bytes.split_at_checked(HEAD_LEN) {
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if head[3] == HEADERS && rest.first() == Some(&STATUS_500) {
            return true;
        }
        bytes = rest.get(len..).unwrap_or_default();
    }
    false
}
