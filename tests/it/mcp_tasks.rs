//! Slow calls that go on as tasks of the gateway's own.

use serde_json::{Value, json};

use crate::mcp_extensions::{about_task, extending, with_tasks};
use crate::support::mcp_legacy::Session;
use crate::support::{Api, Gateway, Mcp, Setup, eventually};

const SLOW: &str = "tasks = true\ntask_after = \"300ms\"";

const TOOLSET: &str = r#"
[toolsets.t]
tools = ["x/*"]
[toolsets.t.override."x/nap"]
name = "rest"
result = { pointer = "/content/0/text" }
"#;

/// A legacy server, two tenants that may use it, and a toolset of its tools.
async fn start() -> Gateway {
    extending(Setup::new().without_anonymous(), "x", &["era=legacy"], SLOW)
        .with_tenant("a", "servers = [\"x\"]")
        .with_tenant("b", "servers = [\"x\"]")
        .with_tenant("agent", "servers = [\"toolset:t\"]")
        .raw(TOOLSET)
        .start()
        .await
}

/// The state of a task when it is over.
async fn ended(mcp: &Mcp, id: &str) -> Value {
    eventually("the task is over", async || {
        let told = about_task(mcp, "tasks/get", id).send().await.result();
        (told["status"] != "working").then_some(told)
    })
    .await
}

async fn records(api: &Api) -> Vec<Value> {
    api.get("/v1/calls").await.json()["calls"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_slow_call_becomes_a_task_of_its_tenant_and_a_quick_one_leaves_nothing() {
    let gateway = start().await;
    let (a, b) = (gateway.as_tenant("a").await, gateway.as_tenant("b").await);
    for (path, tool) in [("/mcp/x", "nap"), ("/mcp", "x__nap")] {
        let mcp = a.mcp(path);
        let found = mcp.ask("server/discover", json!({})).send().await.result();
        let declared = &found["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"];
        assert_eq!(declared, &json!({}), "{path}");
        let before = records(&a).await.len();
        let quick = with_tasks(mcp.call(tool, json!({"ms": 0}))).send().await.result();
        assert_eq!((&quick["resultType"], &quick["isError"]), (&json!("complete"), &json!(false)));
        assert_eq!(records(&a).await.len(), before, "a quick call left a record");
        // Whoever does not declare the extension waits for the answer.
        let plain = mcp.call(tool, json!({"ms": 500})).send().await.result();
        assert_eq!(plain["resultType"], "complete");
        let made = with_tasks(mcp.call(tool, json!({"ms": 1500}))).send().await.result();
        assert_eq!((&made["resultType"], &made["status"]), (&json!("task"), &json!("working")));
        let id = made["taskId"].as_str().unwrap();
        let told = about_task(&mcp, "tasks/get", id).send().await.result();
        assert_eq!((&told["status"], &told["taskId"]), (&json!("working"), &json!(id)));
        for member in ["createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"] {
            assert!(made[member] == told[member] && !made[member].is_null(), "{made} {told}");
        }
        // Nobody else can ask for it, nor at another endpoint.
        let elsewhere = if path == "/mcp" { "/mcp/x" } else { "/mcp" };
        for stranger in [b.mcp(path), b.mcp(elsewhere), a.mcp(elsewhere)] {
            for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
                let unknown = about_task(&stranger, method, "x").send().await.error();
                assert_eq!(about_task(&stranger, method, id).send().await.error(), unknown);
            }
        }
        let result = ended(&mcp, id).await;
        assert_eq!(
            (&result["status"], &result["resultType"]),
            (&json!("completed"), &json!("complete"))
        );
        assert_eq!(result["result"]["content"][0]["text"], r#"{"ms": 1500}"#);
        assert_eq!(result["result"]["resultType"], "complete");
        let kept = &records(&a).await[0];
        assert_eq!((&kept["server"], &kept["tool"]), (&json!("x"), &json!("nap")));
        // A tool that fails has completed, too.
        let made = with_tasks(mcp.call(tool, json!({"ms": 500, "fail": 1}))).send().await.result();
        let failed = ended(&mcp, made["taskId"].as_str().unwrap()).await;
        assert_eq!(
            (&failed["status"], &failed["result"]["isError"]),
            (&json!("completed"), &json!(true))
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_task_is_cancelled_and_so_is_a_call_whose_client_leaves_before() {
    let gateway = start().await;
    let a = gateway.as_tenant("a").await;
    let mcp = a.mcp("/mcp/x");
    let made = with_tasks(mcp.call("nap", json!({"ms": 20_000}))).send().await.result();
    let id = made["taskId"].as_str().unwrap();
    about_task(&mcp, "tasks/cancel", id).send().await.result();
    assert_eq!(ended(&mcp, id).await["status"], "cancelled");
    let leaving = with_tasks(mcp.call("nap", json!({"ms": 20_000})));
    let left = tokio::time::timeout(std::time::Duration::from_millis(100), leaving.send()).await;
    assert!(left.is_err(), "it was answered at once");
    eventually("no record goes on", async || {
        let calls = records(&a).await;
        calls.iter().all(|call| call["state"] == "ended").then_some(())
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_task_of_a_toolset_has_the_result_that_the_toolset_gives() {
    let gateway = start().await;
    let mcp = gateway.as_tenant("agent").await.mcp("/mcp/t/t");
    let made = with_tasks(mcp.call("rest", json!({"ms": 600}))).send().await.result();
    assert_eq!(made["resultType"], "task");
    let told = ended(&mcp, made["taskId"].as_str().unwrap()).await;
    assert_eq!(told["result"]["content"][0]["text"], r#"{"ms": 600}"#);
    assert!(told["result"].get("isError").is_none() || told["result"]["isError"] == false);
    let gone = with_tasks(mcp.call("x__end", json!({}))).send().await.error();
    assert_eq!(gone["data"]["code"], "backend_exited", "{gone}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_legacy_client_waits_for_the_answer_and_knows_no_tasks() {
    let gateway = start().await;
    let session = Session::open(&gateway.as_tenant("a").await, "/mcp/x").await;
    assert_eq!(session.tool_text("nap", json!({"ms": 500})).await, r#"{"ms": 500}"#);
    let unknown = session.error("tasks/get", json!({"taskId": "x"})).await;
    assert_eq!(unknown["code"], -32601);
    gateway.stop().await;
}
