//! Tokens of an identity provider: which are accepted, and what clients are told about them.

use aws_lc_rs::hmac;
use serde_json::{Value, json};
use trunkline::tenants::oauth::TokenError;

use crate::support::{
    AUDIENCE, Answer, ISSUER, Provider, Setup, SigningKey, claims, now_s, refused, token_of,
};

/// A change to good claims, by name.
type Change = (&'static str, fn(&mut Value), TokenError);

async fn verify(keys: &[&SigningKey], token: &str) -> Result<String, TokenError> {
    let provider = Provider::start(keys).await;
    provider.verifier().verify(token).await.map(|it| it.tenant.to_string())
}

#[tokio::test]
async fn tokens_of_each_kind_of_key_are_accepted() {
    let keys = [SigningKey::rsa("r"), SigningKey::ec("e"), SigningKey::ed("d")];
    let provider = Provider::start(&keys.each_ref()).await;
    let verifier = provider.verifier();
    for key in &keys {
        let tenant = verifier.verify(&key.token(&claims(|_| ()))).await;
        assert_eq!(tenant.unwrap().tenant.as_str(), "acme", "{}", key.algorithm());
        // None of the three is like another: no name is needed.
        let nameless = key.token_with(&json!({"alg": key.algorithm()}), &claims(|_| ()));
        assert!(verifier.verify(&nameless).await.is_ok(), "{}", key.algorithm());
    }
    let pss = keys[0].token_with(&json!({"alg": "PS384", "kid": "r"}), &claims(|_| ()));
    assert!(verifier.verify(&pss).await.is_ok());
    assert_eq!(provider.requests(), 1);
}

#[tokio::test]
async fn claims_may_say_more_and_clocks_may_differ() {
    let key = SigningKey::ed("a");
    let provider = Provider::start(&[&key]).await;
    let verifier = provider.verifier();
    let changes: [fn(&mut Value); 5] = [
        |claims| claims["aud"] = json!(["https://other.example", AUDIENCE]),
        |claims| claims["exp"] = json!(now_s() - 20),
        |claims| claims["nbf"] = json!(now_s() + 20),
        |claims| claims["exp"] = json!(now_s() as f64 + 1.5),
        |claims| claims["more"] = json!({"a": [1, null]}),
    ];
    for change in changes {
        let token = key.token(&claims(change));
        assert_eq!(verifier.verify(&token).await.unwrap().tenant.as_str(), "acme");
    }
}

#[tokio::test]
async fn a_token_with_a_wrong_claim_is_refused() {
    let changes: &[Change] = &[
        ("issuer", |c| c["iss"] = json!("https://evil.example"), TokenError::Issuer),
        ("almost the issuer", |c| c["iss"] = json!("https://id.example/"), TokenError::Issuer),
        ("two issuers", |c| c["iss"] = json!([ISSUER, "x"]), TokenError::Issuer),
        ("no issuer", |c| drop(remove(c, "iss")), TokenError::Issuer),
        ("audience", |c| c["aud"] = json!("https://other.example"), TokenError::Audience),
        ("audiences", |c| c["aud"] = json!(["a", "b"]), TokenError::Audience),
        ("a longer audience", |c| c["aud"] = json!(format!("{AUDIENCE}/x")), TokenError::Audience),
        ("no audiences", |c| c["aud"] = json!([]), TokenError::Audience),
        ("no audience", |c| drop(remove(c, "aud")), TokenError::Audience),
        ("a null audience", |c| c["aud"] = json!(null), TokenError::Audience),
        ("expired", |c| c["exp"] = json!(now_s() - 40), TokenError::Expired),
        ("no end", |c| drop(remove(c, "exp")), TokenError::Expired),
        ("a text as end", |c| c["exp"] = json!("2999"), TokenError::Expired),
        ("not yet", |c| c["nbf"] = json!(now_s() + 40), TokenError::NotYetValid),
        ("a text as begin", |c| c["nbf"] = json!("1"), TokenError::Malformed),
        ("no tenant", |c| drop(remove(c, "tenant")), TokenError::Tenant),
        ("a number as tenant", |c| c["tenant"] = json!(5), TokenError::Tenant),
        ("tenants", |c| c["tenant"] = json!(["acme"]), TokenError::Tenant),
        ("a bad tenant", |c| c["tenant"] = json!("a b"), TokenError::Tenant),
        ("an empty tenant", |c| c["tenant"] = json!(""), TokenError::Tenant),
        ("the gateway itself", |c| c["tenant"] = json!("_gateway"), TokenError::Tenant),
        ("no object", |c| *c = json!([1]), TokenError::Malformed),
    ];
    let key = SigningKey::ec("a");
    let provider = Provider::start(&[&key]).await;
    let verifier = provider.verifier();
    for (what, change, error) in changes {
        let token = key.token(&claims(change));
        assert_eq!(verifier.verify(&token).await, Err(*error), "{what}");
    }
}

#[tokio::test]
async fn a_token_that_its_key_has_not_signed_is_refused() {
    let (key, other) = (SigningKey::ec("a"), SigningKey::ec("b"));
    let keys = [&key, &other];
    let token = key.token(&claims(|_| ()));
    assert_eq!(verify(&keys, &token).await.as_deref(), Ok("acme"));

    let (message, signature) = token.rsplit_once('.').unwrap();
    let (header, _) = message.split_once('.').unwrap();
    let changed = key.token(&claims(|claims| claims["tenant"] = json!("other")));
    let (changed, _) = changed.rsplit_once('.').unwrap();
    let as_other = |id: &str| json!({"alg": "ES256", "kid": id});
    for forged in [
        format!("{changed}.{signature}"),
        format!("{message}."),
        format!("{message}.{}", "A".repeat(signature.len())),
        // Signed by a key that is known, but is not the one it names.
        other.token_with(&as_other("a"), &claims(|_| ())),
        // Signed by anybody, with a key of their own in the header.
        SigningKey::ec("a").token(&claims(|_| ())),
        token_with_own_key(&SigningKey::ec("a")),
    ] {
        assert_eq!(verify(&keys, &forged).await, Err(TokenError::Signature), "{forged}");
    }
    for forged in [format!("{header}.e30"), format!("{token}.e30"), format!("{token}="), "x".into()]
    {
        assert_eq!(verify(&keys, &forged).await, Err(TokenError::Malformed), "{forged}");
    }
}

#[tokio::test]
async fn the_algorithm_is_the_keys_and_not_the_tokens() {
    let key = SigningKey::rsa("a");
    let provider = Provider::start(&[&key]).await;
    let verifier = provider.verifier();
    let jwk = key.jwk();
    // Whoever takes the public key for a shared secret would believe this.
    let secrets = [jwk["n"].as_str().unwrap().to_owned(), jwk.to_string()];
    for secret in secrets {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let header = json!({"alg": "HS256", "kid": "a"});
        let token = token_of(&header, &claims(|_| ()), |message| {
            hmac::sign(&secret, message).as_ref().to_vec()
        });
        assert_eq!(verifier.verify(&token).await, Err(TokenError::Algorithm));
    }
    for algorithm in ["none", "NONE", "ES256", "EdDSA", "RS1", ""] {
        let header = json!({"alg": algorithm, "kid": "a"});
        let unsigned = token_of(&header, &claims(|_| ()), |_| vec![]);
        assert_eq!(verifier.verify(&unsigned).await, Err(TokenError::Algorithm), "{algorithm}");
        let signed = key.token_with(&header, &claims(|_| ()));
        assert_eq!(verifier.verify(&signed).await, Err(TokenError::Algorithm), "{algorithm}");
    }
    // The key says for itself what it is for.
    let mut jwk = key.jwk();
    jwk["alg"] = json!("PS256");
    provider.publish_text(json!({"keys": [jwk]}).to_string());
    let token = key.token(&claims(|_| ()));
    assert_eq!(provider.verifier().verify(&token).await, Err(TokenError::Algorithm));
}

#[tokio::test]
async fn a_token_of_another_kind_is_refused() {
    let key = SigningKey::ec("a");
    let keys = [&key];
    for more in [
        json!({"crit": ["exp"]}),
        json!({"crit": ["b64"], "b64": false}),
        json!({"typ": "logout+jwt"}),
        json!({"typ": "dpop+jwt"}),
    ] {
        let mut header = json!({"alg": "ES256", "kid": "a"});
        header.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let token = key.token_with(&header, &claims(|_| ()));
        assert_eq!(verify(&keys, &token).await, Err(TokenError::Malformed), "{header}");
    }
    let long = key.token(&claims(|claims| claims["more"] = json!("x".repeat(7000))));
    assert!(long.len() > 8192, "{}", long.len());
    assert_eq!(verify(&keys, &long).await, Err(TokenError::Malformed));
    let shorter = key.token(&claims(|claims| claims["more"] = json!("x".repeat(5000))));
    assert_eq!(verify(&keys, &shorter).await.as_deref(), Ok("acme"));
}

#[tokio::test]
async fn clients_without_a_token_are_told_where_to_get_one() {
    let oauth = format!(
        "[auth.oauth]\nissuer = {ISSUER:?}\naudience = {AUDIENCE:?}\n\
         jwks_url = \"http://localhost/\"\n\
         tenant_claim = \"tenant\""
    );
    let app = "https://app.example";
    let setup = Setup::new().without_anonymous().set(&format!("allowed_origins = [{app:?}]"));
    let gateway = setup.set(&oauth).start().await;
    for path in ["", "/mcp", "/mcp/std"] {
        let path = format!("/.well-known/oauth-protected-resource{path}");
        let request = gateway.client.get(gateway.url(&path)).header("origin", app);
        let answer = Answer::of(request).await;
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, "application/json"),
            "{answer:?}"
        );
        assert_eq!(answer.header("access-control-allow-origin"), app);
        let expected = json!({
            "resource": AUDIENCE,
            "authorization_servers": [ISSUER],
            "bearer_methods_supported": ["header"],
        });
        assert_eq!(answer.json(), expected);
    }
    let elsewhere = gateway.get("/.well-known/oauth-protected-resource/v1").await;
    assert_eq!(elsewhere.problem(), refused(404, "not_found"));
    gateway.stop().await;
}

#[tokio::test]
async fn without_an_identity_provider_there_is_nothing_to_tell() {
    let gateway = Setup::new().std().start().await;
    for path in ["", "/mcp", "/mcp/std"] {
        let path = format!("/.well-known/oauth-protected-resource{path}");
        assert_eq!(gateway.get(&path).await.problem(), refused(404, "not_found"));
    }
    gateway.stop().await;
}

fn remove(claims: &mut Value, name: &str) -> Option<Value> {
    claims.as_object_mut().unwrap().remove(name)
}

/// A key or an address of keys in the token's own header must not count.
fn token_with_own_key(key: &SigningKey) -> String {
    let header = json!({
        "alg": "ES256",
        "kid": "a",
        "jwk": key.jwk(),
        "jku": "http://127.0.0.1:1/keys",
        "x5u": "http://127.0.0.1:1/cert",
    });
    key.token_with(&header, &claims(|_| ()))
}
