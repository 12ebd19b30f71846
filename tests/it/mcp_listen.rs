//! `subscriptions/listen`: modern clients hear of changes.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::mcp_modern::{SUBSCRIPTION_ID, Stream};
use crate::support::{Gateway, Mcp, Setup, eventually, kill};

const ERAS: [&str; 2] = ["legacy", "modern"];
const TOOLS: &str = "notifications/tools/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";
const UPDATED: &str = "notifications/resources/updated";

async fn talker(era: &str) -> (Gateway, Mcp) {
    let gateway = Setup::new().talker("talker", era).start().await;
    if era == "modern" {
        gateway.fake("talker").is_listened_to().await;
    }
    let mcp = gateway.mcp("/mcp/talker");
    (gateway, mcp)
}

async fn change(mcp: &Mcp, kind: &str) {
    mcp.call("change", json!({"kind": kind})).send().await.tool_text();
}

async fn touch(mcp: &Mcp, uri: &str) {
    mcp.call("touch", json!({"uri": uri})).send().await.tool_text();
}

async fn is_updated(stream: &mut Stream, uri: &str) {
    let message = stream.next().await;
    assert_eq!((&message["method"], &message["params"]["uri"]), (&json!(UPDATED), &json!(uri)));
}

#[tokio::test]
async fn the_first_message_says_what_will_be_heard_of() {
    let gateway =
        Setup::new().std().talker("legacy", "legacy").talker("modern", "modern").start().await;
    let all = json!({"toolsListChanged": true, "promptsListChanged": true,
        "resourcesListChanged": true, "resourceSubscriptions": ["mem:///a", "mem:///none"]});
    for (server, honoured) in [
        // The bundled server has tools and nothing else.
        ("std", json!({"toolsListChanged": true})),
        // One that is asked for each resource can refuse.
        (
            "legacy",
            json!({"toolsListChanged": true, "promptsListChanged": true,
            "resourcesListChanged": true, "resourceSubscriptions": ["mem:///a"]}),
        ),
        ("modern", all.clone()),
    ] {
        let mcp = gateway.mcp(&format!("/mcp/{server}"));
        assert_eq!(mcp.listen("1", all.clone()).await.1["notifications"], honoured, "{server}");
        assert_eq!(mcp.listen("1", json!({})).await.1["notifications"], json!({}));
        let some = json!({"toolsListChanged": true, "promptsListChanged": false, "x": true});
        let honoured = mcp.listen("1", some).await.1["notifications"].clone();
        assert_eq!(honoured, json!({"toolsListChanged": true}));
    }
    let filter = json!({"resourceSubscriptions":
        ["trunkline:modern/mem:///a", "trunkline:legacy/mem:///none", "mem:///a",
         "trunkline:x/y"]});
    let (_, first) = gateway.mcp("/mcp").listen("1", filter).await;
    let honoured = json!({"resourceSubscriptions": ["trunkline:modern/mem:///a"]});
    assert_eq!(first["notifications"], honoured);

    let mcp = gateway.mcp("/mcp");
    for params in [json!({}), json!({"notifications": 7}), json!({"notifications": []})] {
        let said = mcp.ask("subscriptions/listen", params.clone()).send().await;
        assert_eq!(said.refusal(), (400, -32602), "{params}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn messages_carry_the_id_of_their_request_as_it_was_written() {
    let (gateway, mcp) = talker("modern").await;
    let filter = json!({"promptsListChanged": true, "resourceSubscriptions": ["mem:///a"]});
    let ids = ["7", "\"7\"", "1.0", "1e3", "\"\\u00e9\"", "12345678901234567890123", "-0"];
    let mut streams = vec![];
    for id in ids {
        let ask = mcp.ask("subscriptions/listen", json!({"notifications": filter})).id(id);
        let mut stream = ask.open().await;
        let tag = format!("{{\"{SUBSCRIPTION_ID}\":{id}}}");
        let first = stream.next_text().await.unwrap();
        assert!(first.contains(&format!("\"_meta\":{tag}")), "{first}");
        streams.push((id, tag, stream));
    }
    change(&mcp, "prompts").await;
    touch(&mcp, "mem:///a").await;
    for (_, tag, stream) in &mut streams {
        for method in [PROMPTS, UPDATED] {
            let text = stream.next_text().await.unwrap();
            assert!(text.contains(method) && text.contains(&**tag), "{text}");
        }
    }
    gateway.shut_down();
    for (id, tag, mut stream) in streams {
        let last = stream.next_text().await.unwrap();
        let start = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{");
        assert!(last.starts_with(&start) && last.contains(&tag), "{last}");
        assert!(last.contains("\"resultType\":\"complete\""), "{last}");
        assert_eq!(stream.next_or_end().await, None);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn only_what_was_asked_for_is_told() {
    for era in ERAS {
        let (gateway, mcp) = talker(era).await;
        let (mut tools, _) = mcp.listen("1", json!({"toolsListChanged": true})).await;
        let (mut prompts, _) = mcp.listen("1", json!({"promptsListChanged": true})).await;
        let (mut resources, _) = mcp.listen("1", json!({"resourcesListChanged": true})).await;
        let (mut nothing, _) = mcp.listen("1", json!({})).await;
        touch(&mcp, "mem:///a").await;
        for (kind, stream, method) in [
            ("prompts", &mut prompts, PROMPTS),
            ("resources", &mut resources, RESOURCES),
            ("tools", &mut tools, TOOLS),
        ] {
            gateway.fake("talker").set_extra_tools("another");
            change(&mcp, kind).await;
            let told = stream.next().await;
            assert_eq!(told["method"], method);
            assert!(told["params"].get("uri").is_none());
        }
        gateway.shut_down();
        for stream in [&mut tools, &mut prompts, &mut resources, &mut nothing] {
            let rest = stream.rest().await;
            assert_eq!(rest.len(), 1, "{era}: {rest:?}");
            assert!(rest[0].get("result").is_some());
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_resource_is_told_to_those_who_watch_it() {
    for era in ERAS {
        let (gateway, mcp) = talker(era).await;
        let watch = |uris: Value| json!({"resourceSubscriptions": uris});
        let (mut a, _) = mcp.listen("1", watch(json!(["mem:///a"]))).await;
        let (mut b, _) = mcp.listen("1", watch(json!(["mem:///b"]))).await;
        let (mut both, _) = mcp.listen("1", watch(json!(["mem:///a", "mem:///b"]))).await;
        let together = gateway.mcp("/mcp");
        let (mut far, _) = together.listen("1", watch(json!(["trunkline:talker/mem:///b"]))).await;
        // The server tells of one that nobody watches.
        let lie = json!({"method": UPDATED, "params": {"uri": "mem:///c"}});
        mcp.call("say", json!({"say": [lie]})).send().await.tool_text();
        touch(&mcp, "mem:///a").await;
        is_updated(&mut a, "mem:///a").await;
        is_updated(&mut both, "mem:///a").await;
        touch(&mcp, "mem:///b").await;
        is_updated(&mut b, "mem:///b").await;
        is_updated(&mut both, "mem:///b").await;
        is_updated(&mut far, "trunkline:talker/mem:///b").await;
        gateway.shut_down();
        for stream in [&mut a, &mut b, &mut both, &mut far] {
            assert_eq!(stream.rest().await.len(), 1);
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn whoever_was_told_that_it_listens_misses_nothing_from_then_on() {
    for era in ERAS {
        let (gateway, mcp) = talker(era).await;
        for n in 0..10 {
            let uri = format!("mem:///{n}");
            let (mut stream, _) = mcp.listen("1", json!({"resourceSubscriptions": [uri]})).await;
            touch(&mcp, &uri).await;
            is_updated(&mut stream, &uri).await;
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_resource_that_nobody_watches_any_more_is_given_up_at_the_server() {
    let (gateway, mcp) = talker("legacy").await;
    let fake = gateway.fake("talker");
    let filter = json!({"resourceSubscriptions": ["mem:///a"]});
    let (first, _) = mcp.listen("1", filter.clone()).await;
    let (second, _) = mcp.listen("1", filter).await;
    assert_eq!(fake.received_of("resources/subscribe").len(), 1);
    drop(first);
    let (third, _) = mcp.listen("1", json!({"resourceSubscriptions": ["mem:///b"]})).await;
    assert!(fake.received_of("resources/unsubscribe").is_empty());
    drop((second, third));
    eventually("given up", async || {
        (fake.received_of("resources/unsubscribe").len() == 2).then_some(())
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn the_gateways_own_list_is_new_when_the_change_is_told() {
    for era in ERAS {
        let (gateway, mcp) = talker(era).await;
        let together = gateway.mcp("/mcp");
        let filter = json!({"toolsListChanged": true});
        let (mut one, _) = mcp.listen("1", filter.clone()).await;
        let (mut all, _) = together.listen("1", filter).await;
        for n in 0..3 {
            let tool = format!("fresh{n}");
            gateway.fake("talker").set_extra_tools(&tool);
            change(&mcp, "tools").await;
            assert_eq!(one.next().await["method"], TOOLS);
            assert!(mcp.tool_names().await.contains(&tool));
            mcp.call(&tool, json!({})).send().await.tool_text();
            assert_eq!(all.next().await["method"], TOOLS);
            assert!(together.tool_names().await.contains(&format!("talker__{tool}")));
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn listening_goes_on_when_the_server_is_started_again() {
    for era in ERAS {
        let (gateway, mcp) = talker(era).await;
        let fake = gateway.fake("talker");
        let filter = json!({"toolsListChanged": true, "resourceSubscriptions": ["mem:///a"]});
        let (mut stream, _) = mcp.listen("1", filter).await;
        fake.set_extra_tools("fresh");
        kill(fake.pids()[0], Signal::KILL);
        // Nobody knows what has changed meanwhile.
        let mut told = [stream.next().await, stream.next().await].map(|it| it["method"].clone());
        told.sort_by_key(Value::to_string);
        assert_eq!(told, [json!(UPDATED), json!(TOOLS)]);
        assert!(mcp.tool_names().await.contains(&"fresh".to_owned()));
        eventually("watched again", async || {
            let trace = fake.trace();
            let again = trace.iter().rposition(|line| line.starts_with("start "))?;
            let watches = |line: &String| line.starts_with("> ") && line.contains("mem:///a");
            trace[again..].iter().any(watches).then_some(())
        })
        .await;
        assert_eq!(fake.pids().len(), 2);
        touch(&mcp, "mem:///a").await;
        is_updated(&mut stream, "mem:///a").await;
        fake.set_extra_tools("fresher");
        change(&mcp, "tools").await;
        assert_eq!(stream.next().await["method"], TOOLS);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_listener_that_does_not_read_delays_none_of_the_others() {
    let (gateway, mcp) = talker("modern").await;
    let long = format!("mem:///{}", "x".repeat(2000));
    let (mut slow, _) = mcp.listen("1", json!({"resourceSubscriptions": [long]})).await;
    let mut others = vec![];
    for _ in 0..20 {
        let filter = json!({"resourceSubscriptions": ["mem:///a"]});
        others.push(gateway.mcp("/mcp/talker").listen("1", filter).await.0);
    }
    for _ in 0..100 {
        touch(&mcp, &long).await;
        touch(&mcp, "mem:///a").await;
        for other in &mut others {
            is_updated(other, "mem:///a").await;
        }
    }
    gateway.shut_down();
    let rest = slow.rest().await;
    let (last, news) = rest.split_last().unwrap();
    assert!(last.get("result").is_some());
    assert!(!news.is_empty());
    assert!(news.iter().all(|it| it["params"]["uri"] == long.as_str()));
    gateway.stop().await;
}

#[tokio::test]
async fn listening_is_taken_from_the_tenants_limits() {
    let policy = "servers = [\"*\"]\nrate = \"9/h\"\nlimits.a = { rate = \"2/h\" }";
    let gateway = Setup::new()
        .without_anonymous()
        .talker("a", "modern")
        .talker("b", "modern")
        .with_tenant("acme", policy)
        .start()
        .await;
    let acme = gateway.as_tenant("acme").await;
    let both = json!({"resourceSubscriptions": ["trunkline:a/mem:///a", "trunkline:b/mem:///a",
        "trunkline:no/x"]});
    let (_both, _) = acme.mcp("/mcp").listen("1", both).await;
    let (_one, _) = acme.mcp("/mcp/a").listen("1", json!({"toolsListChanged": true})).await;
    let said = acme.mcp("/mcp/a");
    let said = said.ask("subscriptions/listen", json!({"notifications": {}})).send().await;
    assert_eq!(said.error()["data"]["code"], "rate_limited", "{said:?}");
    assert!(said.headers["ratelimit"].to_str().unwrap().starts_with("\"a\";r=0"), "{said:?}");
    // Two servers were asked for resources, one for nothing, and the refusal was of a server's own
    // limit, after the tenant was charged.
    let (_none, _) = acme.mcp("/mcp").listen("1", json!({})).await;
    let left = acme.call("b", "change", r#"{"kind":"prompts"}"#).await;
    assert!(left.header("ratelimit").starts_with("\"tenant\";r=3"), "{left:?}");
    gateway.stop().await;
}
