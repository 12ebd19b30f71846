use super::*;

const AUTH: &str = "[auth.oauth]\nissuer = \"https://id.example\"\n\
    audience = \"https://gateway.example/mcp\"\njwks_url = \"https://id.example/keys\"\n\
    tenant_claim = \"t\"\n";
const CLIENT: &str = "client_id = \"gateway\"\nclient_secret = \"s\"\n";
const PROVIDER: &str =
    "identity_provider = { issuer = \"https://id.example\", client_id = \"c\" }\n";
const ISSUER: &str = "issuer = \"https://as.example\"\n";

fn setup(server: &str, oauth: &str) -> Setup {
    Setup::toml(&format!("{AUTH}[servers.a]\n{server}\n[servers.a.oauth]\n{CLIENT}{oauth}"))
}

fn at_url(oauth: &str) -> Setup {
    setup("url = \"https://a.example/mcp\"\nsharing = \"tenant\"", oauth)
}

fn oauth_of(setup: &Setup) -> UpstreamOAuth {
    setup.load().servers["a"].oauth().unwrap().clone()
}

#[test]
fn a_server_may_be_called_in_the_name_of_its_callers() {
    let exchange = format!("grant = \"token_exchange\"\n{ISSUER}audience = \"crm\"\n");
    let oauth = oauth_of(&at_url(&exchange));
    assert_eq!((oauth.grant, oauth.audience.as_deref()), (Grant::TokenExchange, Some("crm")));
    assert_eq!(oauth.subject_type(), SubjectType::AccessToken);
    assert!(at_url(&exchange).load().servers["a"].wants_caller_tokens());
    let jag = oauth_of(&at_url(&format!("grant = \"id_jag\"\n{PROVIDER}")));
    assert_eq!(jag.identity_provider.as_ref().unwrap().client_id, "c");
    assert_eq!(jag.subject_type(), SubjectType::IdToken);
    let asked = format!("grant = \"id_jag\"\nsubject_type = \"jwt\"\n{PROVIDER}");
    assert_eq!(oauth_of(&at_url(&asked)).subject_type(), SubjectType::Jwt);
}

#[test]
fn callers_tokens_go_to_nobody_that_a_server_names() {
    for (oauth, parts) in [
        ("grant = \"token_exchange\"\n".to_owned(), "needs `issuer` or `token_url`"),
        ("grant = \"id_jag\"\n".to_owned(), "needs an `identity_provider`"),
        (
            "grant = \"id_jag\"\nidentity_provider = { client_id = \"c\" }\n".to_owned(),
            "`identity_provider` without `issuer` or `token_url`",
        ),
        (
            format!("grant = \"id_jag\"\ntoken_url = \"https://as.example/t\"\n{PROVIDER}"),
            "has a `token_url` without `issuer`",
        ),
        (format!("grant = \"token_exchange\"\n{ISSUER}{PROVIDER}"), "for `grant = \"id_jag\"`"),
        (format!("{ISSUER}audience = \"x\"\n"), "for `grant = \"token_exchange\"`"),
        (format!("{ISSUER}subject_type = \"jwt\"\n"), "has a `subject_type`"),
        (format!("{ISSUER}variable = \"X\"\n"), "for servers that have a `command`"),
    ] {
        assert_has(&at_url(&oauth).error(), &[parts]);
    }
    let shared = format!("grant = \"token_exchange\"\n{ISSUER}");
    let error = setup("url = \"https://a.example/mcp\"", &shared).error();
    assert_has(&error, &["set `sharing = \"tenant\"`"]);
    let open = format!(
        "auth.anonymous_tenant = \"local\"\n[servers.a]\nurl = \"https://a.example/mcp\"\n\
         sharing = \"tenant\"\n[servers.a.oauth]\n{CLIENT}{shared}"
    );
    assert_has(&Setup::toml(&open).error(), &["no identity provider's tokens", "`[auth.oauth]`"]);
}

#[test]
fn a_program_gets_a_token_in_a_file() {
    let program = "command = \"cat\"";
    let oauth = oauth_of(&setup(program, &format!("{ISSUER}variable = \"TOKEN_FILE\"\n")));
    assert_eq!(oauth.variable.as_deref(), Some("TOKEN_FILE"));
    for (oauth, part) in [
        (ISSUER.to_owned(), "needs `variable`"),
        ("variable = \"X\"\n".to_owned(), "needs `issuer` or `token_url`"),
        (format!("{ISSUER}variable = \"a=b\"\n"), "must be the name of a variable"),
        (
            format!("{ISSUER}variable = \"X\"\ngrant = \"token_exchange\"\n"),
            "which a program cannot tell apart",
        ),
    ] {
        assert_has(&setup(program, &oauth).error(), &[part]);
    }
    let both = format!("{ISSUER}variable = \"X\"\n");
    let error = setup("command = \"cat\"\nenv = { X = \"y\" }", &both).error();
    assert_has(&error, &["`oauth.variable = \"X\"` and `env.X`: give one"]);
}
