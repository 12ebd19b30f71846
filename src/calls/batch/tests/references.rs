use super::*;

/// Reads arguments beside the calls `a` and `b`.
fn arguments(text: &str) -> Result<Arguments, InvalidReference> {
    let index_of = |id: &str| ["a", "b"].iter().position(|known| *known == id);
    Arguments::parse(Bytes::copy_from_slice(text.as_bytes()), index_of)
}

fn compose(text: &str, results: [&str; 2]) -> Result<String, NotComposed> {
    let composed = arguments(text).unwrap().compose(10_000, |call| Some(results[call]));
    composed.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
}

#[test]
fn arguments_without_references_stay_byte_for_byte_and_are_not_copied() {
    let text = Bytes::from_static(b" {\"text\" : \"a\\u0024\", \"n\":1.0 } ");
    let arguments = Arguments::parse(text.clone(), |_| None).unwrap();
    assert_eq!(arguments.compose(100, |_| None).unwrap(), text);
    let plain = Bytes::from_static(b"{\"n\":1}");
    let arguments = Arguments::parse(plain.clone(), |_| None).unwrap();
    assert_eq!(arguments.compose(100, |_| None).unwrap().as_ptr(), plain.as_ptr());
}

#[test]
fn a_reference_is_replaced_by_the_bytes_of_the_result() {
    let results = [r#"{"x": [1.50, "\u00e9"]}"#, "7"];
    let composed = compose(
        r#"{"u":{"$result":"a","pointer":"/x/1"}, "v":[{"pointer":"","$result":"b"},0]}"#,
        results,
    );
    assert_eq!(composed.unwrap(), r#"{"u":"\u00e9", "v":[7,0]}"#);
    let whole = compose(r#"{"$result":"a","pointer":""}"#, results);
    assert_eq!(whole.unwrap(), results[0]);
    let escaped = compose(r#"{"u":{"\u0024result":"\u0061","point\u0065r":"/x/0"}}"#, results);
    assert_eq!(escaped.unwrap(), r#"{"u":1.50}"#);
}

#[test]
fn what_a_literal_holds_is_no_reference() {
    let composed = compose(
        r#"{"schema":{"$literal":{"$result":"nobody","more":[{"$literal":1}]}},"n":2}"#,
        ["0", "0"],
    );
    assert_eq!(
        composed.unwrap(),
        r#"{"schema":{"$result":"nobody","more":[{"$literal":1}]},"n":2}"#
    );
}

#[test]
fn text_from_a_result_is_never_read_as_a_reference() {
    let result = r#"{"x":{"$result":"b","pointer":""}}"#;
    let composed = compose(r#"{"u":{"$result":"a","pointer":"/x"}}"#, [result, "7"]);
    assert_eq!(composed.unwrap(), r#"{"u":{"$result":"b","pointer":""}}"#);
}

#[test]
fn a_pointer_that_misses_names_the_call() {
    let missing = compose(r#"{"u":{"$result":"b","pointer":"/x"}}"#, ["{}", "{}"]);
    assert_eq!(missing, Err(NotComposed::Missing { call: 1 }));
}

#[test]
fn composed_arguments_are_bounded() {
    let text = r#"{"u":{"$result":"a","pointer":""},"v":{"$result":"a","pointer":""}}"#;
    let long = format!("\"{}\"", "x".repeat(6000));
    assert_eq!(compose(text, [&long, "0"]), Err(NotComposed::TooLarge));
}

#[test]
fn arguments_without_references_are_bounded_too() {
    let plain = arguments(r#"{"n":1}"#).unwrap();
    assert_eq!(plain.compose(6, |_| None), Err(NotComposed::TooLarge));
    assert!(plain.compose(7, |_| None).is_ok());
}

#[test]
fn the_bytes_that_references_search_are_bounded() {
    let long = format!(r#"{{"x":"{}","y":1}}"#, "x".repeat(READ_MAX / 2));
    let text = |count| {
        let references = [r#"{"$result":"a","pointer":"/y"}"#].repeat(count);
        format!(r#"{{"v":[{}]}}"#, references.join(","))
    };
    assert_eq!(compose(&text(1), [&long, "0"]).unwrap(), r#"{"v":[1]}"#);
    assert_eq!(compose(&text(3), [&long, "0"]), Err(NotComposed::TooMuchRead));
}

#[test]
fn malformed_references_are_refused() {
    use InvalidReference::{Literal, Result, TooDeep, UnknownCall};
    for (text, error) in [
        (r#"{"u":{"$result":"a"}}"#, Result),
        (r#"{"u":{"$result":"a","pointer":"","more":1}}"#, Result),
        (r#"{"u":{"$result":"a","$result":"a"}}"#, Result),
        (r#"{"u":{"$result":5,"pointer":""}}"#, Result),
        (r#"{"u":{"$result":"a","pointer":{}}}"#, Result),
        (r#"{"u":{"$result":"c","pointer":""}}"#, UnknownCall("c".to_owned())),
        (r#"{"u":{"$literal":1,"more":2}}"#, Literal),
        (r#"{"u":{"more":2,"$literal":1}}"#, Literal),
        (
            r#"{"u":{"$result":"a","pointer":"x"}}"#,
            InvalidReference::Pointer(InvalidPointer::NoSlash),
        ),
    ] {
        assert_eq!(arguments(text).unwrap_err(), error, "{text}");
    }
    let deep = format!("{}\"$\"{}", "[".repeat(65), "]".repeat(65));
    assert_eq!(arguments(&deep).unwrap_err(), TooDeep);
}
