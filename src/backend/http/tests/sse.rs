//! Checks the decoder with examples, and with streams that are cut at any place.

use std::time::Duration;

use proptest::prelude::*;

use super::{Item, SseDecoder};

fn decode<'a>(decoder: &mut SseDecoder, chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Item> {
    let mut items = vec![];
    for chunk in chunks {
        decoder.push(chunk, &mut items);
    }
    items
}

fn messages(text: &str) -> Vec<String> {
    let items = decode(&mut SseDecoder::new(100), [text.as_bytes()]);
    let text = |item| match item {
        Item::Message(data) => String::from_utf8(data).unwrap(),
        Item::Endpoint(data) => format!("endpoint {}", String::from_utf8(data).unwrap()),
        Item::TooLarge => "too large".to_owned(),
    };
    items.into_iter().map(text).collect()
}

#[test]
fn events_end_with_an_empty_line_whatever_ends_a_line() {
    for end in ["\n", "\r", "\r\n"] {
        let text = format!("data: a{end}data:b{end}{end}: hello{end}data{end}data{end}{end}");
        assert_eq!(messages(&text), ["a\nb", "\n"]);
    }
    assert_eq!(messages("data: a\r\n\r\ndata: b\n\r\n"), ["a", "b"]);
}

#[test]
fn an_incomplete_event_does_not_come_out() {
    assert_eq!(messages("data: a\n"), [""; 0]);
    assert_eq!(messages("data: a"), [""; 0]);
}

#[test]
fn only_messages_with_data_come_out() {
    assert_eq!(messages("\u{feff}data: a\n\n"), ["a"]);
    assert_eq!(messages("\u{feff}\n\u{feff}data: a\n\n"), [""; 0]);
    assert_eq!(messages("event: message\ndata: a\n\n"), ["a"]);
    assert_eq!(messages("event: other\ndata: a\n\ndata: b\n\n"), ["b"]);
    assert_eq!(messages("event: endpoint\ndata: a\n\ndata: b\n\n"), ["endpoint a", "b"]);
    assert_eq!(messages("data:\n\ndata: \n\nid: 1\n\n"), [""; 0]);
    assert_eq!(messages("datax: a\n data: a\nother: b\ndata:  c\n\n"), [" c"]);
}

#[test]
fn the_last_id_and_retry_are_kept() {
    let mut decoder = SseDecoder::new(100);
    decode(&mut decoder, [&b"id: 1\nretry: 500\ndata:\n\nid: 2\ndata: a\n"[..]]);
    // The second event is not complete.
    assert_eq!((decoder.last_id(), decoder.retry()), (Some("1"), Some(Duration::from_millis(500))));
    decode(&mut decoder, [&b"\nretry: 5x\nid: 3\0\n\n"[..]]);
    assert_eq!((decoder.last_id(), decoder.retry()), (Some("2"), Some(Duration::from_millis(500))));
    decode(&mut decoder, [&b"id: 4\ndata: cut"[..]]);
    decoder.restart();
    assert_eq!(decode(&mut decoder, [&b"data: b\n\n"[..]]), [Item::Message(b"b".to_vec())]);
    assert_eq!(decoder.last_id(), Some("2"));
    decode(&mut decoder, [&b"retry: 99999999999999999999999\nid\n\n"[..]]);
    assert_eq!((decoder.last_id(), decoder.retry()), (None, Some(Duration::from_secs(3600))));
}

#[test]
fn an_event_over_the_limit_is_reported_at_once_and_then_skipped() {
    let mut decoder = SseDecoder::new(10);
    assert_eq!(decode(&mut decoder, [&[b'x'; 1000][..]]), [Item::TooLarge]);
    assert!(decoder.line.capacity() <= 100);
    let rest = &b"xx\ndata: more\n\ndata: a\n\n"[..];
    assert_eq!(decode(&mut decoder, [rest]), [Item::Message(b"a".to_vec())]);
    let many_lines = b"data: 12345\ndata: 12345\ndata: 1\n\ndata: b\n\n";
    let items = decode(&mut decoder, [&many_lines[..]]);
    assert_eq!(items, [Item::TooLarge, Item::Message(b"b".to_vec())]);
    // A comment may have any length.
    let comment = [b":".repeat(1000), b"\ndata: c\n\n".to_vec()].concat();
    assert_eq!(decode(&mut decoder, [&comment[..]]), [Item::Message(b"c".to_vec())]);
}

proptest! {
    #[test]
    fn any_chunking_gives_the_same_events(
        text in "(data:|data: |id: |retry: |event: |:|[a-c\u{feff}]|[0-9]|\n|\r|\r\n|\n\n){0,60}",
        cuts in prop::collection::vec(1_usize..8, 0..40),
    ) {
        let mut whole = SseDecoder::new(12);
        let expected = decode(&mut whole, [text.as_bytes()]);
        let mut decoder = SseDecoder::new(12);
        let (mut rest, mut items) = (text.as_bytes(), vec![]);
        for cut in cuts {
            let (chunk, after) = rest.split_at(cut.min(rest.len()));
            items.extend(decode(&mut decoder, [chunk]));
            rest = after;
        }
        items.extend(decode(&mut decoder, [rest]));
        prop_assert_eq!(items, expected);
        prop_assert_eq!(decoder.last_id(), whole.last_id());
        prop_assert_eq!(decoder.retry(), whole.retry());
    }
}
