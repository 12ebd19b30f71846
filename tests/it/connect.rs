//! Tenants that connect themselves to a server (OAuth, authorization code with PKCE).

use std::net::IpAddr;
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::secrets::KEY;
use crate::support::{
    Answer, Api, AuthorizationServer, Brought, Database, Gateway, HttpServer, Postgres, Setup,
    eventually, refused,
};

/// Allows metadata to lead to this machine.
const HERE: &str = "networks = [\"127.0.0.0/8\"]\n";

/// A server that takes tokens of `issuer` alone.
pub async fn server_of(issuer: &AuthorizationServer) -> HttpServer {
    let server = HttpServer::modern().await;
    accept(&server, issuer, "Bearer access-*", 401, "Bearer");
    server
}

fn accept(server: &HttpServer, issuer: &AuthorizationServer, token: &str, status: u16, say: &str) {
    let metadata = json!({"resource": server.url("/mcp"), "authorization_servers": [issuer.url()]});
    server.protect(vec![token.to_owned()], status, say, metadata);
}

pub fn settings(oauth: &str) -> String {
    format!(
        "sharing = \"tenant\"\nidle_timeout = \"1h\"\n[servers.web.oauth]\n\
         grant = \"authorization_code\"\n{HERE}{oauth}"
    )
}

fn setup(server: &HttpServer, oauth: &str) -> Setup {
    let grants = "servers = [\"*\"]";
    gateway().with_tenant("acme", grants).with_tenant("globex", grants).http(
        "web",
        &server.url("/mcp"),
        &settings(oauth),
    )
}

/// A gateway with an address for browsers, and keys.
pub fn gateway() -> Setup {
    let top = format!(
        "public_url = \"http://127.0.0.1:1\"\nsession_keys = [{KEY:?}]\n[secrets]\nkeys = [{KEY:?}]"
    );
    Setup::new().without_anonymous().set(&top)
}

/// A browser in which a person of a tenant is signed in.
pub struct Browser {
    client: Client,
    origin: String,
    pub cookies: Vec<String>,
}

impl Browser {
    pub async fn of(gateway: &Api, key: &str) -> Self {
        Self::at(gateway, key, [127, 0, 0, 1]).await
    }

