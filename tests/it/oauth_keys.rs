//! The identity provider's keys: when they are fetched, and what happens when they cannot be.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::json;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{advance, pause, resume};
use tokio_util::sync::CancellationToken;
use trunkline::tenants::oauth::{RETRY_AFTER, TokenError, Verifier};

use crate::support::{Provider, SigningKey, claims, eventually, in_time};

async fn verify(verifier: &Verifier, key: &SigningKey) -> Result<String, TokenError> {
    let verified = in_time("verified", verifier.verify(&key.token(&claims(|_| ())))).await;
    verified.map(|it| it.tenant.to_string())
}

/// Lets time pass for timers, but not for the network.
async fn after(time: Duration) {
    // Whoever has just been woken sets a timer first.
    yield_now().await;
    pause();
    advance(time).await;
    resume();
}

async fn asked(provider: &Provider, times: usize) {
    eventually("asked", async || (provider.requests() == times).then_some(())).await;
}

#[tokio::test]
async fn a_new_key_is_accepted_and_an_old_one_is_not_without_a_restart() {
    let (old, new) = (SigningKey::ec("old"), SigningKey::ec("new"));
    let provider = Provider::start(&[&old]).await;
    let verifier = provider.verifier();
    assert_eq!(verify(&verifier, &old).await.as_deref(), Ok("acme"));
    after(Duration::from_secs(30)).await;
    provider.publish(&[&new]);
    assert_eq!(verify(&verifier, &old).await.as_deref(), Ok("acme"));
    assert_eq!(provider.requests(), 1);
    assert_eq!(verify(&verifier, &new).await.as_deref(), Ok("acme"));
    assert_eq!(verify(&verifier, &old).await, Err(TokenError::UnknownKey));
    assert_eq!(provider.requests(), 2);
}

#[tokio::test]
async fn keys_are_fetched_at_once_and_every_five_minutes() {
    let (key, new) = (SigningKey::ec("a"), SigningKey::ec("b"));
    let provider = Provider::start(&[&key]).await;
    let stop = CancellationToken::new();
    let verifier = provider.verifier();
    let running = tokio::spawn(verifier.clone().run(stop.clone()));
    yield_now().await;
    // Under way already: a token waits for it, and does not begin another.
    assert_eq!(verify(&verifier, &key).await.as_deref(), Ok("acme"));
    assert_eq!(provider.requests(), 1);
    after(Duration::from_secs(299)).await;
    provider.publish(&[&new]);
    assert_eq!(verify(&verifier, &key).await.as_deref(), Ok("acme"));
    assert_eq!(provider.requests(), 1);
    after(Duration::from_secs(2)).await;
    asked(&provider, 2).await;
    assert_eq!(verify(&verifier, &new).await.as_deref(), Ok("acme"));
    assert_eq!(provider.requests(), 2);
    stop.cancel();
    in_time("stopped", running).await.unwrap();
}

#[tokio::test]
async fn a_flood_of_unknown_keys_is_one_fetch_in_thirty_seconds() {
    let key = SigningKey::ec("a");
    let provider = Provider::start(&[&key]).await;
    let verifier = provider.verifier();
    let token = |id: usize| {
        let header = json!({"alg": "ES256", "kid": format!("unknown-{id}")});
        key.token_with(&header, &claims(|_| ()))
    };
    let flood = async |verifier: &Arc<Verifier>| {
        let mut calls = JoinSet::new();
        for id in 0..200 {
            let (verifier, token) = (verifier.clone(), token(id));
            calls.spawn(async move { verifier.verify(&token).await });
        }
        for outcome in in_time("all refused", calls.join_all()).await {
            assert_eq!(outcome, Err(TokenError::UnknownKey));
        }
    };
    flood(&verifier).await;
    assert_eq!(provider.requests(), 1);
    flood(&verifier).await;
    assert_eq!(provider.requests(), 1);
    after(Duration::from_secs(29)).await;
    flood(&verifier).await;
    assert_eq!(provider.requests(), 1);
    after(Duration::from_secs(1)).await;
    flood(&verifier).await;
    assert_eq!(provider.requests(), 2);
    assert_eq!(verify(&verifier, &key).await.as_deref(), Ok("acme"));
}

