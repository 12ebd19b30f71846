use super::*;
use crate::protocol::jsonrpc::{Message, decode};
use proptest::prelude::*;

#[test]
fn a_frame_is_one_line_even_if_its_body_has_line_breaks() {
    let frame = Frame::request(5, "tools/call", &["{\n\"a\":", "\r\n1}"]);
    assert_eq!(
        std::str::from_utf8(&frame.bytes()).unwrap(),
        "{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"tools/call\",\"params\":{ \"a\":  1}}\n"
    );
}

#[test]
fn a_long_object_is_written_as_a_short_one_is_and_shared_until_then() {
    for len in [10, SHORT_OBJECT + 10] {
        let text = "x".repeat(len);
        let body = Bytes::from(format!("{{\"a\":\n\"{text}\"}}"));
        let object = RawObject::parse(body).unwrap();
        let frame = Frame::request_around(5, "m", &["{\"o\":"], &object, &[",\"n\":\n1}"]);
        assert_eq!(frame.inside.is_some(), len > SHORT_OBJECT);
        let expected = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"m\",\"params\":{{\"o\":{{\"a\": \
             \"{text}\"}},\"n\": 1}}}}\n"
        );
        assert_eq!(frame.byte_len(), expected.len());
        assert_eq!(frame.bytes(), expected.as_bytes());
        if let Some((_, inside)) = &frame.inside {
            assert_eq!(inside.0.as_ptr(), object.0.as_ptr());
        }
        assert_eq!(frame.into_bytes(), expected.as_bytes());
    }
}

#[test]
fn answers_echo_the_id() {
    let id = RawValue::from_string("1.10".into()).unwrap();
    let frame = Frame::result(&id, &serde_json::json!({"ok": true}));
    let bytes = frame.bytes();
    let Ok(Message::Response { id, outcome: Ok(result) }) = decode(&bytes) else { panic!() };
    assert_eq!((id.get(), result.get()), ("1.10", r#"{"ok":true}"#));
}

#[test]
fn an_error_without_a_readable_id_answers_null() {
    let frame = Frame::error(None, -32700, "no \"JSON\"", None);
    assert_eq!(
        std::str::from_utf8(&frame.bytes()).unwrap(),
        concat!(
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no \"JSON\""}}"#,
            "\n"
        )
    );
}

fn parse(text: &str) -> Result<RawObject, RawError> {
    RawObject::parse(Bytes::copy_from_slice(text.as_bytes()))
}

#[test]
fn everything_but_line_breaks_stays_byte_for_byte() {
    let text =
        "{\"n\": 12345678901234567890123,\t\"x\":1.10, \"z\":0,\"a\":{\"\\u00e9\":\"\\n é\"}}";
    assert_eq!(parse(text).unwrap().as_str(), text);
    assert_eq!(parse("\n {\"a\":\r\n1}\n").unwrap().as_str(), "{\"a\":  1}");
}

#[test]
fn a_hundred_thousand_levels_are_refused() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(parse(&deep), Err(RawError::TooDeep));
}

#[test]
fn the_limit_is_exact_and_brackets_in_strings_do_not_count() {
    let nested = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    assert!(parse(&nested(DEPTH_MAX - 1)).is_ok());
    assert_eq!(parse(&nested(DEPTH_MAX)), Err(RawError::TooDeep));
    let text = format!("{{\"a\":\"\\\"{}\"}}", "[".repeat(1000));
    assert!(parse(&text).is_ok());
}

#[test]
fn other_values_are_named() {
    for (text, name) in [
        ("[]", "an array"),
        ("\"x\"", "a string"),
        ("null", "null"),
        ("1", "a number"),
        ("true", "a boolean"),
    ] {
        assert_eq!(parse(text), Err(RawError::NotAnObject(name)));
    }
    assert!(matches!(parse("{\"a\":1} {}"), Err(RawError::NotJson(_))));
    assert!(matches!(parse("{\"a\":\"\n\"}"), Err(RawError::NotJson(_))));
    assert!(matches!(parse(""), Err(RawError::NotJson(_))));
}

