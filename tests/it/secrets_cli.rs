//! `trunkline secret`.

use serde_json::Value;

use crate::secrets::{setup, token};
use crate::support::{Setup, trunkline, trunkline_reading, within};

async fn succeeds(setup: &Setup, args: &[&str], input: &str) -> String {
    let output = trunkline_reading(setup, args, input).await;
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

async fn fails(setup: &Setup, args: &[&str], input: &str) -> String {
    let output = trunkline_reading(setup, args, input).await;
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    error
}

const SET: [&str; 6] = ["secret", "set", "acme", "own", "TOKEN", "--create"];

#[tokio::test]
async fn a_secret_is_set_listed_and_removed() {
    let setup = setup("");
    setup.write();
    assert_eq!(succeeds(&setup, &SET, "hunter2\n").await, "");
    let list = succeeds(&setup, &["secret", "list", "acme"], "").await;
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["SERVER", "SECRET", "NEEDED", "SET"]);
    assert_eq!(rows[1][..3], ["own", "TOKEN", "yes"]);
    assert!(rows[1][3].ends_with('Z') && !rows[1][3].contains('.'), "{list}");
    let json = succeeds(&setup, &["secret", "list", "acme", "own", "--json"], "").await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["secrets"][0]["name"], &json["secrets"][0]["set"]),
        (&"TOKEN".into(), &true.into())
    );

    let gateway = setup.start().await;
    let acme = gateway.as_tenant("acme").await;
    assert_eq!(token(&acme).await, "<hunter2>", "without the line break");
    succeeds(gateway.setup(), &SET, "another").await;
    within(std::time::Duration::from_secs(10), "followed", async || {
        (token(&acme).await == "<another>").then_some(())
    })
    .await;
    let audit = gateway.setup().store().await.audit(1, None).await.unwrap();
    assert_eq!(audit[0].action, "secret.set");
    assert!(audit[0].actor.starts_with("cli:"), "{audit:?}");
    succeeds(gateway.setup(), &["secret", "remove", "acme", "own", "TOKEN"], "").await;
    let again = fails(gateway.setup(), &["secret", "remove", "acme", "own", "TOKEN"], "").await;
    assert!(again.contains("there is no secret `TOKEN` of tenant `acme`"), "{again}");
    gateway.stop().await;
}

#[tokio::test]
async fn what_cannot_be_set_is_said_without_the_value() {
    let setup = setup("");
    setup.write();
    setup.store().await.close().await;
    for (args, said) in [
        (["secret", "set", "nobody", "own", "TOKEN"], "there is no tenant `nobody`"),
        (["secret", "set", "acme", "none", "TOKEN"], "there is no server `none`"),
        (["secret", "set", "acme", "own", "OTHER"], "it has `TOKEN`"),
    ] {
        let error = fails(&setup, &args, "hunter2").await;
        assert!(error.contains(said) && !error.contains("hunter2"), "{error}");
    }
    for (input, said) in [("", "empty"), ("\n", "empty"), (&"hunter2".repeat(4000), "16384")] {
        let error = fails(&setup, &SET, input).await;
        assert!(error.contains(said) && !error.contains("hunter2"), "{error}");
    }
    // A value as an argument would be seen by everybody on the machine.
    let output = trunkline(&setup, &["secret", "set", "acme", "own", "TOKEN", "hunter2"]).await;
    assert_eq!(output.status.code(), Some(2));
}

#[tokio::test]
async fn a_server_that_needs_secrets_is_left_out_of_a_check() {
    let setup = setup("");
    setup.write();
    let checked = succeeds(&setup, &["check"], "").await;
    assert!(
        checked.contains(
            "own was not started: it needs tenants' secrets (`TOKEN`)\n  configured: no_new_privs"
        ),
        "{checked}"
    );
    assert!(checked.contains("std") && setup.config().servers.len() == 2, "{checked}");
}

#[tokio::test]
async fn a_server_that_needs_secrets_and_cannot_be_confined_fails_a_check() {
    let setup = setup("user = \"no-such-user\"");
    setup.write();
    let output = trunkline(&setup, &["check"]).await;
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("(`TOKEN`)\n  and it cannot be: there is no user"), "{said}");
}

#[tokio::test]
async fn secrets_are_encrypted_again_and_those_that_no_key_opens_are_named() {
    let setup = setup("");
    let path = setup.write();
    succeeds(&setup, &SET, "hunter2").await;
    let config = std::fs::read_to_string(&path).unwrap();
    let key = crate::secrets::KEY;
    let new = key.chars().rev().collect::<String>();
    let with_keys =
        |keys: &str| std::fs::write(&path, config.replace(&format!("{key:?}"), keys)).unwrap();
    with_keys(&format!("{new:?}"));
    let error = fails(&setup, &["secret", "rotate"], "").await;
    assert!(error.contains("secret `TOKEN` of tenant `acme` for server `own`"), "{error}");
    with_keys(&format!("{new:?}, {key:?}"));
    let said = trunkline(&setup, &["secret", "rotate"]).await;
    assert!(String::from_utf8_lossy(&said.stderr).contains("encrypted 1 of 1"), "{said:?}");
    with_keys(&format!("{new:?}"));
    let said = trunkline(&setup, &["secret", "rotate"]).await;
    assert!(String::from_utf8_lossy(&said.stderr).contains("encrypted 0 of 1"), "{said:?}");
}