#[tokio::test]
async fn known_keys_work_while_the_provider_is_away() {
    let (key, unknown) = (SigningKey::ec("a"), SigningKey::ec("b"));
    let mut provider = Provider::start(&[&key]).await;
    let verifier = provider.verifier();
    assert_eq!(verify(&verifier, &key).await.as_deref(), Ok("acme"));
    for answer in ["", "<html>", "{}"] {
        after(Duration::from_secs(30)).await;
        provider.publish_text(answer.to_owned());
        assert_eq!(verify(&verifier, &unknown).await, Err(TokenError::UnknownKey));
        assert_eq!(verify(&verifier, &key).await.as_deref(), Ok("acme"));
    }
    provider.stop().await;
    after(Duration::from_secs(30)).await;
    assert_eq!(verify(&verifier, &unknown).await, Err(TokenError::UnknownKey));
    assert_eq!(verify(&verifier, &key).await.as_deref(), Ok("acme"));
    assert_eq!(provider.requests(), 4);
}

#[tokio::test]
async fn without_any_keys_nobody_can_tell() {
    let key = SigningKey::ec("a");
    let provider = Provider::start(&[]).await;
    provider.publish_text("not yet".to_owned());
    let verifier = provider.verifier();
    tokio::spawn(verifier.clone().run(CancellationToken::new()));
    assert_eq!(verify(&verifier, &key).await, Err(TokenError::KeysUnavailable));
    // Forgeries are refused all the same.
    assert_eq!(verifier.verify("e30.e30.e30").await, Err(TokenError::Malformed));
    let before = provider.requests();
    provider.publish(&[&key]);
    after(RETRY_AFTER).await;
    asked(&provider, before + 1).await;
    eventually("loaded", async || verify(&verifier, &key).await.ok()).await;
    assert_eq!(provider.requests(), before + 1);
}

#[tokio::test]
async fn a_silent_provider_holds_nobody_for_long() {
    let (key, unknown) = (SigningKey::ec("a"), SigningKey::ec("b"));
    let provider = Provider::start(&[&key]).await;
    let verifier = provider.verifier();
    assert_eq!(verify(&verifier, &key).await.as_deref(), Ok("acme"));
    after(Duration::from_secs(30)).await;
    provider.fall_silent();
    let waiting = {
        let (verifier, token) = (verifier.clone(), unknown.token(&claims(|_| ())));
        tokio::spawn(async move { verifier.verify(&token).await })
    };
    asked(&provider, 2).await;
    assert!(!waiting.is_finished());
    assert_eq!(verify(&verifier, &key).await.as_deref(), Ok("acme"));
    after(Duration::from_secs(5)).await;
    assert_eq!(in_time("given up", waiting).await.unwrap(), Err(TokenError::UnknownKey));
    // Nor is there a second wait.
    assert_eq!(verify(&verifier, &unknown).await, Err(TokenError::UnknownKey));
    assert_eq!(provider.requests(), 2);
}

#[tokio::test]
async fn who_stops_waiting_does_not_stop_the_fetch() {
    let key = SigningKey::ec("a");
    let provider = Provider::start(&[&key]).await;
    let verifier = provider.verifier();
    let token = key.token(&claims(|_| ()));
    // Polled once, which begins the fetch, and dropped.
    assert!(verifier.verify(&token).now_or_never().is_none());
    asked(&provider, 1).await;
    eventually("loaded", async || verify(&verifier, &key).await.ok()).await;
    assert_eq!(provider.requests(), 1);
}

#[tokio::test]
async fn what_is_too_much_or_elsewhere_is_not_taken() {
    let key = SigningKey::ec("a");
    let honest = Provider::start(&[&key]).await;
    let provider = Provider::start(&[]).await;
    provider.redirect_to(honest.url());
    assert_eq!(verify(&provider.verifier(), &key).await, Err(TokenError::KeysUnavailable));
    assert_eq!((provider.requests(), honest.requests()), (1, 0));

    let with_more = |len: usize| json!({"keys": [key.jwk()], "more": "x".repeat(len)}).to_string();
    provider.publish_text(with_more(1 << 20));
    assert_eq!(verify(&provider.verifier(), &key).await, Err(TokenError::KeysUnavailable));
    provider.publish_text(with_more(1_000_000));
    assert_eq!(verify(&provider.verifier(), &key).await.as_deref(), Ok("acme"));

    let many = |len: usize| json!({"keys": vec![key.jwk(); len]}).to_string();
    provider.publish_text(many(101));
    assert_eq!(verify(&provider.verifier(), &key).await, Err(TokenError::KeysUnavailable));
    provider.publish_text(many(100));
    assert_eq!(verify(&provider.verifier(), &key).await.as_deref(), Ok("acme"));
}
