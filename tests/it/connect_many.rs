//! Many tenants, each with an account of its own at one server.
//!
//! `TRUNKLINE_TENANTS=100 cargo test --test it -- connect_many` has a hundred of them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::connect::{Browser, gateway, server_of, settings};
use crate::support::{Api, AuthorizationServer, Database, eventually};

/// Without `TRUNKLINE_TENANTS`.
const TENANTS: u8 = 15;
/// At once, from each tenant.
const CALLS: usize = 4;
const ROUNDS: usize = 3;
/// The life of a token, in seconds.
const LIFE: u64 = 2;

#[tokio::test(flavor = "multi_thread")]
async fn of_many_tenants_each_token_is_refreshed_once_and_seen_by_its_server_alone() {
    let tenants = std::env::var("TRUNKLINE_TENANTS").map_or(TENANTS, |text| text.parse().unwrap());
    let database = Database::sqlite();
    let issuer = AuthorizationServer::start().await;
    let server = server_of(&issuer).await;
    let names: Vec<String> = (0..tenants).map(|n| format!("t{n}")).collect();
    let (limits, tenants) = ("servers = [\"*\"]\n", usize::from(tenants));
    let setup = names.iter().fold(gateway(), |setup, name| setup.with_tenant(name, limits));
    let settings = format!("max_tenants = 200\n{}", settings("scopes = [\"mail\"]\n"));
    let setup = setup.raw("[log]\ncalls = \"all\"\n").with_store(&database.url);
    let serving = setup.http("web", &server.url("/mcp"), &settings).serve().await;
    issuer.set_life(LIFE);
    let mut callers: Vec<Api> = vec![];
    for (number, name) in (1..).zip(&names) {
        let key = serving.setup().new_key(name).await;
        let api = Api::new(serving.addr, None).with_key(&key);
        Browser::at(&api, &key, [127, 0, 1, number]).await.connect(&issuer, name).await;
        callers.push(api);
    }
    let mut said = String::new();
    for _ in 0..ROUNDS {
        let calls = callers.iter().zip(&names).flat_map(|(api, name)| {
            [(); CALLS].map(|()| api.spawn_call("web", "echo", json!({"text": name})))
        });
        for call in calls.collect::<Vec<_>>() {
            let answer = call.await.unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            said += &format!("{answer:?}");
        }
        tokio::time::sleep(Duration::from_secs(LIFE)).await;
    }
    // A refresh token is used once, and so is an end of an access token.
    let mut used: Vec<_> = issuer.asked("refresh_token");
    let asked = used.len();
    assert!(asked >= (ROUNDS - 1) * tenants, "{asked}");
    used.sort_by(|a, b| a["refresh_token"].cmp(&b["refresh_token"]));
    used.dedup_by(|a, b| a["refresh_token"] == b["refresh_token"]);
    assert_eq!(used.len(), asked, "a refresh token was used twice");

    // Errors, too.
    server.refuse_everything(Some(500));
    for (api, name) in callers.iter().zip(&names) {
        said += &format!("{:?}", api.call("web", "echo", json!({"text": name})).await);
        said += &api.get("/v1/servers/web/connect").await.text();
        said += &api.get("/v1/servers").await.text();
    }
    said += &serving.get("/metrics").await.text();
    let administrator =
        Api::new(serving.addr, None).with_key(&serving.setup().new_admin_key().await);
    for path in ["servers", "tenants", "audit", "calls", "usage"] {
        said += &administrator.get(&format!("/admin/v1/{path}")).await.text();
    }
    eventually("logged", async || {
        let lines = serving.log();
        lines.iter().any(|line| line.contains("backend_http")).then_some(())
    })
    .await;
    said += &serving.log().join("\n");
    said += &plain_texts(database.dir().unwrap());
    let given = issuer.given();
    assert!(given.len() >= 2 * ROUNDS * tenants);
    for token in &given {
        assert!(!said.contains(token.as_str()), "{token} was told");
    }
    // Each call had its own tenant's token, and no other text of the request had any.
    let calls = server.seen_of("tools/call");
    assert!(calls.len() >= ROUNDS * tenants * CALLS, "{}", calls.len());
    for call in calls {
        let name = call.message["params"]["arguments"]["text"].as_str().unwrap();
        let shown = call.header("authorization");
        assert!(shown.starts_with(&format!("Bearer access-{name}-")), "{name}: {shown}");
        let message = call.message.to_string();
        assert!(!message.contains("access-") && !message.contains("refresh-"), "{message}");
    }
}

/// Returns all that the store has written, as text.
fn plain_texts(dir: &Path) -> String {
    let files = fs::read_dir(dir).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
    files.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
}
