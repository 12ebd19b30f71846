use bytes::Bytes;
use serde_json::{Value, json};

use super::arguments::ArgumentsError;
use super::*;
use crate::config::ResultOverride;
use crate::protocol::jsonrpc::RawObject;

fn changed(changes: Value) -> ChangedTool {
    let mut with_defaults =
        json!({"name": null, "description": null, "arguments": {}, "result": {}});
    for (name, value) in changes.as_object().unwrap() {
        with_defaults[name] = value.clone();
    }
    let arguments = with_defaults["arguments"].as_object_mut().unwrap();
    for argument in arguments.values_mut() {
        let hidden = argument.get("hidden").cloned().unwrap_or(json!(false));
        argument["hidden"] = hidden;
    }
    ChangedTool::new("web", "fetch", &serde_json::from_value(with_defaults).unwrap())
}

fn fixed() -> ChangedTool {
    changed(json!({"name": "read", "arguments": {
        "timeout": {"fixed": 10}, "render": {"hidden": true}, "url": {"description": "Ours"}}}))
}

fn rewritten(tool: &ChangedTool, arguments: &str) -> Result<String, ArgumentsError> {
    let arguments = RawObject::parse(Bytes::copy_from_slice(arguments.as_bytes())).unwrap();
    tool.rewrite_arguments(arguments).map(|arguments| arguments.as_str().to_owned())
}

