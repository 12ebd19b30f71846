//! The API describes itself, for a caller with its own tools.

use serde_json::{Value, json};

use crate::support::{Answer, Setup};

/// Collects what the document refers to.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
            members.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[tokio::test]
async fn a_caller_sees_an_operation_for_each_of_its_tools_and_no_other() {
    let setup = Setup::new().without_anonymous().std().talker("one", "modern");
    let setup = setup.with_tenant("acme", "servers = [\"std/echo\", \"one\"]");
    let gateway = setup.start().await;
    let document = gateway.as_tenant("acme").await.get("/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    let echo = &document["paths"]["/v1/servers/std/tools/echo"]["post"];
    let input = echo["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str();
    let input = document.pointer(input.unwrap().trim_start_matches('#')).unwrap();
    assert_eq!(input["properties"]["text"]["type"], "string", "{input}");
    assert!(document["paths"].get("/v1/servers/std/tools/hash").is_none());
    // Whatever a tool is called, it has a path of its own.
    let tools = gateway.as_tenant("acme").await.tools("one").await.json()["tools"].clone();
    let paths = document["paths"].as_object().unwrap();
    let described = paths.keys().filter(|path| path.starts_with("/v1/servers/one/tools/"));
    assert_eq!(described.count(), tools.as_array().unwrap().len());
    let mut found = vec![];
    references(&document, &mut found);
    for reference in found {
        let pointer = reference.strip_prefix('#').expect("no other document");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }

    // Without a key there are no tools; with a wrong one there is nothing.
    let anonymous = gateway.get("/openapi.json").await;
    assert_eq!(anonymous.status, 200);
    assert!(anonymous.json()["paths"].get("/v1/servers/std/tools/echo").is_none());
    let administrator = gateway.with_key(&gateway.setup().new_admin_key().await);
    assert_eq!(administrator.get("/openapi.json").await.text(), anonymous.text());
    assert_eq!(gateway.with_key("tl_no_key").get("/openapi.json").await.status, 401);
    gateway.stop().await;
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere_and_shows_text_only() {
    let gateway = Setup::new().start().await;
    for (path, content_type) in [
        ("/docs", "text/html; charset=utf-8"),
        ("/docs/docs.js", "text/javascript; charset=utf-8"),
        ("/docs/docs.css", "text/css; charset=utf-8"),
    ] {
        let answer: Answer = gateway.get(path).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, content_type));
        let policy = answer.header("content-security-policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        let text = answer.text();
        assert!(!text.contains("http://") && !text.contains("https://"), "{path}");
        for markup in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!text.contains(markup), "{path} uses {markup}");
        }
    }
    assert_eq!(
        gateway.get("/openapi.json").await.json()["info"]["license"]["name"],
        json!("Apache-2.0")
    );
    gateway.stop().await;
}
