//! Checks that any stream of events, cut anywhere, gives the same messages, none over the limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trunkline_fuzz::sse::{Item, SseDecoder};

const DATA_LEN_MAX: usize = 64;

fn decode<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> (Vec<Item>, SseDecoder) {
    let mut decoder = SseDecoder::new(DATA_LEN_MAX);
    let mut items = vec![];
    for chunk in chunks {
        decoder.push(chunk, &mut items);
    }
    (items, decoder)
}

fuzz_target!(|input: (u8, &[u8])| {
    let (cut, bytes) = input;
    let (items, decoder) = decode(bytes.chunks(1 + usize::from(cut)));
    let (expected, whole) = decode(std::iter::once(bytes));
    assert_eq!(items, expected);
    assert_eq!((decoder.last_id(), decoder.retry()), (whole.last_id(), whole.retry()));
    for item in items {
        if let Item::Message(data) = item {
            assert!(!data.is_empty() && data.len() <= DATA_LEN_MAX);
        }
    }
});
