//! Servers that are called in the name of each caller: its own token is exchanged (RFC 8693), or
//! the identity provider asserts who it is (ID-JAG).

use std::time::Duration;

use serde_json::json;

use crate::support::{
    AUDIENCE, Answer, Api, Asked, HttpServer, ISSUER, Provider, Setup, SigningKey, TokenEndpoint,
    claims, eventually, now_s, refused,
};

const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";
const CLIENT: &str = "client_id = \"gateway\"\nclient_secret = \"s3cret\"\n";

/// An identity provider, an authorization server, and a server that takes its tokens alone.
struct World {
    key: SigningKey,
    provider: Provider,
    endpoint: TokenEndpoint,
    server: HttpServer,
}

impl World {
    async fn new() -> Self {
        let key = SigningKey::ec("a");
        let provider = Provider::start(&[&key]).await;
        let (endpoint, server) = (TokenEndpoint::start().await, HttpServer::modern().await);
        let metadata =
            json!({"resource": server.url("/mcp"), "authorization_servers": [endpoint.url()]});
        server.protect(vec!["Bearer token-*".to_owned()], 401, "Bearer", metadata);
        Self { key, provider, endpoint, server }
    }

    fn setup(&self, oauth: &str) -> Setup {
        let auth = format!(
            "[auth.oauth]\nissuer = {ISSUER:?}\naudience = {AUDIENCE:?}\njwks_url = {:?}\n\
             tenant_claim = \"tenant\"\nclient_id = \"gateway-at-provider\"",
            self.provider.url()
        );
        let settings = format!("sharing = \"tenant\"\n[servers.web.oauth]\n{CLIENT}{oauth}");
        Setup::new()
            .without_anonymous()
            .set(&auth)
            .with_tenant("acme", "servers = [\"*\"]")
            .with_tenant("globex", "servers = [\"*\"]")
            .http("web", &self.server.url("/mcp"), &settings)
    }

    fn exchanging(&self) -> Setup {
        self.setup(&format!(
            "grant = \"token_exchange\"\nissuer = {:?}\nscopes = [\"read\"]\naudience = \"crm\"\n",
            self.endpoint.url()
        ))
    }

    fn token(&self, tenant: &str, person: &str) -> String {
        self.key.token(&claims(|claims| {
            claims["tenant"] = json!(tenant);
            claims["sub"] = json!(person);
        }))
    }

    /// The token that was given for a caller's.
    fn given_for(&self, token: &str) -> String {
        let asked = self.endpoint.asked();
        let at = asked.iter().position(|it| it.get("subject_token") == token);
        format!("Bearer token-{}", at.expect("exchanged") + 1)
    }

    fn used(&self) -> Vec<String> {
        let calls = self.server.seen_of("tools/call");
        calls.iter().map(|seen| seen.header("authorization").to_owned()).collect()
    }
}

async fn echo(api: &Api) -> Answer {
    api.call("web", "echo", json!({"text": "a"})).await
}

fn exchanges(asked: Vec<Asked>) -> usize {
    asked.iter().filter(|it| it.get("grant_type") == EXCHANGE).count()
}

#[tokio::test]
async fn each_caller_has_tokens_of_its_own_and_no_server_gets_the_callers() {
    let world = World::new().await;
    let gateway = world.exchanging().start().await;
    let tokens = [("acme", "alice"), ("acme", "bob"), ("globex", "carol")]
        .map(|(tenant, person)| world.token(tenant, person));
    let callers = tokens.each_ref().map(|token| gateway.with_key(token));
    for _ in 0..3 {
        for (caller, token) in callers.iter().zip(&tokens) {
            assert_eq!(echo(caller).await.tool_text(), "a");
            assert_eq!(world.used().last(), Some(&world.given_for(token)));
        }
    }
    let asked = world.endpoint.asked();
    assert_eq!(exchanges(asked.clone()), 3, "{asked:?}");
    let first = &asked[0];
    assert_eq!(first.get("subject_token_type"), "urn:ietf:params:oauth:token-type:access_token");
    assert_eq!(first.get("resource"), world.server.url("/mcp"));
    assert_eq!((first.get("audience"), first.get("scope")), ("crm", "read"));
    // `gateway` and `s3cret`.
    assert_eq!(first.authorization, "Basic Z2F0ZXdheTpzM2NyZXQ=");
    // Neither the lists and the handshake nor the calls have a caller's own token.
    for seen in world.server.seen() {
        let sent = seen.header("authorization");
        assert!(sent.is_empty() || sent.starts_with("Bearer token-"), "{sent}");
    }
    // Whoever is of the tenant sees the tools, and MCP clients call in their own name, too.
    assert_eq!(callers[1].tools("web").await.status, 200);
    assert!(callers[1].mcp("/mcp").tool_names().await.contains(&"web__echo".to_owned()));
    gateway.stop().await;
}