    /// A browser at an address of its own: each address may sign in a few times a minute.
    pub async fn at(gateway: &Api, key: &str, address: [u8; 4]) -> Self {
        let client = Client::builder().no_proxy().local_address(IpAddr::from(address));
        let client = client.build().unwrap();
        let mut browser = Self { client, origin: gateway.url(""), cookies: vec![] };
        let answer = browser.send(Method::POST, "/me/session", &json!({"key": key})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        browser
    }

    /// Sends a request of the page's own script.
    pub async fn send(&mut self, method: Method, path: &str, body: &Value) -> Answer {
        let request = self.client.request(method, format!("{}{path}", self.origin));
        let request = request.header("trunkline-page", "1").header("origin", &self.origin);
        let request = request.header("cookie", self.cookies.join("; ")).body(body.to_string());
        let answer = Answer::of(request).await;
        let set = answer.headers.get("set-cookie").map(|it| it.to_str().unwrap().to_owned());
        if let Some(cookie) = set {
            assert!(cookie.contains("Path=/me;"), "{cookie}");
            assert!(cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
            self.cookies.push(cookie.split(';').next().unwrap().to_owned());
        }
        answer
    }

    /// Agrees on the gateway's page. Returns where the browser is sent.
    pub async fn begin(&mut self) -> String {
        let answer = self.send(Method::POST, "/me/connect/web", &json!({})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["redirect"].as_str().unwrap().to_owned()
    }

    pub async fn finish(&mut self, brought: &Brought) -> Answer {
        self.send(Method::POST, "/me/callback", &brought.body).await
    }

    pub async fn connect(&mut self, issuer: &AuthorizationServer, person: &str) {
        let redirect = self.begin().await;
        let answer = self.finish(&issuer.agree(&redirect, person)).await;
        assert_eq!((answer.status, &answer.json()["connected"]), (200, &json!(true)), "{answer:?}");
    }
}

/// A tenant's caller, and its browser.
async fn tenant(gateway: &Gateway, id: &str) -> (Api, Browser) {
    let key = gateway.new_key(id).await;
    let api = gateway.with_key(&key);
    let browser = Browser::of(&api, &key).await;
    (api, browser)
}

async fn echo(api: &Api) -> Answer {
    api.call("web", "echo", json!({"text": "a"})).await
}

#[tokio::test]
async fn each_tenant_uses_the_account_that_it_has_agreed_to() {
    let issuer = AuthorizationServer::start().await;
    let server = server_of(&issuer).await;
    let gateway = setup(&server, "scopes = [\"mail\"]\n").start().await;
    let (acme, mut of_acme) = tenant(&gateway, "acme").await;
    let (globex, mut of_globex) = tenant(&gateway, "globex").await;
    let refusal = echo(&acme).await;
    assert_eq!(refusal.problem(), refused(409, "connect_required"));
    let page = "http://127.0.0.1:1/me/connect/web?tenant=acme";
    assert_eq!(refusal.json()["connect_url"], page);
    let shown = acme.get("/v1/servers/web/connect").await.json();
    assert_eq!((&shown["connected"], &shown["url"]), (&json!(false), &json!(page)));

    let redirect = of_acme.begin().await;
    assert!(redirect.contains("scope=mail") && redirect.contains("resource="), "{redirect}");
    let brought = issuer.agree(&redirect, "alice");
    assert_eq!(brought.path, "/oauth/callback");
    assert_eq!(of_acme.finish(&brought).await.status, 200);
    assert_eq!(echo(&acme).await.tool_text(), "a");
    assert_eq!(echo(&globex).await.problem(), refused(409, "connect_required"));
    of_globex.connect(&issuer, "bob").await;
    assert_eq!(echo(&globex).await.tool_text(), "a");
    let used: Vec<_> = server.seen_of("tools/call");
    let used: Vec<_> = used.iter().map(|seen| seen.header("authorization").to_owned()).collect();
    assert!(used[0].starts_with("Bearer access-alice-"), "{used:?}");
    assert!(used[1].starts_with("Bearer access-bob-"), "{used:?}");
    assert_eq!(acme.get("/v1/servers/web/connect").await.json()["connected"], true);
    // Both use the client that was registered once, which has no secret.
    let registered = issuer.registered();
    assert_eq!(registered.len(), 1, "{registered:?}");
    assert_eq!(registered[0]["redirect_uris"], json!(["http://127.0.0.1:1/oauth/callback"]));
    // No secret of that name is shown, or can be removed.
    assert_eq!(acme.get("/v1/servers/web/secrets").await.json()["secrets"], json!([]));
    let path = "/v1/servers/web/secrets/oauth:connection";
    assert_eq!(crate::secrets::send(&acme, Method::DELETE, path, "").await.status, 404);
    gateway.stop().await;
}

#[tokio::test]
async fn an_answer_is_good_once_for_its_tenant_in_its_browser() {
    let issuer = AuthorizationServer::start().await;
    let server = server_of(&issuer).await;
    let gateway = setup(&server, "").start().await;
    let key = gateway.new_key("acme").await;
    let acme = gateway.with_key(&key);
    let mut of_acme = Browser::of(&acme, &key).await;
    let (_, mut of_globex) = tenant(&gateway, "globex").await;
    let mut elsewhere = Browser::of(&acme, &key).await;
    let is_refused = |answer: &Answer| {
        assert_eq!(answer.problem(), refused(400, "invalid_request"), "{answer:?}");
    };
    // Another tenant, whose browser has begun something of its own.
    of_globex.begin().await;
    let brought = issuer.agree(&of_acme.begin().await, "mallory");
    is_refused(&of_globex.finish(&brought).await);
    // Another browser of the same tenant, which uses the state up.
    elsewhere.begin().await;
    is_refused(&elsewhere.finish(&brought).await);
    is_refused(&of_acme.finish(&brought).await);
    assert_eq!(echo(&acme).await.problem(), refused(409, "connect_required"));
    // A browser that has begun nothing.
    let mut fresh = Browser::of(&acme, &key).await;
    let brought = issuer.agree(&of_acme.begin().await, "alice");
    is_refused(&fresh.finish(&brought).await);
    // The right one, once.
    assert_eq!(of_acme.finish(&brought).await.status, 200);
    is_refused(&of_acme.finish(&brought).await);
    assert_eq!(issuer.asked("authorization_code").len(), 1);
    // Nobody without a session, and no other page.
    let mut stranger = Browser { cookies: vec![], ..of_acme };
    let answer = stranger.send(Method::POST, "/me/connect/web", &json!({})).await;
    assert_eq!(answer.status, 401, "{answer:?}");
    let page = acme.get("/oauth/callback?code=x&state=y").await;
    assert_eq!((page.status, page.header("referrer-policy")), (200, "no-referrer"));
    gateway.stop().await;
}

#[tokio::test]
async fn an_answer_of_another_authorization_server_is_refused() {
    let (issuer, other) = (AuthorizationServer::start().await, AuthorizationServer::start().await);
    let server = server_of(&issuer).await;
    let gateway = setup(&server, "").start().await;
    let (_, mut browser) = tenant(&gateway, "acme").await;
    for iss in [json!(other.url()), Value::Null] {
        let mut brought = issuer.agree(&browser.begin().await, "alice");
        brought.body["iss"] = iss;
        let answer = browser.finish(&brought).await;
        assert!(answer.detail().contains("not from the authorization server"), "{answer:?}");
    }
    gateway.stop().await;

    // One that does not name itself has a page of its own.
    issuer.set_metadata(json!({"authorization_response_iss_parameter_supported": false}));
    let gateway = setup(&server, "").start().await;
    let (_, mut browser) = tenant(&gateway, "acme").await;
    let mut brought = issuer.agree(&browser.begin().await, "alice");
    assert_eq!(brought.path, "/oauth/callback/web");
    brought.body.as_object_mut().unwrap().remove("server");
    let answer = browser.finish(&brought).await;
    assert!(answer.detail().contains("not from the authorization server"), "{answer:?}");
    browser.connect(&issuer, "alice").await;
    assert_eq!(issuer.asked("authorization_code").len(), 1);

    // One that would give codes to whoever has seen them, or sends browsers to code.
    for (metadata, part) in [
        (json!({"code_challenge_methods_supported": ["plain"]}), "PKCE"),
        (json!({"authorization_endpoint": "javascript:alert(1)"}), "is not of HTTP"),
        (json!({"authorization_endpoint": "http://169.254.169.254/"}), "is private"),
        (json!({"issuer": "https://other.example"}), "those of another one"),
    ] {
        issuer.set_metadata(metadata);
        let gateway = setup(&server, "").start().await;
        let (_, mut browser) = tenant(&gateway, "acme").await;
        let answer = browser.send(Method::POST, "/me/connect/web", &json!({})).await;
        assert!(answer.detail().contains(part), "{answer:?}");
        gateway.stop().await;
    }
    gateway.stop().await;
}

#[tokio::test]
async fn tokens_are_refreshed_once_for_all_and_end_with_the_consent() {
    let issuer = AuthorizationServer::start().await;
    issuer.set_life(2);
    let server = server_of(&issuer).await;
    let gateway = setup(&server, "").start().await;
    let (acme, mut browser) = tenant(&gateway, "acme").await;
    browser.connect(&issuer, "alice").await;
    assert_eq!(echo(&acme).await.tool_text(), "a");
    tokio::time::sleep(Duration::from_millis(2100)).await;
    issuer.set_life(3600);
    let before = issuer.asked("refresh_token").len();
    let calls = [(); 30].map(|()| acme.spawn_call("web", "echo", json!({"text": "a"})));
    for call in calls {
        assert_eq!(call.await.unwrap().tool_text(), "a");
    }
    assert_eq!(issuer.asked("refresh_token").len(), before + 1);

    // The server forgets the token, and the person has taken the consent back.
    issuer.forget();
    accept(&server, &issuer, "Bearer none", 401, "Bearer error=\"invalid_token\"");
    tokio::time::sleep(Duration::from_millis(5100)).await;
    eventually("connect_required", async || {
        (echo(&acme).await.json()["code"] == "connect_required").then_some(())
    })
    .await;
    assert_eq!(acme.get("/v1/servers/web/connect").await.json()["connected"], false);
    accept(&server, &issuer, "Bearer access-*", 401, "Bearer");
    browser.connect(&issuer, "alice").await;
    assert_eq!(echo(&acme).await.tool_text(), "a");
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_wants_more_scopes_has_the_tenant_asked_again() {
    let issuer = AuthorizationServer::start().await;
    let server = server_of(&issuer).await;
    let gateway = setup(&server, "scopes = [\"read\"]\n").start().await;
    let (acme, mut browser) = tenant(&gateway, "acme").await;
    browser.connect(&issuer, "alice").await;
    assert_eq!(echo(&acme).await.tool_text(), "a");
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"read write\"";
    accept(&server, &issuer, "Bearer none", 403, challenge);
    let refusal = echo(&acme).await;
    assert_eq!(refusal.problem(), refused(409, "connect_required"), "{refusal:?}");
    accept(&server, &issuer, "Bearer access-*", 403, challenge);
    let redirect = browser.begin().await;
    assert!(redirect.contains("scope=read+write"), "{redirect}");
    assert_eq!(browser.finish(&issuer.agree(&redirect, "alice")).await.status, 200);
    assert_eq!(echo(&acme).await.tool_text(), "a");
    // A refusal that no consent mends is the caller's to see.
    accept(&server, &issuer, "Bearer none", 403, challenge);
    let refusal = echo(&acme).await;
    assert!(refusal.status >= 500, "{refusal:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn tokens_are_revoked_when_tenant_server_or_connection_goes() {
    let issuer = AuthorizationServer::start().await;
    let server = server_of(&issuer).await;
    let gateway = setup(&server, "").start().await;
    let (acme, mut of_acme) = tenant(&gateway, "acme").await;
    let (_, mut of_globex) = tenant(&gateway, "globex").await;
    let is_revoked = async |person: &str| {
        let tokens: Vec<_> =
            issuer.given().into_iter().filter(|it| it.contains(&format!("-{person}-"))).collect();
        assert_eq!(tokens.len(), 2);
        eventually("revoked", async || {
            let revoked = issuer.revoked();
            tokens.iter().all(|token| revoked.contains(token)).then_some(())
        })
        .await;
    };
    of_acme.connect(&issuer, "first").await;
    of_acme.connect(&issuer, "second").await;
    is_revoked("first").await;
    let path = "/v1/servers/web/connect";
    let ended = crate::secrets::send(&acme, Method::DELETE, path, "").await;
    assert_eq!((ended.status, &ended.json()["connected"]), (200, &json!(false)));
    is_revoked("second").await;
    assert_eq!(echo(&acme).await.problem(), refused(409, "connect_required"));
    of_acme.connect(&issuer, "third").await;
    of_globex.connect(&issuer, "fourth").await;
    // Of a tenant.
    let less = gateway.setup().clone().without_tenants();
    let less = less.with_tenant("globex", "servers = [\"*\"]");
    assert!(gateway.apply(&less).await);
    is_revoked("third").await;
    assert!(!issuer.revoked().iter().any(|token| token.contains("fourth")));
    // Of a server.
    assert!(gateway.apply(&less.without_servers()).await);
    is_revoked("fourth").await;
    gateway.stop().await;
}

/// Two gateways with one store: one of them refreshes, and the other has the token, too.
#[tokio::test]
async fn replicas_refresh_once_and_share_what_was_begun() {
    let Some(postgres) = Postgres::shared() else { return };
    let database = Database::postgres(postgres).await;
    let issuer = AuthorizationServer::start().await;
    let server = server_of(&issuer).await;
    let replica = || setup(&server, "").with_store(&database.url).start();
    let (one, two) = (replica().await, replica().await);
    let key = one.new_key("acme").await;
    let (at_one, at_two) = (one.with_key(&key), two.with_key(&key));
    issuer.set_life(2);
    // Begun at one, ended at the other.
    let mut browser = Browser::of(&at_one, &key).await;
    let brought = issuer.agree(&browser.begin().await, "alice");
    let mut browser = Browser { origin: at_two.url(""), ..browser };
    assert_eq!(browser.finish(&brought).await.status, 200);
    for api in [&at_two, &at_one] {
        eventually("connected", async || (echo(api).await.status == 200).then_some(())).await;
    }
    tokio::time::sleep(Duration::from_millis(2100)).await;
    issuer.set_life(3600);
    let before = issuer.asked("refresh_token").len();
    let calls = [(); 10].map(|()| {
        [&at_one, &at_two].map(|api| api.spawn_call("web", "echo", json!({"text": "a"})))
    });
    for call in calls.into_iter().flatten() {
        assert_eq!(call.await.unwrap().tool_text(), "a");
    }
    assert_eq!(issuer.asked("refresh_token").len(), before + 1);
    one.stop().await;
    two.stop().await;
}
