use super::*;

fn parse(body: &str) -> Result<Batch, InvalidBatch> {
    Batch::parse(&Bytes::copy_from_slice(body.as_bytes()), 3)
}

fn refusal(body: &str) -> String {
    parse(body).unwrap_err().to_string()
}

#[test]
fn a_batch_is_read_with_its_defaults() {
    let batch = parse(r#"{"calls":[{"id":"a","server":"std","tool":"uuid"}]}"#).unwrap();
    assert_eq!((batch.on_error, batch.when_limited), (OnError::Continue, WhenLimited::Wait));
    assert_eq!((batch.timeout, batch.concurrency), (Duration::from_secs(300), 32));
    let call = &batch.calls[0];
    assert_eq!((call.timeout, call.if_dependency_fails), (None, IfDependencyFails::Fail));
    assert_eq!(call.arguments.compose(10, |_| None).unwrap(), "{}");
    assert_eq!(call.text, r#"{"id":"a","server":"std","tool":"uuid"}"#);
}

#[test]
fn dependencies_are_named_or_implied_by_references() {
    let batch = parse(
        r#"{"timeout_ms":60000,"max_concurrency":8,"on_error":"stop","when_limited":"fail",
            "calls":[
              {"id":"z","server":"log","tool":"put","arguments":{},"depends_on":["f"],
               "if_dependency_fails":"run"},
              {"id":"s","server":"search","tool":"query","arguments":{"q":"x"}},
              {"id":"f","server":"web","tool":"fetch","timeout_ms":9000,
               "arguments":{"url":{"$result":"s","pointer":"/structuredContent/items/0/url"}}}]}"#,
    )
    .unwrap();
    assert_eq!((batch.on_error, batch.when_limited), (OnError::Stop, WhenLimited::Fail));
    assert_eq!(batch.graph.dependents(1), [2]);
    assert_eq!(batch.graph.dependents(2), [0]);
    assert_eq!(batch.calls[2].timeout, Some(Duration::from_secs(9)));
    assert_eq!(batch.calls[0].if_dependency_fails, IfDependencyFails::Run);
}

#[test]
fn a_refusal_names_the_call_and_the_reason() {
    let call = |rest: &str| format!(r#"{{"calls":[{{"server":"s","tool":"t",{rest}}}]}}"#);
    for (body, part) in [
        (r#"{"calls":[]}"#.to_owned(), "from 1 to 3 calls"),
        (call(r#""id":"a b""#), "call 0: `id` must be"),
        (call(r#""id":"""#), "call 0: `id` must be"),
        (call(r#""id":"a","depends_on":["b"]"#), "call 0: `depends_on` names `b`"),
        (call(r#""id":"a","depends_on":["a"]"#), "wait for each other: a"),
        (call(r#""id":"a","arguments":[]"#), "call 0: `arguments` must be an object"),
        (call(r#""id":"a","timeout_ms":0"#), "call 0: `timeout_ms` must be"),
        (call(r#""id":"a","depend_on":[]"#), "call 0: unknown field `depend_on`"),
        (call(r#""id":"a","arguments":{"x":{"$result":"b","pointer":""}}"#), "names `b`"),
        (r#"{"timeout_ms":0,"calls":[]}"#.to_owned(), "`timeout_ms` must be from 1"),
        (r#"{"max_concurrency":1001,"calls":[]}"#.to_owned(), "`max_concurrency` must be from 1"),
        (r#"{"on_error":"ignore","calls":[]}"#.to_owned(), "unknown variant `ignore`"),
        ("[]".to_owned(), "not a batch"),
    ] {
        let refusal = refusal(&body);
        assert!(refusal.contains(part), "{body}: {refusal}");
    }
    let twice = r#"{"calls":[{"id":"a","server":"s","tool":"t"},
                             {"id":"a","server":"s","tool":"t"}]}"#;
    assert_eq!(refusal(twice), "call 1: the id `a` is used by an earlier call too");
}

#[test]
fn calls_and_nesting_are_bounded() {
    let calls: Vec<String> =
        (0..4).map(|id| format!(r#"{{"id":"{id}","server":"s","tool":"t"}}"#)).collect();
    let body = format!(r#"{{"calls":[{}]}}"#, calls.join(","));
    assert_eq!(parse(&body).unwrap_err(), InvalidBatch::TooManyCalls { max: 3 });
    let deep = format!(r#"{{"calls":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(parse(&deep).unwrap_err(), InvalidBatch::TooDeep);
}

#[test]
fn edges_are_bounded() {
    let ids = |count: usize| vec!["\"b\""; count].join(",");
    let body = |count: usize| {
        let waiting = |id| {
            format!(r#"{{"id":"{id}","server":"s","tool":"t","depends_on":[{}]}}"#, ids(count))
        };
        let last = r#"{"id":"b","server":"s","tool":"t"}"#;
        format!(r#"{{"calls":[{},{},{last}]}}"#, waiting("a"), waiting("c"))
    };
    assert!(parse(&body(10_000)).is_ok());
    let refusal = refusal(&body(10_001));
    assert!(refusal.contains("an array of at most 10000 entries"), "{refusal}");
    let references = vec![r#"{"$result":"b","pointer":""}"#; 20_001].join(",");
    let body = format!(
        r#"{{"calls":[{{"id":"a","server":"s","tool":"t","arguments":{{"x":[{references}]}}}},
                      {{"id":"b","server":"s","tool":"t"}}]}}"#
    );
    assert_eq!(parse(&body).unwrap_err(), InvalidBatch::TooManyEdges);
}
