//! Callers with a token of an identity provider.

use std::time::Duration;

use serde_json::json;
use tokio::time::{advance, pause, resume};

use crate::support::{
    AUDIENCE, Answer, Api, Gateway, ISSUER, Postgres, Provider, Setup, SigningKey, claims,
    eventually, now_s, refused,
};

async fn gateway(provider: &Provider) -> Gateway {
    setup(provider).start().await
}

fn setup(provider: &Provider) -> Setup {
    let oauth = format!(
        "[auth.oauth]\nissuer = {ISSUER:?}\naudience = {AUDIENCE:?}\njwks_url = {:?}\n\
         tenant_claim = \"tenant\"",
        provider.url()
    );
    let setup = Setup::new().without_anonymous().set(&oauth).std();
    setup.with_tenant("acme", "servers = [\"std/echo\"]")
}

async fn echo(api: &Api) -> Answer {
    api.call("std", "echo", r#"{"text":"x"}"#).await
}

#[tokio::test]
async fn a_token_is_as_good_as_a_key_of_the_tenant_it_names() {
    let key = SigningKey::ec("a");
    let provider = Provider::start(&[&key]).await;
    let gateway = gateway(&provider).await;
    let acme = gateway.with_key(&key.token(&claims(|_| ())));
    assert_eq!(echo(&acme).await.status, 200);
    assert_eq!(acme.call("std", "uuid", "").await.problem(), refused(404, "tool_not_found"));
    assert_eq!(acme.mcp("/mcp").tool_names().await, ["std__echo"]);
    assert_eq!(acme.get("/admin/v1/tenants").await.status, 401);
    assert_eq!(echo(&gateway.as_tenant("acme").await).await.status, 200);

    let stranger = key.token(&claims(|claims| claims["tenant"] = json!("stranger")));
    assert_eq!(echo(&gateway.with_key(&stranger)).await.problem(), refused(403, "forbidden"));
    gateway.stop().await;
}

#[tokio::test]
async fn a_token_that_is_not_valid_is_refused_and_its_client_told_where_to_get_one() {
    let [key, other] = ["a", "a"].map(SigningKey::ec);
    let provider = Provider::start(&[&key]).await;
    let gateway = gateway(&provider).await;
    let url = "https://gateway.example/.well-known/oauth-protected-resource/mcp";
    let expired = key.token(&claims(|claims| claims["exp"] = json!(now_s() - 100)));
    for token in [expired, other.token(&claims(|_| ()))] {
        let refusal = echo(&gateway.with_key(&token)).await;
        assert_eq!(refusal.problem(), refused(401, "unauthenticated"));
        let challenge = format!("Bearer resource_metadata=\"{url}\", error=\"invalid_token\"");
        assert_eq!(refusal.header("www-authenticate"), challenge);
    }
    let nobody = Answer::of(gateway.client.post(gateway.url("/mcp"))).await;
    assert_eq!(nobody.status, 401);
    assert_eq!(nobody.header("www-authenticate"), format!("Bearer resource_metadata=\"{url}\""));
    gateway.stop().await;
}

#[tokio::test]
async fn without_the_providers_keys_nobody_is_told_that_a_token_is_wrong() {
    let key = SigningKey::ec("a");
    let mut provider = Provider::start(&[&key]).await;
    provider.stop().await;
    let gateway = gateway(&provider).await;
    let answer = echo(&gateway.with_key(&key.token(&claims(|_| ())))).await;
    assert_eq!(answer.problem(), refused(503, "auth_unavailable").for_now());
    assert!(answer.retry_after().is_some());
    assert_eq!(echo(&gateway.as_tenant("acme").await).await.status, 200);
    gateway.stop().await;
}

#[tokio::test]
async fn after_an_hour_without_the_store_neither_tokens_nor_keys_let_anybody_in() {
    let Some(postgres) = Postgres::start() else { return };
    let key = SigningKey::ec("a");
    let provider = Provider::start(&[&key]).await;
    let gateway = setup(&provider).with_store(&postgres.database().await).start().await;
    let callers = [gateway.with_key(&key.token(&claims(|_| ()))), gateway.as_tenant("acme").await];
    for caller in &callers {
        assert_eq!(echo(caller).await.status, 200);
    }
    postgres.down();
    for caller in &callers {
        assert_eq!(echo(caller).await.status, 200);
    }
    // For timers, not for the network.
    pause();
    advance(Duration::from_secs(60 * 60 + 60)).await;
    resume();
    for caller in &callers {
        let refusal = echo(caller).await;
        assert_eq!(refusal.problem(), refused(503, "auth_unavailable").for_now());
    }
    postgres.up();
    for caller in &callers {
        eventually("let in again", async || (echo(caller).await.status == 200).then_some(())).await;
    }
    gateway.stop().await;
}
