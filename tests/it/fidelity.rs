//! Arguments and results pass through the gateway unchanged.

use crate::support::Setup;

/// As `fake_server.py` has them.
const ODD_RESULT: &str = concat!(
    r#"{ "content" : [],  "n": 12345678901234567890123, "x":1.10,"#,
    r#""z":0, "a":{"\u00e9":"\/ é"} ,"e":1E+2}"#
);

/// Numbers beyond any type, spaces, escapes, keys in no order, unknown and repeated ones.
const ODD_ARGUMENTS: &str = "{\"n\": 12345678901234567890123,\t\"x\":1.10 , \"z\":-0.0,\
    \"a\":{\"\\u00e9\":\"\\n\\/ é 🦀 \\ud83e\\udd80\"}, \"_meta\":{\"k\":1E+2},\"z\":[ ],\"\":null}";

#[tokio::test]
async fn arguments_reach_the_server_byte_for_byte() {
    let gateway =
        Setup::new().fake("legacy").fake_with("modern", &["discover=modern"], "").start().await;
    for server in ["legacy", "modern"] {
        assert_eq!(gateway.call(server, "raw", ODD_ARGUMENTS).await.tool_text(), ODD_ARGUMENTS);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn results_reach_the_caller_byte_for_byte() {
    let gateway =
        Setup::new().fake("legacy").fake_with("modern", &["discover=modern"], "").start().await;
    for server in ["legacy", "modern"] {
        assert_eq!(gateway.call(server, "odd", "{}").await.text(), ODD_RESULT);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn line_breaks_in_the_arguments_smuggle_nothing() {
    let gateway = Setup::new().fake("fake").start().await;
    let fake = gateway.fake("fake");
    let before = fake.lines_received().len();
    let smuggled =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exit","arguments":{}}}"#;
    let arguments = format!("\n{{\"a\":\r\n{smuggled}\n,\r\"b\":\"\\n\"}}\n");
    let answer = gateway.call("fake", "raw", &arguments).await;
    assert_eq!(answer.tool_text(), format!("{{\"a\":  {smuggled} , \"b\":\"\\n\"}}"));
    assert_eq!(fake.lines_received().len(), before + 1);
    assert_eq!(fake.pids().len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_large_call_and_a_large_answer_go_through() {
    let gateway = Setup::new().fake("fake").start().await;
    let arguments = format!("{{\"text\":\"{}\"}}", "é".repeat(400_000));
    assert_eq!(gateway.call("fake", "raw", &arguments).await.tool_text(), arguments);
    gateway.stop().await;
}