#[test]
fn fixed_arguments_are_added_and_the_others_stay_as_they_are() {
    let tool = fixed();
    assert_eq!(rewritten(&tool, "{}").unwrap(), r#"{"timeout":10}"#);
    let given = r#"{"url": "x", "n": 1.50,"deep":{"timeout":1}}"#;
    let expected = r#"{"url":"x","n":1.50,"deep":{"timeout":1},"timeout":10}"#;
    assert_eq!(rewritten(&tool, given).unwrap(), expected);
    let described = changed(json!({"arguments": {"url": {"description": "Ours"}}}));
    let odd = r#"{ "url" : 1,"url":2 }"#;
    assert_eq!(rewritten(&described, odd).unwrap(), odd);
}

#[test]
fn no_spelling_of_a_name_gets_past() {
    let tool = fixed();
    for (given, error) in [
        (r#"{"timeout":1}"#, ArgumentsError::NotThere("timeout".into())),
        (r#"{"\u0074imeout":10}"#, ArgumentsError::NotThere("timeout".into())),
        (r#"{"render":true}"#, ArgumentsError::NotThere("render".into())),
        (r#"{"TimeOut":1}"#, ArgumentsError::CaseVariant("TimeOut".into())),
        ("{\"t\u{131}meout\":1}", ArgumentsError::CaseVariant("t\u{131}meout".into())),
    ] {
        assert_eq!(rewritten(&tool, given).unwrap_err(), error, "{given}");
    }
    let twice = rewritten(&tool, r#"{"url":1,"url":2}"#).unwrap_err();
    assert!(matches!(twice, ArgumentsError::Members(_)), "{twice}");
}

#[test]
fn a_definition_shows_what_callers_may_give() {
    let definition = r#"{"name":"fetch","title":"Fetch","inputSchema":{"type":"object","x":1.50,
        "properties":{"url":{"type":"string"},"timeout":{"type":"integer"},"render":true},
        "required":["url","timeout"]},"outputSchema":{"type":"object"}}"#;
    let listed = fixed().rewrite_definition(definition).unwrap();
    assert!(listed.contains("\"x\":1.50"), "{listed}");
    assert_eq!(
        serde_json::from_str::<Value>(&listed).unwrap(),
        json!({"name": "read", "title": "Fetch", "inputSchema": {"type": "object", "x": 1.5,
            "properties": {"url": {"type": "string", "description": "Ours"}},
            "required": ["url"]}, "outputSchema": {"type": "object"}})
    );
    let cut = changed(json!({"description": "D", "result": {"pointer": "/a"}}));
    let listed: Value = serde_json::from_str(&cut.rewrite_definition(definition).unwrap()).unwrap();
    assert_eq!((&listed["name"], &listed["description"]), (&json!("web__fetch"), &json!("D")));
    assert!(listed.get("outputSchema").is_none(), "{listed}");
    assert!(
        fixed().rewrite_definition(r#"{"inputSchema":{"properties":{"a":1,"a":2}}}"#).is_none()
    );
}

fn result(max_bytes: Option<usize>, pointer: Option<&str>) -> ResultChange {
    ResultChange::new(&ResultOverride { max_bytes, pointer: pointer.map(str::to_owned) })
}

fn applied(change: &ResultChange, result: &Value, kept: Option<&str>) -> Value {
    serde_json::from_str(&change.apply(&result.to_string(), kept)).unwrap()
}

#[test]
fn a_pointer_leads_to_the_part_that_callers_get() {
    let full = json!({"resultType": "complete", "content": [{"type": "text", "text": "long"}],
        "structuredContent": {"text": "short", "list": [1.5]}, "_meta": {"a": 1}});
    let text = |pointer| {
        let result = applied(&result(None, Some(pointer)), &full, None);
        assert!(result.get("structuredContent").is_none(), "{result}");
        assert_eq!(result["resultType"], "complete");
        result["content"][0]["text"].clone()
    };
    assert_eq!(text("/structuredContent/text"), "short");
    assert_eq!(text("/structuredContent/list"), "[1.5]");
    let missed = applied(&result(None, Some("/nothing")), &full, None);
    assert_eq!(missed["content"], full["content"]);
    let note = json!({"pointer": "/nothing", "found": false});
    assert_eq!(missed["_meta"], json!({"a": 1, "trunkline/pointer": note}));
    let failed = json!({"isError": true, "content": [{"type": "text", "text": "why"}]});
    assert_eq!(applied(&result(None, Some("/content/0/text")), &failed, None), failed);
}

#[test]
fn a_result_is_cut_between_characters_and_says_by_what() {
    let change = result(Some(1024), None);
    let text = |text: String| json!({"type": "text", "text": text});
    let content = json!([text("é".repeat(300)), {"type": "image", "data": "x"},
        text("ü".repeat(2000)), text("never".into())]);
    let long = json!({"isError": true, "content": content, "structuredContent": {"a": 1}});
    let cut = applied(&change, &long, Some("c-1"));
    let texts: Vec<_> = cut["content"].as_array().unwrap().iter().map(|it| &it["text"]).collect();
    assert_eq!(texts[..2], [&json!("é".repeat(300)), &json!("ü".repeat(212))]);
    assert!(texts[2].as_str().unwrap().contains("/v1/calls/c-1/result") && texts.len() == 3);
    let bytes = long.to_string().len();
    let about = json!({"by": "max_bytes", "max_bytes": 1024, "bytes": bytes, "call": "c-1"});
    assert_eq!(cut["_meta"], json!({"trunkline/cut": about}));
    assert_eq!((&cut["isError"], cut.get("structuredContent")), (&json!(true), None));
    let short = r#"{ "content" : [] }"#;
    assert!(matches!(change.apply(short, None), std::borrow::Cow::Borrowed(it) if it == short));
    // One that is ambiguous is cut, too.
    let twice = format!(r#"{{"content":[],"content":["{}"]}}"#, "x".repeat(2000));
    assert!(change.apply(&twice, None).len() < 1024);
}

#[test]
fn a_reload_keeps_what_is_the_same() {
    let config = |tools: &str| ToolsetConfig {
        tools: vec![Pattern::parse(tools).unwrap()],
        search: false,
        r#override: BTreeMap::new(),
    };
    let configured = |a: &str| {
        let entry = |id: &str, tools: &str| (ToolsetId::parse(id).unwrap(), config(tools));
        BTreeMap::from([entry("a", a), entry("b", "std")])
    };
    let toolsets = Toolsets::new(&configured("std"));
    let before = [toolsets.get("a").unwrap(), toolsets.get("b").unwrap()];
    toolsets.apply(&configured("web"));
    let after = [toolsets.get("a").unwrap(), toolsets.get("b").unwrap()];
    assert!(!Arc::ptr_eq(&before[0], &after[0]) && Arc::ptr_eq(&before[1], &after[1]));
    assert_ne!(before[0].number(), after[0].number());
    assert!(after[0].has_tool("web", "any") && !after[0].has_part_of("std"));
    toolsets.apply(&BTreeMap::new());
    assert!(toolsets.all().is_empty());
}
