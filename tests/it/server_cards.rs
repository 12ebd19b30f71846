//! The catalog of endpoints and their cards: what anonymous callers may see, and nothing else.

use serde_json::{Value, json};

use crate::support::{Answer, Gateway, Setup, eventually};

const CATALOG: &str = "/.well-known/ai-catalog.json";

async fn get(gateway: &Gateway, path: &str) -> Answer {
    Answer::of(gateway.client.get(gateway.url(path))).await
}

fn names(catalog: &Answer) -> Vec<String> {
    let entries = catalog.json()["entries"].as_array().unwrap().clone();
    let name = |entry: &Value| {
        assert_eq!(entry["type"], "application/mcp-server-card+json");
        entry["identifier"].as_str().unwrap().split_once(":mcp:").unwrap().1.to_owned()
    };
    entries.iter().map(name).collect()
}

#[tokio::test]
async fn the_catalog_leads_to_the_cards_of_what_anonymous_callers_may_see() {
    let info = json!({"serverInfo": {"name": "f", "version": "7.1", "title": "T\u{1b}itle",
        "description": "x".repeat(300), "icons": [{"src": "data:secret"}]}});
    let setup = Setup::new().std();
    let about = setup.dir.path().join("about.json");
    std::fs::write(&about, info.to_string()).unwrap();
    let option = format!("about={}", about.display());
    let setup = setup.fake_with("known", &[&option], "").fake("hidden").fake_with(
        "lazy",
        &[],
        "start = \"lazy\"",
    );
    let rights = "servers = [\"known\", \"lazy\", \"std/echo\", \"toolset:mine\"]";
    let setup = setup.with_tenant("local", rights).set("public_url = \"https://gw.example.com\"");
    let setup =
        setup.raw("[toolsets.mine]\ntools = [\"std/echo\"]\n[toolsets.other]\ntools = [\"std\"]\n");
    let gateway = setup.start().await;
    let catalog = get(&gateway, CATALOG).await;
    assert_eq!(catalog.header("content-type"), "application/ai-catalog+json");
    assert_eq!(catalog.header("cache-control"), "public, max-age=60");
    assert_eq!(catalog.json()["specVersion"], "1.0");
    assert_eq!(names(&catalog), ["mcp", "known", "lazy", "std", "t:mine"]);
    let entry = &catalog.json()["entries"][1];
    assert_eq!(entry["identifier"], "urn:air:gw.example.com:mcp:known");
    for entry in catalog.json()["entries"].as_array().unwrap() {
        let url = entry["url"].as_str().unwrap().strip_prefix("https://gw.example.com").unwrap();
        let card = get(&gateway, url).await;
        assert_eq!(
            (card.status, card.header("content-type")),
            (200, "application/mcp-server-card+json")
        );
        let endpoint = card.json()["remotes"][0]["url"].as_str().unwrap().to_owned();
        let path = endpoint.strip_prefix("https://gw.example.com").unwrap();
        let found = gateway.mcp(path).ask("server/discover", json!({})).send().await.result();
        let info = &found["_meta"]["io.modelcontextprotocol/serverInfo"];
        if path != "/mcp/lazy" {
            assert_eq!(card.json()["version"], info["version"], "{path}");
        }
        for member in ["name", "description", "$schema"] {
            assert!(card.json()[member].is_string(), "{member}");
        }
    }
    let card = get(&gateway, "/mcp/known/server-card").await;
    let (etag, text) = (card.header("etag").to_owned(), card.text());
    let card = card.json();
    assert_eq!((&card["name"], &card["title"]), (&json!("com.example.gw/known"), &json!("Title")));
    assert_eq!(card["description"].as_str().unwrap().len(), 100);
    assert!(!text.contains("secret"), "{text}");
    let again = gateway.client.get(gateway.url("/mcp/known/server-card"));
    let again = Answer::of(again.header("if-none-match", &etag)).await;
    assert_eq!((again.status, again.body.len(), again.header("etag")), (304, 0, etag.as_str()));
    for path in ["/mcp/hidden/server-card", "/mcp/t/other/server-card", "/mcp/none/server-card"] {
        assert_eq!(get(&gateway, path).await.status, 404, "{path}");
    }
    // A key shows no more: these are for everybody.
    let key = gateway.new_key("local").await;
    assert_eq!(names(&gateway.with_key(&key).get(CATALOG).await), names(&catalog));
    gateway.stop().await;
}

#[tokio::test]
async fn nothing_is_shown_without_anonymous_callers() {
    let setup = Setup::new().without_anonymous().std().with_tenant("a", "servers = [\"*\"]");
    let gateway = setup.start().await;
    let key = gateway.new_key("a").await;
    for path in [CATALOG, "/server-card", "/mcp/std/server-card"] {
        assert_eq!(get(&gateway, path).await.status, 404, "{path}");
        assert_eq!(gateway.with_key(&key).get(path).await.status, 404, "{path}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn the_catalog_follows_a_reload_and_pages_of_other_sites_do_not_read_it() {
    let setup = Setup::new().std();
    let gateway = setup.clone().start().await;
    let first = get(&gateway, CATALOG).await;
    assert_eq!(names(&first), ["mcp", "std"]);
    assert_eq!(first.header("cache-control"), "private, no-cache");
    let url = first.json()["entries"][0]["url"].as_str().unwrap().to_owned();
    assert_eq!(url, gateway.url("/server-card"));
    assert!(gateway.apply(&setup.fake("more")).await);
    eventually("more", async || {
        (names(&get(&gateway, CATALOG).await) == ["mcp", "more", "std"]).then_some(())
    })
    .await;
    let foreign = gateway.client.get(gateway.url(CATALOG)).header("origin", "https://evil.example");
    assert_eq!(Answer::of(foreign).await.status, 403);
    let rebound = gateway.client.get(gateway.url(CATALOG)).header("host", "evil.example");
    assert_eq!(Answer::of(rebound).await.status, 403);
    gateway.stop().await;
}
