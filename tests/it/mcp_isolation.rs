//! Two tenants, one process, and everything they say is the same.

use std::collections::HashSet;

use serde_json::json;

use crate::support::mcp_modern::LOG_LEVEL;
use crate::support::{Mcp, Setup, Tenants, eventually};

const KEYS: &str = "session_keys = [\"0123456789abcdef0123456789abcdef\"]";

async fn tenants(era: &str) -> (Tenants, [Mcp; 2]) {
    let setup = Setup::new().set(KEYS).talker_with("talker", era, &[], "max_in_flight = 256");
    let tenants = setup.start_for(&["acme", "other"]).await;
    let clients = tenants.mcp("/mcp/talker");
    // Waits for the server to be there.
    for client in &clients {
        client.call("echo", json!({})).send().await.tool_text();
    }
    (tenants, clients)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn equal_ids_and_tokens_of_two_tenants_are_never_taken_for_each_other() {
    for era in ["legacy", "modern"] {
        let (tenants, clients) = tenants(era).await;
        let mut calls = vec![];
        for round in 0..50 {
            for (tenant, client) in ["acme", "other"].iter().zip(&clients) {
                // Some are answered at once, some together at the end.
                let tag = format!("{tenant} {round}");
                let arguments = json!({"n": 3, "tag": tag, "hold": round % 2 == 0});
                let call = client.call("progress", arguments).id("1").meta("progressToken", 1);
                calls.push((tag, call.meta(LOG_LEVEL, "debug").spawn()));
            }
        }
        let fake = tenants.fake("talker");
        eventually("all there", async || (fake.calls_of("progress").len() == 100).then_some(()))
            .await;
        clients[0].call("release", json!({})).id("1").send().await.tool_text();
        for (tag, call) in calls {
            let said = call.await.unwrap();
            assert!(said.echoes("1"), "{said:?}");
            assert_eq!(said.tool_text(), tag);
            let heard = said.before();
            for (n, message) in heard.iter().enumerate() {
                let params = json!({"progressToken": 1, "progress": n + 1, "message": tag});
                assert_eq!(message["params"], params);
            }
            assert_eq!(heard.len(), 3, "{said:?}");
        }
        assert_eq!(fake.pids().len(), 1, "one process for both");
        let ids: HashSet<_> =
            fake.received_of("tools/call").iter().map(|call| call["id"].to_string()).collect();
        assert_eq!(ids.len(), 103);
        tenants.stop().await;
    }
}

#[tokio::test]
async fn what_a_server_wants_back_from_one_tenant_it_does_not_get_from_another() {
    let (tenants, [acme, other]) = tenants("modern").await;
    let ask = |client: &Mcp| client.call("ask", json!({"a": 1})).id("1");
    let sealed = |result: &serde_json::Value| result["requestState"].as_str().unwrap().to_owned();
    let of_acme = sealed(&ask(&acme).send().await.result());
    let of_other = sealed(&ask(&other).send().await.result());
    let fake = tenants.fake("talker");
    let asked = fake.calls_of("ask").len();
    for (client, state) in [(&acme, &of_other), (&other, &of_acme)] {
        let said = ask(client).param("requestState", state.as_str()).send().await;
        assert_eq!(said.error()["code"], -32602);
    }
    assert_eq!(fake.calls_of("ask").len(), asked);
    for (client, state) in [(&acme, of_acme), (&other, of_other)] {
        ask(client).param("requestState", state).send().await.tool_text();
    }
    tenants.stop().await;
}

#[tokio::test]
async fn who_hangs_up_cancels_no_call_of_another_tenant_with_the_same_id() {
    let (tenants, [acme, other]) = tenants("modern").await;
    let hold = |client: &Mcp, tag: &str| client.call("hold", json!({"tag": tag})).id("1").spawn();
    let (leaves, stays) = (hold(&acme, "leaves"), hold(&other, "stays"));
    let fake = tenants.fake("talker");
    eventually("held", async || (fake.calls_of("hold").len() == 2).then_some(())).await;
    leaves.abort();
    let cancelled = "notifications/cancelled";
    let told = eventually("told", async || fake.received_of(cancelled).pop()).await;
    let calls = fake.calls_of("hold");
    let leaver = calls.iter().find(|call| call["params"]["arguments"]["tag"] == "leaves").unwrap();
    assert_eq!(told["params"]["requestId"], leaver["id"]);
    acme.call("release", json!({})).id("1").send().await.tool_text();
    assert_eq!(stays.await.unwrap().tool_text(), "stays");
    assert_eq!(fake.received_of(cancelled).len(), 1);
    tenants.stop().await;
}

#[tokio::test]
async fn tenants_hear_of_what_they_watch_themselves() {
    let (tenants, [acme, other]) = tenants("modern").await;
    let watch = |uri: &str| json!({"resourceSubscriptions": [uri]});
    let (mut of_acme, _) = acme.listen("1", watch("mem:///acme")).await;
    let (mut of_other, _) = other.listen("1", watch("mem:///other")).await;
    for uri in ["mem:///other", "mem:///acme"] {
        acme.call("touch", json!({"uri": uri})).send().await.tool_text();
    }
    assert_eq!(of_acme.next().await["params"]["uri"], "mem:///acme");
    assert_eq!(of_other.next().await["params"]["uri"], "mem:///other");
    drop((of_acme, of_other));
    tenants.stop().await;
}

#[tokio::test]
async fn a_log_line_about_one_tenants_subscription_never_reaches_another() {
    for era in ["modern", "legacy"] {
        let setup = Setup::new().set(KEYS).talker_with("talker", era, &[], "");
        let tenants = setup.start_for(&["acme", "other"]).await;
        let [acme, other] = tenants.mcp("/mcp/talker");
        let line =
            json!({"method": "notifications/message", "params": {"level": "error", "data": 1}});
        let talks =
            || acme.call("say", json!({"say": [line.clone()]})).meta(LOG_LEVEL, "debug").send();
        assert!(talks().await.is_stream, "{era}: nobody else has made the server do anything");
        let watch = json!({"resourceSubscriptions": ["mem:///other"]});
        let watching = other.listen("1", watch).await;
        assert!(!talks().await.is_stream, "{era}: the line may be about the subscription");
        drop(watching);
        tenants.stop().await;
    }
}

#[tokio::test]
async fn a_log_line_of_one_tenants_call_never_reaches_another() {
    let (tenants, [acme, other]) = tenants("modern").await;
    let hold = |client: &Mcp| {
        let arguments = json!({"n": 1, "hold": true, "tag": ""});
        client.call("progress", arguments).meta("progressToken", 1).meta(LOG_LEVEL, "debug")
    };
    let mut waits = hold(&acme).open().await;
    waits.next().await;
    let line = json!({"method": "notifications/message", "params": {"level": "error", "data": 1}});
    let talks = other.call("say", json!({"say": [line]})).meta(LOG_LEVEL, "debug");
    assert!(!talks.send().await.is_stream);
    other.call("release", json!({})).send().await.tool_text();
    assert_eq!(waits.rest().await.len(), 1);
    tenants.stop().await;
}