proptest! {
    /// Any accepted body is one line and means the same; a second message stays inside the
    /// first.
    #[test]
    fn accepted_bodies_are_one_line_and_mean_the_same(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "{", "}", "[", "]", "\"", "\\", ":", ",", "\n", "\r", " ", "1", "\"a\"", "\"a\":",
            "\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}\n", "\\n", "é",
        ]), 0..40)
    ) {
        let text = format!("{{{}}}", pieces.concat());
        if let Ok(object) = parse(&text) {
            prop_assert!(!object.as_str().contains(['\n', '\r']));
            let before: serde_json::Value = serde_json::from_str(&text).unwrap();
            let after: serde_json::Value = serde_json::from_str(object.as_str()).unwrap();
            prop_assert_eq!(before, after);
        }
    }

    #[test]
    fn depth_agrees_with_a_recursive_count(value in json_value()) {
        let text = value.to_string();
        let depth = depth_of(&value);
        prop_assert!(!deeper_than(text.as_bytes(), depth));
        prop_assert!(depth == 0 || deeper_than(text.as_bytes(), depth - 1));
    }
}

fn depth_of(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or(0),
        serde_json::Value::Object(members) => 1 + members.values().map(depth_of).max().unwrap_or(0),
        _ => 0,
    }
}

fn json_value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<i64>().prop_map(serde_json::Value::from),
        "[\\[\\]{}\"\\\\a]{0,6}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(6, 64, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::hash_map("[a\"{]{0,3}", inner, 0..4)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

fn feed(splitter: &mut LineSplitter, chunk: &[u8], lines: &mut Vec<Line>) {
    splitter.space().extend_from_slice(chunk);
    while let Some(line) = splitter.next_line() {
        lines.push(line);
    }
}

fn whole(text: &str) -> Line {
    Line::Whole(Bytes::copy_from_slice(text.as_bytes()))
}

#[test]
fn lines_arriving_together_or_split_are_all_kept() {
    let mut splitter = LineSplitter::new(100);
    let mut lines = vec![];
    feed(&mut splitter, b"one\ntwo\r\n\n  \nthr", &mut lines);
    assert_eq!(lines, [whole("one"), whole("two")]);
    feed(&mut splitter, b"", &mut lines);
    feed(&mut splitter, b"ee\n", &mut lines);
    assert_eq!(lines[2..], [whole("three")]);
}

#[test]
fn a_line_of_exactly_the_limit_is_kept_and_one_more_byte_is_not() {
    let mut splitter = LineSplitter::new(4);
    let mut lines = vec![];
    feed(&mut splitter, b"1234\n12345\nx\n", &mut lines);
    assert_eq!(lines, [whole("1234"), Line::TooLong { kind: LineKind::Unknown }, whole("x")]);
}

#[test]
fn the_id_of_an_overlong_line_is_found_in_bounded_memory() {
    let mut splitter = LineSplitter::new(1000);
    let mut lines = vec![];
    feed(&mut splitter, b"{\"result\":\"", &mut lines);
    for _ in 0..1000 {
        feed(&mut splitter, &[b'x'; 10_000], &mut lines);
        assert!(splitter.buffer.capacity() <= 2 * READ_LEN);
    }
    assert!(splitter.skipped_len() > 9_000_000);
    feed(&mut splitter, b"\",\"id\":42}\nnext\n", &mut lines);
    assert_eq!(lines, [Line::TooLong { kind: LineKind::AnswerTo(42) }, whole("next")]);
}

proptest! {
    #[test]
    fn any_chunking_gives_the_same_lines(
        texts in prop::collection::vec("[a-z{}\"]{0,30}", 0..20),
        cuts in prop::collection::vec(1..9_usize, 1..60),
    ) {
        let stream: String = texts.iter().map(|text| format!("{text}\n")).collect();
        let stream = stream.into_bytes();
        let mut whole_lines = vec![];
        feed(&mut LineSplitter::new(20), &stream, &mut whole_lines);

        let mut splitter = LineSplitter::new(20);
        let mut cut_lines = vec![];
        let mut rest = &stream[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break; }
            let (chunk, tail) = rest.split_at((*cut).min(rest.len()));
            feed(&mut splitter, chunk, &mut cut_lines);
            rest = tail;
        }
        prop_assert_eq!(whole_lines, cut_lines);
    }
}

#[test]
fn members_are_counted_in_the_outermost_object_alone() {
    let object = |members: usize, inside: &str| {
        let members: Vec<String> = (0..members).map(|n| format!("\"n{n}\":{inside}")).collect();
        format!("{{{}}}", members.join(","))
    };
    let inner = object(20, "[1,2,\"}{,\\\",\"]");
    assert_eq!(check_shape(object(10, &inner).as_bytes(), 3, 10), Ok(()));
    let over = object(11, &inner);
    assert_eq!(check_shape(over.as_bytes(), 3, 10), Err(ShapeExcess::Members));
    assert_eq!(check_shape(over.as_bytes(), 2, 10), Err(ShapeExcess::Depth));
    assert_eq!(check_shape(b"{}", 1, 1), Ok(()));
}