#[tokio::test]
async fn callers_at_once_wait_for_one_exchange_and_a_keyed_call_has_its_callers_token() {
    let world = World::new().await;
    let gateway = world.exchanging().start().await;
    let token = world.token("acme", "alice");
    let alice = gateway.with_key(&token);
    world.endpoint.hold();
    let calls = [(); 20].map(|()| alice.spawn_call("web", "echo", json!({"text": "a"})));
    eventually("asked", async || (!world.endpoint.asked().is_empty()).then_some(())).await;
    world.endpoint.release();
    for call in calls {
        assert_eq!(call.await.unwrap().tool_text(), "a");
    }
    assert_eq!(exchanges(world.endpoint.asked()), 1);
    let keyed = alice.post("web", "echo", json!({"text": "k"})).header("idempotency-key", "k");
    assert_eq!(Answer::of(keyed).await.tool_text(), "k");
    assert_eq!(world.used().last(), Some(&world.given_for(&token)));
    // Nobody is there to exchange for when it is answered.
    let later = alice.post("web", "echo", json!({"text": "a"})).header("prefer", "respond-async");
    let refusal = Answer::of(later).await;
    assert_eq!(refusal.problem(), refused(403, "token_required"));
    assert!(refusal.detail().contains("respond-async"), "{refusal:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_caller_with_a_key_is_told_to_send_a_token() {
    let world = World::new().await;
    let gateway = world.exchanging().start().await;
    let acme = gateway.as_tenant("acme").await;
    let refusal = echo(&acme).await;
    assert_eq!(refusal.problem(), refused(403, "token_required"));
    assert!(refusal.detail().contains("instead of an API key"), "{refusal:?}");
    assert_eq!(acme.tools("web").await.problem(), refused(403, "token_required"));
    // Other servers are listed all the same.
    assert_eq!(acme.mcp("/mcp").tool_names().await, [] as [&str; 0]);
    assert_eq!((exchanges(world.endpoint.asked()), world.server.seen().len()), (0, 0));
    gateway.stop().await;
}

#[tokio::test]
async fn a_refused_exchange_is_named_and_holds_up_nobody_else() {
    let world = World::new().await;
    let gateway = world.exchanging().start().await;
    world.endpoint.refuse(400);
    let mallory = gateway.with_key(&world.token("acme", "mallory"));
    let refusal = echo(&mallory).await;
    assert_eq!(refusal.problem(), refused(403, "token_required"));
    assert!(refusal.detail().contains("`invalid_client`"), "{refusal:?}");
    assert!(!refusal.text().contains("token-secret"), "{refusal:?}");
    // Nothing was started for a caller without a token of the server.
    assert_eq!(world.server.seen_of("server/discover").len(), 0);
    world.endpoint.refuse(200);
    let alice = gateway.with_key(&world.token("acme", "alice"));
    assert_eq!(echo(&alice).await.tool_text(), "a");
    gateway.stop().await;
}

#[tokio::test]
async fn a_token_that_is_the_callers_own_is_not_used() {
    let world = World::new().await;
    let gateway = world.exchanging().start().await;
    let token = world.token("acme", "alice");
    world.endpoint.set_answer(json!({"access_token": token}));
    let refusal = echo(&gateway.with_key(&token)).await;
    assert_eq!(refusal.problem(), refused(503, "server_unavailable").for_now());
    let seen = world.server.seen();
    assert!(seen.iter().all(|it| it.header("authorization").is_empty()), "{seen:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn tokens_end_with_the_callers_and_a_new_token_is_exchanged_anew() {
    let world = World::new().await;
    let gateway = world.exchanging().start().await;
    let claims = claims(|claims| claims["exp"] = json!(now_s() + 2));
    let short = gateway.with_key(&world.key.token(&claims));
    assert_eq!(echo(&short).await.tool_text(), "a");
    tokio::time::sleep(Duration::from_millis(3100)).await;
    // The gateway tolerates clocks that differ; the exchange does not outlive the caller's token.
    let refusal = echo(&short).await;
    assert_eq!(refusal.problem(), refused(403, "token_required"), "{refusal:?}");
    assert!(refusal.detail().contains("has expired"), "{refusal:?}");
    assert_eq!(exchanges(world.endpoint.asked()), 1);
    let next = gateway.with_key(&world.token("acme", "someone"));
    assert_eq!(echo(&next).await.tool_text(), "a");
    assert_eq!(exchanges(world.endpoint.asked()), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_wants_more_scopes_has_the_token_exchanged_again() {
    let world = World::new().await;
    let gateway = world.exchanging().start().await;
    let alice = gateway.with_key(&world.token("acme", "alice"));
    assert_eq!(echo(&alice).await.tool_text(), "a");
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"read write\"";
    world.server.protect(vec!["Bearer token-2".to_owned()], 403, challenge, json!({}));
    assert_eq!(echo(&alice).await.tool_text(), "a");
    assert_eq!(world.endpoint.asked()[1].get("scope"), "read write");
    gateway.stop().await;
}

#[tokio::test]
async fn an_identity_provider_asserts_who_the_caller_is() {
    let (world, provider) = (World::new().await, TokenEndpoint::start().await);
    provider.set_answer(json!({
        "access_token": "the.jag.itself", "issued_token_type": ID_JAG, "token_type": "N_A",
        "expires_in": 300,
    }));
    let oauth = format!(
        "grant = \"id_jag\"\nscopes = [\"read\"]\nnetworks = [\"127.0.0.0/8\"]\n\
         [servers.web.oauth.identity_provider]\nissuer = {:?}\n\
         client_id = \"gateway-at-provider\"\nclient_secret = \"other\"\n",
        provider.url()
    );
    let gateway = world.setup(&oauth).start().await;
    // An ID token: for the gateway as a client of the provider.
    let token = world.key.token(&claims(|it| it["aud"] = json!("gateway-at-provider")));
    let alice = gateway.with_key(&token);
    for _ in 0..3 {
        assert_eq!(echo(&alice).await.tool_text(), "a");
    }
    let [exchange] = &provider.asked()[..] else { panic!("{:?}", provider.asked()) };
    for (name, value) in [
        ("grant_type", EXCHANGE),
        ("requested_token_type", ID_JAG),
        ("subject_token", &token),
        ("subject_token_type", "urn:ietf:params:oauth:token-type:id_token"),
        ("audience", world.endpoint.url()),
        ("resource", &world.server.url("/mcp")),
        ("scope", "read"),
    ] {
        assert_eq!(exchange.get(name), value, "{name}");
    }
    // `gateway-at-provider` and `other`.
    assert_eq!(exchange.authorization, "Basic Z2F0ZXdheS1hdC1wcm92aWRlcjpvdGhlcg==");
    let [grant] = &world.endpoint.asked()[..] else { panic!("{:?}", world.endpoint.asked()) };
    assert_eq!((grant.get("grant_type"), grant.get("assertion")), (JWT_BEARER, "the.jag.itself"));
    assert_eq!(grant.authorization, "Basic Z2F0ZXdheTpzM2NyZXQ=");
    assert!(grant.form.iter().all(|(_, value)| *value != token));
    assert_eq!(world.used(), ["Bearer token-1"; 3]);

    // An answer that is no assertion, as a provider without the extension gives.
    provider.set_answer(json!({"access_token": "x", "issued_token_type": "y"}));
    let bob = gateway.with_key(&world.token("globex", "bob"));
    assert_eq!(echo(&bob).await.problem(), refused(503, "server_unavailable").for_now());
    assert_eq!(world.endpoint.asked().len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn callers_tokens_are_told_to_nobody() {
    let world = World::new().await;
    let setup = world.exchanging().raw("[log]\ncalls = \"all\"\n");
    let admin = setup.new_admin_key().await;
    let serving = setup.serve().await;
    let api = Api::new(serving.addr, None);
    let admin = api.with_key(&admin);
    let [good, bad] = ["alice", "mallory"].map(|person| world.token("acme", person));
    let mut said = format!("{:?}", echo(&api.with_key(&good)).await);
    world.endpoint.refuse(400);
    said += &format!("{:?}", echo(&api.with_key(&bad)).await);
    world.server.protect(vec![], 401, "Bearer scope=\"more\"", json!({}));
    said += &format!("{:?}", echo(&api.with_key(&good)).await);
    for path in ["/metrics", "/admin/v1/servers", "/admin/v1/calls", "/admin/v1/audit"] {
        said += &format!("{:?}", admin.get(path).await.text());
    }
    serving.logged("\"tool\":\"echo\"").await;
    said += &serving.log().join("\n");
    for secret in [&good, &bad, "token-1", "s3cret", "Z2F0ZXdheTpzM2NyZXQ"] {
        assert!(!said.contains(secret), "{secret} is in {said}");
    }
    let store = std::fs::read(serving.setup().dir.path().join("trunkline.db")).unwrap_or_default();
    let store = String::from_utf8_lossy(&store).into_owned();
    assert!(!store.contains(&good) && !store.contains(&bad));
}
