use super::*;

const OAUTH: &str = r#"
    [auth.oauth]
    issuer = "https://id.example"
    audience = "https://gateway.example/mcp"
    jwks_url = "https://id.example/keys?v=1"
    tenant_claim = "tenant"
"#;

fn with(key: &str, value: &str) -> Setup {
    let other = |line: &&str| !line.trim_start().starts_with(key);
    let lines: Vec<_> = OAUTH.lines().filter(other).collect();
    Setup::toml(&format!("{}\n{key} = {value}", lines.join("\n")))
}

#[test]
fn an_identity_provider_has_four_settings() {
    let oauth = OAuth {
        issuer: "https://id.example".to_owned(),
        audience: "https://gateway.example/mcp".to_owned(),
        jwks_url: "https://id.example/keys?v=1".parse().unwrap(),
        tenant_claim: "/tenant".to_owned(),
        client_id: None,
    };
    assert_eq!(Setup::toml(OAUTH).load().auth.oauth, Some(oauth));
    assert_eq!(Setup::empty().load().auth.oauth, None);
    for key in ["issuer", "audience", "jwks_url", "tenant_claim"] {
        let others = |line: &&str| !line.trim_start().starts_with(key);
        let text: Vec<_> = OAUTH.lines().filter(others).collect();
        let error = Setup::toml(&text.join("\n")).error();
        assert_has(&error, &[&format!("trunkline.toml:2: `auth.oauth.{key}` is missing: ")]);
    }
}

#[test]
fn every_setting_can_be_a_variable() {
    let setup = Setup::toml(OAUTH).var("TRUNKLINE_AUTH__OAUTH__ISSUER", "https://other.example");
    assert_eq!(setup.load().auth.oauth.unwrap().issuer, "https://other.example");
}

#[test]
fn urls_are_safe_from_others_and_kept_as_they_are_written() {
    for good in [
        "https://gateway.example",
        "https://gateway.example/",
        "https://Gateway.example:443/mcp",
        "http://localhost:8080/mcp",
        "http://127.0.0.1:8080/mcp",
        "http://[::1]:8080/mcp",
    ] {
        let oauth = with("audience", &format!("{good:?}")).load().auth.oauth.unwrap();
        assert_eq!(oauth.audience, good);
        assert!(with("jwks_url", &format!("{good:?}")).load().auth.oauth.is_some());
    }
    for key in ["issuer", "audience", "jwks_url"] {
        for bad in [
            "1",
            "''",
            "'gateway'",
            "'http://gateway.example/mcp'",
            "'http://127.0.0.1.example/mcp'",
            "'ftp://localhost/mcp'",
            "'https:/gateway.example'",
            "'https://'",
            "'https://user@gateway.example'",
            "'https://gateway.example/m\"cp'",
            "'https://gateway.example/mcp '",
            "'https://gäteway.example/mcp'",
        ] {
            let error = with(key, bad).error();
            assert_has(&error, &[&format!(": `auth.oauth.{key}` must be a URL with https")]);
            assert_has(&error, &["http if it is on this machine"]);
        }
    }
    for bad in ["'https://gateway.example/mcp?x'", "'https://gateway.example/mcp#x'"] {
        assert_has(&with("audience", bad).error(), &["nothing after its path"]);
        assert_has(&with("issuer", bad).error(), &["nothing after its path"]);
    }
}

#[test]
fn the_tenant_is_a_claim_or_inside_of_one() {
    for (text, pointer) in [
        ("sub", "/sub"),
        ("org.id", "/org.id"),
        ("/org/id", "/org/id"),
        ("https://id.example/te~nant", "/https:~1~1id.example~1te~0nant"),
    ] {
        let oauth = with("tenant_claim", &format!("{text:?}")).load().auth.oauth.unwrap();
        assert_eq!(oauth.tenant_claim, pointer);
    }
    for bad in ["''", "'/'", "1", &format!("{:?}", "x".repeat(257))] {
        let error = with("tenant_claim", bad).error();
        assert_has(
            &error,
            &["`auth.oauth.tenant_claim` must be the name of a claim", "/org/id", "256"],
        );
    }
}
