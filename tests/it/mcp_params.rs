//! The parameters of a modern client that reach a server, and those that do not.

use serde_json::{Value, json};

use crate::support::{Fake, Gateway, Mcp, Setup};

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const OTHER_TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

async fn talker(era: &str) -> (Gateway, Mcp, Fake) {
    let gateway = Setup::new().talker("talker", era).start().await;
    let (mcp, fake) = (gateway.mcp("/mcp/talker"), gateway.fake("talker"));
    if era == "modern" {
        fake.is_listened_to().await;
    }
    (gateway, mcp, fake)
}

#[tokio::test]
async fn what_two_readers_could_read_differently_does_not_reach_the_server() {
    let (gateway, mcp, fake) = talker("modern").await;
    let before = fake.lines_received().len();
    for params in [
        r#"{"name":"echo","name":"hold","_meta":{$meta}}"#,
        r#"{"name":"echo","n\u0061me":"hold","_meta":{$meta}}"#,
        r#"{"name":"echo","Name":"hold","_meta":{$meta}}"#,
        r#"{"name":"echo","NAME":"hold","_meta":{$meta}}"#,
        r#"{"name":"echo","arguments":{},"arguments":{"a":1},"_meta":{$meta}}"#,
        r#"{"name":"echo","Arguments":{"a":1},"_meta":{$meta}}"#,
        r#"{"name":"echo","ta\u017fk":{},"_meta":{$meta}}"#,
        r#"{"name":"echo","_meta":{$meta},"_meta":{$meta}}"#,
        r#"{"name":"echo","_meta":{$meta},"_Meta":{$meta}}"#,
        r#"{"name":"echo","x":1,"x":1,"_meta":{$meta}}"#,
        r#"{"name":"echo","_meta":{$meta,"a":1,"\u0061":2}}"#,
        r#"{"name":"echo","_meta":{$meta,"ProgressToken":1}}"#,
        r#"{"name":"echo","_meta":{$meta,"io.modelcontextprotocol/ProtocolVersion":"x"}}"#,
        r#"{"name":"echo","_meta":{$meta,"TraceParent":"x"}}"#,
    ] {
        for endpoint in [&mcp, &gateway.mcp("/mcp")] {
            let said = endpoint.call("echo", json!({})).id("7").raw_params(params).send().await;
            assert_eq!(said.refusal(), (400, -32602), "{params}");
            assert!(said.echoes("7"), "{said:?}");
        }
    }
    for reference in [
        r#"{"type":"ref/prompt","name":"greet","name":"ask"}"#,
        r#"{"type":"ref/prompt","name":"greet","Name":"ask"}"#,
        r#"{"type":"ref/prompt"}"#,
        r#"{"type":"ref/prompt","name":7}"#,
        "[]",
    ] {
        let params = format!(r#"{{"ref":{reference},"argument":{{}},"_meta":{{$meta}}}}"#);
        let ask = mcp.ask("completion/complete", json!({})).raw_params(&params);
        assert_eq!(ask.send().await.refusal(), (400, -32602), "{reference}");
    }
    assert_eq!(fake.lines_received().len(), before, "{:?}", fake.lines_received());
    gateway.stop().await;
}

#[tokio::test]
async fn an_object_that_the_gateway_takes_apart_has_few_members_and_others_any_number() {
    let (gateway, mcp, fake) = talker("modern").await;
    let members = |count: usize| {
        let members: Vec<String> = (0..count).map(|n| format!("\"項{n}\":1")).collect();
        members.join(",")
    };
    let (few, many) = (members(200), members(60_000));
    for params in [
        format!(r#"{{"name":"echo",{many},"_meta":{{$meta}}}}"#),
        format!(r#"{{"name":"echo","_meta":{{$meta,{many}}}}}"#),
    ] {
        let said = mcp.call("echo", json!({})).id("7").raw_params(&params).send().await;
        assert_eq!(said.refusal(), (400, -32602));
        assert!(said.error()["message"].as_str().unwrap().contains("more than 256 members"));
        assert!(said.echoes("7"), "{said:?}");
    }
    assert_eq!(fake.calls_of("echo").len(), 0);
    let params =
        format!(r#"{{"name":"echo","arguments":{{{many}}},{few},"_meta":{{$meta,{few}}}}}"#);
    mcp.call("echo", json!({})).raw_params(&params).send().await.tool_text();
    assert_eq!(fake.calls_of("echo").len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn what_the_gateway_does_not_know_goes_on_as_it_was_written() {
    for era in ["legacy", "modern"] {
        let (gateway, mcp, fake) = talker(era).await;
        let params = concat!(
            r#"{"name":"echo","arguments":{"n" : 1.10, "Name":1,"é":"\u00e9"},"#,
            r#""x-y":{"z": 12345678901234567890123},"#,
            "\n",
            r#""_meta":{$meta,"a/b":[1 , 2.0],"baggage":"k=v"}}"#
        );
        mcp.call("echo", json!({})).raw_params(params).send().await.tool_text();
        let ask = mcp.ask("prompts/get", json!({"name": "greet"}));
        let params = concat!(
            r#"{"name":"greet","arguments":{"who" : "\u0041"},"x-y":1e2,"#,
            r#""_meta":{$meta,"a/b":[1 , 2.0]}}"#
        );
        ask.raw_params(params).send().await.result();
        let lines = fake.lines_received();
        let [.., call, get] = lines.as_slice() else { panic!("{lines:?}") };
        for part in [
            r#""arguments":{"n" : 1.10, "Name":1,"é":"\u00e9"}"#,
            r#""x-y":{"z": 12345678901234567890123}"#,
            r#""a/b":[1 , 2.0]}"#,
        ] {
            assert!(call.contains(part), "{part} is not in {call}");
        }
        // Clients add it by themselves, and the server may be anybody's.
        assert!(!call.contains("baggage"), "{call}");
        for part in [r#""arguments":{"who" : "\u0041"},"x-y":1e2"#, r#""a/b":[1 , 2.0]"#] {
            assert!(get.contains(part), "{part} is not in {get}");
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn line_breaks_never_make_a_second_frame() {
    let (gateway, mcp, fake) = talker("modern").await;
    let before = fake.lines_received().len();
    let forged =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exit","arguments":{}}}"#;
    let meta = "\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",\n\
     \"io.modelcontextprotocol/clientCapabilities\":{\n\"x\":\r\n$f\n}";
    for params in [
        "{\n\"name\":\r\n\"echo\"\n,\n\"arguments\"\n:\n{\"a\":\n$f\n}\n,\"_meta\":{$meta}}",
        "{\"name\":\"echo\",\"arguments\":{},\"x\":[\n$f\n],\"_meta\":{$meta}}",
        "{\"name\":\"echo\",\"arguments\":{},\"_meta\":{$meta,\"x\":\n$f\r}}",
        &format!("{{\"name\":\"echo\",\"arguments\":{{}},\"_meta\":{{\n{meta}\n}}}}"),
    ] {
        let ask = mcp.call("echo", json!({}));
        ask.raw_params(&params.replace("$f", forged)).send().await.tool_text();
    }
    let params = "{\"ref\":{\"type\":\"ref/prompt\",\n\"name\":\"greet\"},\"argument\":{\"x\":\n\
     $f\n},\"_meta\":{$meta}}";
    let ask = mcp.ask("completion/complete", json!({}));
    ask.raw_params(&params.replace("$f", forged)).send().await.result();
    let lines = fake.received();
    assert_eq!(lines.len(), before + 5, "{lines:#?}");
    assert_eq!(fake.calls_of("exit"), [] as [Value; 0]);
    gateway.stop().await;
}

#[tokio::test]
async fn nesting_is_limited() {
    let (gateway, mcp, fake) = talker("modern").await;
    let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let arguments = |levels: usize| {
        let inner = deep(levels - 1);
        format!(r#"{{"name":"echo","arguments":{{"a":{inner}}},"_meta":{{$meta}}}}"#)
    };
    let other =
        |levels: usize| format!(r#"{{"name":"echo","x":{},"_meta":{{$meta}}}}"#, deep(levels));
    let send = |params: String| mcp.call("echo", json!({})).raw_params(&params).send();
    send(arguments(64)).await.tool_text();
    send(other(64)).await.tool_text();
    for params in [arguments(65), arguments(5_000), other(65), other(100_000)] {
        let said = send(params).await;
        assert_eq!(said.refusal(), (400, -32600));
    }
    assert_eq!(fake.calls_of("echo").len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn the_trace_of_the_http_request_goes_on_unless_the_body_has_one() {
    for era in ["legacy", "modern"] {
        let (gateway, mcp, fake) = talker(era).await;
        let last = || {
            let line = fake.lines_received().pop().unwrap();
            assert!(line.matches("\"tracestate\"").count() <= 1, "twice: {line}");
            let meta = &fake.received().pop().unwrap()["params"]["_meta"];
            (meta["traceparent"].clone(), meta["tracestate"].clone())
        };
        let call = || mcp.call("echo", json!({})).header("traceparent", TRACEPARENT);
        call().header("tracestate", "a=1,b=\"\\").send().await.tool_text();
        assert_eq!(last(), (json!(TRACEPARENT), json!("a=1,b=\"\\")));
        call().send().await.tool_text();
        assert_eq!(last(), (json!(TRACEPARENT), Value::Null));

        let both = || call().header("tracestate", "a=1");
        both().meta("traceparent", OTHER_TRACEPARENT).send().await.tool_text();
        assert_eq!(last(), (json!(OTHER_TRACEPARENT), Value::Null));
        both().meta("tracestate", "c=3").send().await.tool_text();
        assert_eq!(last(), (json!(TRACEPARENT), json!("a=1")));

        let ask = mcp.ask("resources/read", json!({"uri": "mem:///a"}));
        ask.header("traceparent", TRACEPARENT).send().await.result();
        assert_eq!(last(), (json!(TRACEPARENT), Value::Null));

        for invalid in ["", "00", &TRACEPARENT.to_uppercase(), &TRACEPARENT.replace("00-4", "ff-4")]
        {
            let ask = mcp.call("echo", json!({})).header("traceparent", invalid);
            ask.header("tracestate", "a=1").send().await.tool_text();
            assert_eq!(last(), (Value::Null, Value::Null), "{invalid}");
        }
        call().another_header("traceparent", OTHER_TRACEPARENT).send().await.tool_text();
        assert_eq!(last(), (Value::Null, Value::Null));
        both().another_header("tracestate", "b=2").send().await.tool_text();
        assert_eq!(last(), (json!(TRACEPARENT), json!("a=1,b=2")));

        let rest = gateway.post("talker", "echo", "{}").header("traceparent", TRACEPARENT);
        assert_eq!(rest.header("tracestate", "a=1").send().await.unwrap().status(), 200);
        assert_eq!(last(), (json!(TRACEPARENT), json!("a=1")));
        let rest = gateway.post("talker", "echo", "{}").header("traceparent", "00-x");
        assert_eq!(rest.send().await.unwrap().status(), 200);
        assert_eq!(last(), (Value::Null, Value::Null));
        gateway.stop().await;
    }
}
