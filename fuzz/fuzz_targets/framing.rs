//! Checks that any bytes, cut anywhere, give the same lines, none over the limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trunkline_fuzz::protocol::jsonrpc::{Line, LineSplitter};

const LINE_LEN_MAX: usize = 64;

fn split(chunks: impl Iterator<Item = Vec<u8>>) -> Vec<Line> {
    let mut splitter = LineSplitter::new(LINE_LEN_MAX);
    let mut lines = vec![];
    for chunk in chunks {
        splitter.space().extend_from_slice(&chunk);
        while let Some(line) = splitter.next_line() {
            if let Line::Whole(line) = &line {
                assert!(line.len() <= LINE_LEN_MAX && !line.contains(&b'\n') && !line.is_empty());
            }
            lines.push(line);
        }
    }
    lines
}

fuzz_target!(|input: (u8, &[u8])| {
    let (cut, bytes) = input;
    let chunks = bytes.chunks(1 + usize::from(cut)).map(<[u8]>::to_vec);
    assert_eq!(split(chunks), split(std::iter::once(bytes.to_vec())));
});
