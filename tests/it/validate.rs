//! Arguments that do not fit the tool's schema are refused before the server sees them.

use serde_json::json;

use crate::support::mcp_legacy::Session;
use crate::support::{Answer, Gateway, Setup, refused};

async fn gateway() -> Gateway {
    let std = ["std".to_owned()];
    let setup = Setup::new().server("std", "trunkline", &std, "validate = true");
    setup.server("unchecked", "trunkline", &std, "").start().await
}

#[tokio::test]
async fn the_field_that_does_not_fit_is_named_over_rest_mcp_and_in_batches() {
    let gateway = gateway().await;
    let bad = json!({"text": 5});
    let answer = gateway.call("std", "echo", &bad).await;
    assert_eq!(answer.problem(), refused(400, "invalid_arguments"));
    assert_eq!(answer.json()["pointer"], "/text", "{answer:?}");
    assert_eq!(answer.header("trunkline-attempts"), "0");
    let missing = gateway.call("std", "echo", "").await;
    assert_eq!((missing.status, missing.json()["pointer"].clone()), (400, json!("/text")));
    assert_eq!(gateway.call("std", "echo", json!({"text": "a"})).await.tool_text(), "a");
    // Without the setting, the server itself refuses.
    let unchecked = gateway.call("unchecked", "echo", &bad).await;
    assert!(unchecked.json().get("pointer").is_none(), "{unchecked:?}");
    assert_ne!(unchecked.status, 400);

    let legacy = Session::open(&gateway, "/mcp").await;
    let legacy = Answer::of(legacy.call(1, "std__echo", bad.clone())).await.json()["error"].clone();
    let modern = gateway.mcp("/mcp/std").call("echo", bad.clone()).send().await.error();
    for error in [legacy, modern] {
        assert_eq!((&error["code"], &error["data"]["pointer"]), (&json!(-32602), &json!("/text")));
    }

    // The arguments are checked as they are composed.
    let reference = json!({"$result": "a", "pointer": "/content"});
    let batch = json!({"calls": [
        {"id": "a", "server": "std", "tool": "echo", "arguments": {"text": "x"}},
        {"id": "b", "server": "std", "tool": "echo", "arguments": {"text": reference}},
    ]});
    let request = gateway.new_client().post(gateway.url("/v1/batch")).body(batch.to_string());
    let results = Answer::of(request).await.json()["results"].clone();
    assert_eq!(results[0]["outcome"], "ok", "{results}");
    let problem = &results[1]["problem"];
    assert_eq!(
        (&problem["code"], &problem["pointer"]),
        (&json!("invalid_arguments"), &json!("/text"))
    );
    gateway.stop().await;
}
