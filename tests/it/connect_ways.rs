//! Less usual ways of tenants' connections: the document that is the gateway's id, the command,
//! keys that rotate, a client that opens a page, and authorization servers that lie.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::connect::{Browser, gateway, server_of, settings};
use crate::secrets::KEY;
use crate::support::mcp_modern::CLIENT_CAPABILITIES;
use crate::support::{
    Api, AuthorizationServer, Database, HttpServer, Setup, eventually, refused, trunkline,
};

const GRANTS: &str = "servers = [\"*\"]";

async fn echo(api: &Api) -> crate::support::Answer {
    api.call("web", "echo", json!({"text": "a"})).await
}

#[tokio::test]
async fn the_gateway_is_known_by_a_document_that_it_serves() {
    let issuer = AuthorizationServer::start().await;
    issuer.set_metadata(json!({"client_id_metadata_document_supported": true}));
    let server = server_of(&issuer).await;
    let top = format!(
        "public_url = \"https://gateway.example\"\nsession_keys = [{KEY:?}]\n[secrets]\n\
         keys = [{KEY:?}]"
    );
    let setup = Setup::new().without_anonymous().set(&top).with_tenant("acme", GRANTS);
    let gateway = setup.http("web", &server.url("/mcp"), &settings("")).start().await;
    let key = gateway.new_key("acme").await;
    let acme = gateway.with_key(&key);
    let mut browser = Browser::of(&acme, &key).await;
    let redirect = browser.begin().await;
    let id = "https://gateway.example/oauth/clients/web";
    let asked = reqwest::Url::parse(&redirect).unwrap();
    let asked = |name: &str| {
        let found = asked.query_pairs().find(|(it, _)| it == name);
        found.map(|(_, value)| value.into_owned())
    };
    assert_eq!(asked("client_id").as_deref(), Some(id));
    assert_eq!(browser.finish(&issuer.agree(&redirect, "alice")).await.status, 200);
    assert_eq!(echo(&acme).await.tool_text(), "a");
    assert_eq!(issuer.registered(), [] as [Value; 0]);
    // Anybody may read it, and it says what was asked.
    let document = gateway.get("/oauth/clients/web").await;
    assert_eq!((document.status, document.header("content-type")), (200, "application/json"));
    let document = document.json();
    assert_eq!(document["client_id"], id);
    assert_eq!(document["application_type"], "web");
    assert_eq!(document["token_endpoint_auth_method"], "none");
    let redirects = document["redirect_uris"].as_array().unwrap();
    assert!(redirects.contains(&json!(asked("redirect_uri").unwrap())), "{document}");
    assert_eq!(gateway.get("/oauth/clients/other").await.problem(), refused(404, "not_found"));
    gateway.stop().await;
}

