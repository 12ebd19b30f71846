//! A server's words about itself reach the clients of `/mcp/{server}` as they are.

use serde_json::{Value, json};

use crate::support::mcp_legacy::{Session, result_of};
use crate::support::mcp_modern::CLIENT_CAPABILITIES;
use crate::support::{Gateway, Mcp, Setup};

const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// A server of an era that describes itself in these words.
async fn start(era: &str, about: &Value) -> Gateway {
    let setup = Setup::new();
    let path = setup.dir.path().join("about.json");
    // Python reads and writes escapes of half a pair as they are.
    std::fs::write(&path, about.to_string().replace("HALF", "\\ud800")).unwrap();
    let (about, discover) = (format!("about={}", path.display()), format!("discover={era}"));
    let options: &[&str] = if era == "modern" { &[&about, &discover] } else { &[&about] };
    setup.fake_with("fake", options, "").start().await
}

fn info() -> Value {
    json!({"name": "n", "version": "1", "title": "A title", "websiteUrl": "https://x.example",
        "icons": [{"src": "data:image/png;base64,AA==", "sizes": ["48x48"]}], "new": 1})
}

async fn discovered(mcp: &Mcp) -> Value {
    mcp.ask("server/discover", json!({})).send().await.result()
}

#[tokio::test]
async fn a_client_sees_all_that_a_server_says_of_itself() {
    let capabilities = json!({"tools": {"new": 1, "listChanged": true}, "experimental": {"x": {}},
        "new": {"y": [1]}});
    for era in ["legacy", "modern"] {
        let mut about = json!({"capabilities": capabilities, "new": {"z": 1}});
        match era {
            "legacy" => about["serverInfo"] = info(),
            _ => about["_meta"] = json!({SERVER_INFO: info(), "a/b": "c"}),
        }
        let gateway = start(era, &about).await;
        let opened = Session::try_open(&gateway, "/mcp/fake", json!({})).await;
        let (opened, found) = (result_of(&opened), discovered(&gateway.mcp("/mcp/fake")).await);
        assert_eq!(opened["serverInfo"], info(), "{era}");
        assert_eq!(found["_meta"][SERVER_INFO], info(), "{era}");
        for result in [&opened, &found] {
            assert_eq!(result["capabilities"], capabilities, "{era}");
            assert_eq!(result["new"], json!({"z": 1}), "{era}");
        }
        if era == "modern" {
            assert_eq!(
                (&opened["_meta"]["a/b"], &found["_meta"]["a/b"]),
                (&json!("c"), &json!("c"))
            );
            assert!(opened["_meta"].get(SERVER_INFO).is_none() && opened.get("ttlMs").is_none());
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn half_a_surrogate_pair_keeps_no_server_from_starting_and_comes_out_as_it_went_in() {
    let about = json!({"serverInfo": {"name": "n HALF", "version": "1"}, "instructions": "i HALF"});
    let gateway = start("legacy", &about).await;
    let opened = Session::try_open(&gateway, "/mcp/fake", json!({})).await.text();
    for member in [r#""name": "n \ud800""#, r#""instructions":"i \ud800""#] {
        assert!(opened.contains(member), "{opened}");
    }
    let all = result_of(&Session::try_open(&gateway, "/mcp", json!({})).await);
    assert!(all["instructions"].as_str().unwrap().contains("i \u{fffd}"), "{all}");
    let said = gateway.mcp("/mcp/fake").call("half_error", json!({})).send().await.body;
    assert!(said.contains(r#""error":{"code":7,"message":"no \ud800","#), "{said}");
    let answer = gateway.call("fake", "half_error", "{}").await;
    assert_eq!(answer.status, 502);
    assert!(answer.text().contains(r#""message":"no \ud800""#), "{answer:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn an_extension_is_carried_between_modern_ends_at_one_server_alone() {
    let extensions = json!({"x/y": {"z": 1}, "io.modelcontextprotocol/tasks": {}});
    let about = json!({"capabilities": {"tools": {}, "extensions": extensions}});
    let gateway = start("modern", &about).await;
    let fake = gateway.fake("fake");
    let declared = || {
        let sent = fake.calls_of("result").pop().unwrap();
        sent["params"]["_meta"][CLIENT_CAPABILITIES].clone()
    };
    let (one, all) = (gateway.mcp("/mcp/fake"), gateway.mcp("/mcp"));
    assert_eq!(discovered(&one).await["capabilities"]["extensions"], extensions);
    assert!(discovered(&all).await["capabilities"]["extensions"].get("x/y").is_none());
    let mine = json!({"extensions": extensions, "elicitation": {}});
    let odd = json!({"value": {"resultType": "x/odd", "x": 1.5}});
    let said = one.call("result", odd.clone()).meta(CLIENT_CAPABILITIES, mine.clone()).send().await;
    assert_eq!(said.result(), odd["value"]);
    assert_eq!(declared(), mine);
    // Elsewhere nobody was told of it, so its results are as wrong as ever.
    let said =
        all.call("fake__result", odd.clone()).meta(CLIENT_CAPABILITIES, mine.clone()).send().await;
    assert_eq!(said.error()["data"]["code"], "backend_protocol");
    let known = json!({"io.modelcontextprotocol/tasks": {}});
    assert_eq!(declared(), json!({"extensions": known, "elicitation": {}}));
    one.call("result", odd).send().await.error();
    gateway.stop().await;
}
