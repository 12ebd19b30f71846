//! Differences that count, and those that do not.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const TOOL: &str =
    r#"{"name":"t","inputSchema":{"type":"object","n":[1,2]},"_meta":{"a":{}},"x":1.10}"#;

#[test]
fn order_of_keys_whitespace_and_escapes_do_not_change_the_hash() {
    assert_eq!(
        canonical(TOOL),
        r#"{"_meta":{"a":{}},"inputSchema":{"n":[1,2],"type":"object"},"name":"t","x":1.10}"#
    );
    for same in [
        r#"{"x":1.10,"_meta":{"a":{}},"name":"t","inputSchema":{"n":[1,2],"type":"object"}}"#,
        concat!(
            "\t{ \"name\" :\r\n\"t\" , \"inputSchema\":{\"type\":\"object\", ",
            "\"n\" : [ 1 , 2 ] },\"_meta\":{\"a\": { } },\"x\" : 1.10 }\n"
        ),
        &TOOL.replacen(r#""name":"t""#, r#""\u006eame":"\u0074""#, 1),
    ] {
        assert_eq!(Hash::of(same), Hash::of(TOOL), "{same}");
    }
}

#[test]
fn any_other_difference_changes_the_hash() {
    for (what, with) in [
        (r#""name":"t""#, r#""name":"T""#),
        (r#""name":"t""#, r#""name":"t\u200b""#),
        (r#""name":"t""#, r#""name":"t","description":"""#),
        (r#""name":"t""#, r#""name":"t","unknown":null"#),
        (r#""name":"t""#, r#""name":"t","name":"t""#),
        ("[1,2]", "[2,1]"),
        ("[1,2]", "[1,2,[]]"),
        ("[1,2]", "[[1,2]]"),
        ("[1,2]", "[1,\"2\"]"),
        ("1.10", "1.1"),
        ("1.10", "11e-1"),
        (r#"{"a":{}}"#, r#"{"a":[]}"#),
        (r#"{"a":{}}"#, r#"{"b":{}}"#),
        (r#"{"a":{}}"#, "{}"),
        (r#","_meta":{"a":{}}"#, ""),
    ] {
        let other = TOOL.replacen(what, with, 1);
        assert_ne!(other, TOOL, "{what}");
        assert_ne!(Hash::of(&other), Hash::of(TOOL), "{other}");
    }
    // The order of duplicate names makes a difference.
    assert_ne!(Hash::of(r#"{"a":1,"a":2}"#), Hash::of(r#"{"a":2,"a":1}"#));
    // A lone surrogate cannot be decoded, and stays as written.
    assert_ne!(Hash::of(r#"["\ud800"]"#), Hash::of(r#"["\ud801"]"#));
    assert_ne!(Hash::of(r#"["\ud800"]"#), Hash::of(r#"["\\ud800"]"#));
}

#[test]
fn a_displayed_hash_can_be_parsed() {
    let hash = Hash::of("{}");
    assert_eq!(
        hash.to_string(),
        "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    );
    assert_eq!(hash.to_string().parse::<Hash>().unwrap(), hash);
    let text = hash.to_string();
    for wrong in [
        "",
        "sha256:",
        &text[7..],
        &text[..70],
        &format!("{text}0"),
        &format!("{text}00"),
        &text.to_uppercase(),
        &text.replace('f', "ü"),
    ] {
        assert!(wrong.parse::<Hash>().is_err(), "{wrong}");
    }
}

#[test]
fn deep_nesting_does_no_harm() {
    let nested = |inner: &str| format!("{}{inner}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_ne!(Hash::of(&nested("1")), Hash::of(&nested("2")));
    assert_ne!(Hash::of(&nested("\"]\"")), Hash::of(&nested("\"\"")));
    // At realistic depths keys are sorted.
    let object = |inner: &str| format!("{}{inner}{}", "[".repeat(60), "]".repeat(60));
    assert_eq!(Hash::of(&object(r#"{"a":1,"b":2}"#)), Hash::of(&object(r#"{"b":2, "a":1}"#)));
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-d\"\\\\é\u{1f600}]{0,2}", inner, 0..4)
                .prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn the_form_has_the_same_meaning_and_is_stable(value in json_value()) {
        let form = canonical(&value.to_string());
        prop_assert_eq!(&serde_json::from_str::<Value>(&form).unwrap(), &value);
        prop_assert_eq!(&canonical(&form), &form);
        prop_assert_eq!(canonical(&format!("{value:#}")), form);
    }

    #[test]
    fn another_meaning_has_another_hash(one in json_value(), other in json_value()) {
        let hash = |value: &Value| Hash::of(&value.to_string());
        prop_assert_eq!(hash(&one) == hash(&other), one == other);
    }

    #[test]
    fn any_text_has_a_form(text in "[\\[\\]{}:,\"\\\\ a1é]{0,20}") {
        canonical(&text);
    }
}