#[tokio::test]
async fn a_command_names_the_page_and_says_why_there_is_none() {
    let issuer = AuthorizationServer::start().await;
    let server = server_of(&issuer).await;
    let setup = gateway().with_tenant("acme", GRANTS).std();
    let setup = setup.http("web", &server.url("/mcp"), &settings(""));
    setup.write();
    let said = trunkline(&setup, &["connect", "acme", "web"]).await;
    let page = "http://127.0.0.1:1/me/connect/web?tenant=acme\n";
    assert_eq!((said.status.code(), &*String::from_utf8_lossy(&said.stdout)), (Some(0), page));
    for (tenant, server, part) in [
        ("acme", "nowhere", "there is no server `nowhere`"),
        ("acme", "std", "tenants do not connect themselves to server `std`"),
        ("nobody", "web", "`nobody`"),
    ] {
        let said = trunkline(&setup, &["connect", tenant, server]).await;
        let error = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!((said.status.code(), said.stdout.len()), (Some(2), 0), "{error}");
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn connections_are_encrypted_again_when_keys_rotate() {
    let database = Database::sqlite();
    let issuer = AuthorizationServer::start().await;
    let server = server_of(&issuer).await;
    let new = KEY.chars().rev().collect::<String>();
    let with_keys = |keys: &[&str]| {
        let top = format!(
            "public_url = \"http://127.0.0.1:1\"\nsession_keys = [{KEY:?}]\n[secrets]\n\
             keys = {keys:?}"
        );
        let setup = Setup::new().without_anonymous().set(&top).with_tenant("acme", GRANTS);
        let setup = setup.http("web", &server.url("/mcp"), &settings(""));
        setup.with_store(&database.url)
    };
    let gateway = with_keys(&[KEY]).start().await;
    let key = gateway.new_key("acme").await;
    Browser::of(&gateway.with_key(&key), &key).await.connect(&issuer, "alice").await;
    assert_eq!(echo(&gateway.with_key(&key)).await.tool_text(), "a");
    gateway.stop().await;
    let both = with_keys(&[&new, KEY]);
    both.write();
    let rotate = async || {
        let said = trunkline(&both, &["secret", "rotate"]).await;
        String::from_utf8(said.stderr).unwrap()
    };
    // The tokens, and the mark that there are some.
    let said = rotate().await;
    assert!(said.contains("encrypted 2 of 2 secrets again"), "{said}");
    let said = rotate().await;
    assert!(said.contains("encrypted 0 of 2 secrets again"), "{said}");
    // The old key is of no use any more, and nobody has to agree again.
    let gateway = with_keys(&[&new]).start().await;
    assert_eq!(echo(&gateway.with_key(&key)).await.tool_text(), "a");
    gateway.stop().await;
    let gateway = with_keys(&[KEY]).start().await;
    assert_eq!(echo(&gateway.with_key(&key)).await.problem(), refused(409, "connect_required"));
    gateway.stop().await;
    assert_eq!(issuer.asked("authorization_code").len(), 1);
}

#[tokio::test]
async fn a_modern_client_opens_the_page_and_its_call_goes_on() {
    let issuer = AuthorizationServer::start().await;
    let server = server_of(&issuer).await;
    let setup = gateway().with_tenant("acme", GRANTS).with_tenant("globex", GRANTS);
    let gateway = setup.http("web", &server.url("/mcp"), &settings("")).start().await;
    let key = gateway.new_key("acme").await;
    let acme = gateway.with_key(&key);
    let mcp = acme.mcp("/mcp/web");
    let can = json!({"elicitation": {"url": {}}});
    let call =
        |can: &Value| mcp.call("echo", json!({"text": "a"})).meta(CLIENT_CAPABILITIES, can.clone());
    let asked = call(&can).send().await.result();
    assert_eq!(asked["resultType"], "input_required");
    let question = &asked["inputRequests"]["trunkline/connect"];
    assert_eq!(
        (&question["method"], &question["params"]["mode"]),
        (&json!("elicitation/create"), &json!("url"))
    );
    let page = "http://127.0.0.1:1/me/connect/web?tenant=acme";
    assert_eq!(question["params"]["url"], page);
    let state = asked["requestState"].as_str().unwrap().to_owned();
    let answer = |action: &str| json!({"trunkline/connect": {"action": action}});
    let again = |action: &str| {
        let retry = call(&can).id("2").param("requestState", state.clone());
        retry.param("inputResponses", answer(action))
    };
    // Whoever does not want to, or cannot, is told the address instead.
    for refusal in
        [again("decline").send().await, call(&json!({"elicitation": {"form": {}}})).send().await]
    {
        let error = refusal.answer()["error"].clone();
        assert_eq!(error["data"]["code"], "connect_required", "{error}");
        assert_eq!(error["data"]["connectUrl"], page, "{error}");
    }
    // The state is of this tenant's call alone.
    let other = gateway.as_tenant("globex").await;
    let stolen = other.mcp("/mcp/web").call("echo", json!({"text": "a"}));
    let stolen = stolen.meta(CLIENT_CAPABILITIES, can.clone()).param("requestState", state.clone());
    let stolen = stolen.param("inputResponses", answer("accept")).send().await;
    assert!(stolen.answer().get("error").is_some(), "{stolen:?}");
    // The client comes back while its user is still at the page: the call waits, and goes on.
    let waiting = again("accept").spawn();
    Browser::of(&acme, &key).await.connect(&issuer, "alice").await;
    assert_eq!(waiting.await.unwrap().tool_text(), "a");
    assert_eq!(call(&can).send().await.tool_text(), "a");
    gateway.stop().await;
}

/// An authorization server that lies: redirects, and answers without an end.
struct Liar {
    url: String,
    told: Arc<Told>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Told {
    /// The path that lies, and how.
    lie: parking_lot::Mutex<(&'static str, &'static str)>,
    /// Requests that came to where a redirect leads.
    followed: AtomicUsize,
}

impl Liar {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let told = Arc::<Told>::default();
        let router = Router::new().fallback(lie).with_state((url.clone(), told.clone()));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, told, serving }
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn lie(State((url, told)): State<(String, Arc<Told>)>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let (at, how) = *told.lie.lock();
    if path == "/elsewhere" {
        told.followed.fetch_add(1, Ordering::SeqCst);
    }
    if path.starts_with(at) {
        return match how {
            "redirect" => {
                let there = [(header::LOCATION, format!("{url}/elsewhere"))];
                (StatusCode::TEMPORARY_REDIRECT, there).into_response()
            }
            "endless" => {
                let chunk = || Ok::<_, std::io::Error>("x".repeat(16 * 1024));
                Body::from_stream(stream::repeat_with(chunk)).into_response()
            }
            text => text.to_owned().into_response(),
        };
    }
    match path.as_str() {
        "/.well-known/oauth-authorization-server" => json!({
            "issuer": url, "token_endpoint": format!("{url}/token"),
            "authorization_endpoint": format!("{url}/ask"),
            "registration_endpoint": format!("{url}/register"),
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
            "authorization_response_iss_parameter_supported": true,
        })
        .to_string()
        .into_response(),
        "/register" => (StatusCode::CREATED, r#"{"client_id":"c"}"#).into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

#[tokio::test]
async fn an_authorization_server_that_lies_gets_no_further_and_is_named() {
    let liar = Liar::start().await;
    for (at, how, part) in [
        ("/.well-known", "redirect", "answered with the HTTP status 307"),
        ("/.well-known", "endless", "is too long"),
        ("/.well-known", "<html>", "cannot be read"),
        ("/register", "redirect", "answered with the HTTP status 307"),
        ("/register", "endless", "is too long"),
        ("/register", "{}", "no `client_id`"),
        ("/token", "redirect", "answered with the HTTP status 307"),
        ("/token", "endless", "is too long"),
        ("/token", r#"{"access_token":"a b","token_type":"Bearer"}"#, "no bearer token"),
        ("/token", r#"{"access_token":"a","token_type":"mac"}"#, "no bearer token"),
    ] {
        *liar.told.lie.lock() = (at, how);
        let server = HttpServer::modern().await;
        let metadata = json!({"resource": server.url("/mcp"), "authorization_servers": [liar.url]});
        server.protect(vec![], 401, "Bearer", metadata);
        let setup = gateway().with_tenant("acme", GRANTS);
        let gateway = setup.http("web", &server.url("/mcp"), &settings("")).start().await;
        let key = gateway.new_key("acme").await;
        let acme = gateway.with_key(&key);
        let mut browser = Browser::of(&acme, &key).await;
        let begun = browser.send(Method::POST, "/me/connect/web", &json!({})).await;
        let answer = if at == "/token" {
            let redirect = begun.json()["redirect"].as_str().unwrap().to_owned();
            let redirect = reqwest::Url::parse(&redirect).unwrap();
            let state = redirect.query_pairs().find(|(name, _)| name == "state").unwrap();
            let brought = json!({"state": state.1, "code": "c", "iss": liar.url});
            browser.send(Method::POST, "/me/callback", &brought).await
        } else {
            begun
        };
        assert!(answer.status >= 400, "{at} {how}: {answer:?}");
        assert!(answer.detail().contains(part), "{at} {how}: {answer:?}");
        assert!(!answer.text().contains("xxxx"), "{at} {how}");
        assert_eq!(echo(&acme).await.problem(), refused(409, "connect_required"));
        gateway.stop().await;
    }
    assert_eq!(liar.told.followed.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_scope_refusal_during_the_handshake_has_the_tenant_asked_for_more() {
    let issuer = AuthorizationServer::start().await;
    let server = server_of(&issuer).await;
    let setup = gateway().with_tenant("acme", GRANTS);
    let oauth = settings("scopes = [\"read\"]\n");
    let gateway = setup.http("web", &server.url("/mcp"), &oauth).start().await;
    let key = gateway.new_key("acme").await;
    let acme = gateway.with_key(&key);
    let mut browser = Browser::of(&acme, &key).await;
    browser.connect(&issuer, "alice").await;
    let metadata = json!({"resource": server.url("/mcp"), "authorization_servers": [issuer.url()]});
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"read write\"";
    server.protect(vec!["Bearer none".to_owned()], 403, challenge, metadata.clone());
    // The first call starts the connection, whose handshake is refused.
    assert_eq!(echo(&acme).await.problem(), refused(409, "connect_required"));
    assert_eq!(echo(&acme).await.problem(), refused(409, "connect_required"));
    server.protect(vec!["Bearer access-*".to_owned()], 403, challenge, metadata);
    let redirect = browser.begin().await;
    assert!(redirect.contains("scope=read+write"), "{redirect}");
    assert_eq!(browser.finish(&issuer.agree(&redirect, "alice")).await.status, 200);
    eventually("it works", async || (echo(&acme).await.status == 200).then_some(())).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_with_another_authorization_server_has_its_tenants_connect_there() {
    let (old, new) = (AuthorizationServer::start().await, AuthorizationServer::start().await);
    let server = server_of(&old).await;
    let setup = gateway().with_tenant("acme", GRANTS);
    let gateway = setup.http("web", &server.url("/mcp"), &settings("")).start().await;
    let key = gateway.new_key("acme").await;
    let acme = gateway.with_key(&key);
    let mut browser = Browser::of(&acme, &key).await;
    browser.connect(&old, "alice").await;
    assert_eq!(echo(&acme).await.tool_text(), "a");
    let metadata = json!({"resource": server.url("/mcp"), "authorization_servers": [new.url()]});
    server.protect(vec!["Bearer access-bob-*".to_owned()], 401, "Bearer", metadata);
    eventually("connect_required", async || {
        (echo(&acme).await.json()["code"] == "connect_required").then_some(())
    })
    .await;
    browser.connect(&new, "bob").await;
    eventually("it works", async || (echo(&acme).await.status == 200).then_some(())).await;
    // Nothing of the old one was shown to the new one, and its tokens are revoked there.
    assert_eq!((new.registered().len(), new.asked("refresh_token").len()), (1, 0));
    eventually("revoked", async || (!old.revoked().is_empty()).then_some(())).await;
    assert_eq!(new.revoked(), [] as [String; 0]);
    gateway.stop().await;
}

/// The name of a server, letter for letter as its metadata have it.
#[tokio::test]
async fn the_resource_is_named_as_the_servers_metadata_name_it() {
    let issuer = AuthorizationServer::start().await;
    let server = HttpServer::modern().await;
    let origin = server.url("");
    let metadata = json!({"resource": origin, "authorization_servers": [issuer.url()]});
    server.protect(vec!["Bearer access-*".to_owned()], 401, "Bearer", metadata);
    let setup = gateway().with_tenant("acme", GRANTS);
    let gateway = setup.http("web", &server.url("/mcp"), &settings("")).start().await;
    let key = gateway.new_key("acme").await;
    Browser::of(&gateway.with_key(&key), &key).await.connect(&issuer, "alice").await;
    assert_eq!(issuer.asked("authorization_code")[0]["resource"], origin);
    gateway.stop().await;
}
