//! `trunkline tenant` and `trunkline key`.

use std::process::Output;

use serde_json::{Value, json};
use trunkline::common::keys::ApiKey;
use trunkline::config::Secret;
use trunkline::store::{KeyOwner, Store};

use crate::store::tenant;
use crate::support::{Setup, TRUNKLINE, trunkline, trunkline_with};

async fn setup() -> Setup {
    let setup = Setup::new().set("[tenants.of-file]\nrate = \"9/s\"\nservers = [\"std\"]");
    setup.write();
    setup.store().await.close().await;
    setup
}

async fn succeeds(setup: &Setup, args: &[&str]) -> String {
    let output = trunkline(setup, args).await;
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Gives what it says.
async fn fails(setup: &Setup, args: &[&str]) -> String {
    let Output { status, stdout, stderr } = trunkline(setup, args).await;
    let error = String::from_utf8(stderr).unwrap();
    assert_eq!((status.code(), stdout.len()), (Some(2), 0), "{args:?}: {error}");
    let said = error.lines().find(|line| !line.starts_with("store: "));
    assert!(said.is_some_and(|said| said.starts_with("error: ")), "{error}");
    error
}

async fn shown(setup: &Setup, args: &[&str]) -> Value {
    serde_json::from_str(&succeeds(setup, args).await).unwrap()
}

fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test]
async fn a_tenant_is_added_changed_and_removed() {
    let setup = setup().await;
    let limit = "search/query:rate=5/s,burst=10,max_in_flight=3";
    let add = "tenant add acme --rate 100/s --burst 200 --max-in-flight 50 --weight 2";
    let mut args: Vec<&str> = add.split(' ').collect();
    args.extend(["--servers", "std,search/*", "--limit", limit, "--limit", "std:rate=9/h"]);
    args.extend(["--callback-hosts", "Hooks.example"]);
    assert_eq!(succeeds(&setup, &args).await, "");
    let mut expected = json!({
        "id": "acme", "source": "store", "rate": "100/s", "burst": 200, "max_in_flight": 50,
            "weight": 2,
        "servers": ["std", "search/*"], "callback_hosts": ["hooks.example"],
        "limits": {
            "search/query": {"rate": "5/s", "burst": 10, "max_in_flight": 3},
            "std": {"rate": "9/h", "burst": null, "max_in_flight": null},
        },
    });
    let show = ["tenant", "show", "acme", "--json"];
    expected["since"] = shown(&setup, &show).await["since"].clone();
    assert!(expected["since"].is_string());
    assert_eq!(shown(&setup, &show).await, expected);

    // Only what is given changes.
    succeeds(&setup, &["tenant", "set", "acme", "--weight", "3", "--no-limit", "std"]).await;
    expected["weight"] = json!(3);
    expected["limits"].as_object_mut().unwrap().remove("std");
    assert_eq!(shown(&setup, &show).await, expected);
    succeeds(&setup, &["tenant", "set", "acme", "--no-burst", "--servers", ""]).await;
    (expected["burst"], expected["servers"]) = (Value::Null, json!([]));
    assert_eq!(shown(&setup, &show).await, expected);
    succeeds(&setup, &["tenant", "set", "acme", "--no-rate"]).await;
    expected["rate"] = Value::Null;
    assert_eq!(shown(&setup, &show).await, expected);
    succeeds(&setup, &["tenant", "set", "acme", "--no-max-in-flight"]).await;
    expected["max_in_flight"] = Value::Null;
    assert_eq!(shown(&setup, &show).await, expected);
    succeeds(&setup, &["tenant", "set", "acme", "--weight", "3"]).await;
    assert_eq!(shown(&setup, &show).await, expected, "it is not lifted to be limited again");
    succeeds(&setup, &["tenant", "add", "other", "--no-max-in-flight"]).await;
    let other = shown(&setup, &["tenant", "show", "other", "--json"]).await;
    assert_eq!(other["max_in_flight"], Value::Null);

    let table = succeeds(&setup, &["tenant", "show", "acme"]).await;
    assert!(table.contains("tenant     acme\n") && table.contains("search/query  5/s"), "{table}");
    succeeds(&setup, &["tenant", "remove", "acme"]).await;
    assert!(fails(&setup, &show).await.contains("there is no tenant `acme`"));
}

#[tokio::test]
async fn tenants_of_the_file_are_listed_and_left_alone() {
    let setup = setup().await;
    succeeds(&setup, &["tenant", "add", "acme"]).await;
    let table = succeeds(&setup, &["tenant", "list"]).await;
    assert_eq!(
        rows(&table)[1..],
        [
            vec!["acme", "-", "-", "256", "1", "-", "0", "store"],
            vec!["local", "-", "-", "-", "1", "*", "0", "anonymous"],
            vec!["of-file", "9/s", "-", "256", "1", "std", "0", "file"],
        ]
    );
    let list = shown(&setup, &["tenant", "list", "--json"]).await;
    let of_file = &list["tenants"][2];
    assert_eq!((&of_file["id"], &of_file["source"]), (&json!("of-file"), &json!("file")));

    for args in [
        &["tenant", "add", "of-file"][..],
        &["tenant", "set", "of-file", "--weight", "2"],
        &["tenant", "remove", "of-file"],
    ] {
        let error = fails(&setup, args).await;
        assert!(
            error.contains("trunkline.toml); change it there, under `[tenants.of-file]`"),
            "{error}"
        );
    }
    // Keys can be made for them all the same.
    succeeds(&setup, &["key", "create", "of-file"]).await;
}

#[tokio::test]
async fn a_mistake_is_named_and_changes_nothing() {
    let setup = setup().await;
    succeeds(&setup, &["tenant", "add", "acme"]).await;
    for (command, problem) in [
        ("tenant add acme", "there is a tenant `acme` already; `trunkline tenant set acme`"),
        ("tenant set absent --weight 2", "`trunkline tenant add absent` adds it"),
        ("tenant remove absent", "there is no tenant `absent`"),
        ("tenant show absent", "there is no tenant `absent`"),
        ("key create absent", "`trunkline tenant add absent` adds it"),
        ("key list absent", "there is no tenant `absent`"),
        ("key create", "<TENANT>"),
        ("key create acme --admin", "cannot be used with"),
        ("key create acme --expires-in 90", "such as `90d`"),
        ("key revoke 0123456789AB", "there is no key `0123456789AB`"),
        ("key revoke nonsense", "12 letters and digits"),
        ("tenant add a/b", "is not a valid tenant id"),
        ("tenant add new --burst 5", "there is no `rate`"),
        ("tenant add new --weight 101", "from 1 to 100"),
        ("tenant add new --weight heavy", "from 1 to 100"),
        ("tenant add new --burst 0", "from 1 to 1000000"),
        ("tenant add new --max-in-flight 1 --no-max-in-flight", "cannot be used with"),
        ("tenant add new --limit std:burst=1", "the limit for `std`: `burst`"),
        ("tenant add new --rate fast", "is not a rate"),
        ("tenant add new --limit std:speed=1", "is none of"),
        ("tenant set acme --no-limit std", "there is no limit for `std`"),
        ("tenant list --config absent.toml", "cannot read absent.toml"),
    ] {
        let args: Vec<&str> = command.split(' ').collect();
        let error = fails(&setup, &args).await;
        assert!(error.contains(problem), "{command}: {error}");
    }
    let list = shown(&setup, &["tenant", "list", "--json"]).await;
    assert_eq!(list["tenants"].as_array().unwrap().len(), 3);
    // Nor does it leave anything behind.
    let files = std::fs::read_dir(setup.dir.path()).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let left: Vec<_> = files.filter(|name| name.starts_with("trunkline.db-")).collect();
    assert_eq!(left, [""; 0]);
}

#[tokio::test]
async fn callers_without_a_key_are_a_tenant_like_others() {
    let setup = setup().await;
    let show = ["tenant", "show", "local", "--json"];
    let shown_first = shown(&setup, &show).await;
    assert_eq!(
        (&shown_first["source"], &shown_first["servers"]),
        (&json!("anonymous"), &json!(["*"]))
    );
    succeeds(&setup, &["key", "create", "local"]).await;
    assert!(succeeds(&setup, &["key", "list", "local"]).await.contains("active"));
    let error = fails(&setup, &["tenant", "set", "local", "--weight", "2"]).await;
    assert!(error.contains("`trunkline tenant add local` sets some"), "{error}");

    let output = trunkline(&setup, &["tenant", "add", "local"]).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("callers without a key use this tenant: its limits"), "{said}");
    assert_eq!(shown(&setup, &show).await["source"], "store");
    let output = trunkline(&setup, &["tenant", "add", "acme"]).await;
    assert!(!String::from_utf8(output.stderr).unwrap().contains("callers without a key"));
}

#[tokio::test]
async fn keys_of_a_tenant_that_has_left_the_file_are_seen_and_do_not_come_back() {
    let with_file = setup().await;
    succeeds(&with_file, &["key", "create", "of-file"]).await;
    let url = Secret::new(format!("sqlite://{}/trunkline.db", with_file.dir.path().display()));
    let without_file = Setup::new().with_store(&url);
    without_file.write();
    let list = ["key", "list", "of-file"];
    assert!(succeeds(&without_file, &list).await.contains("active"));
    let output = trunkline(&without_file, &["tenant", "add", "of-file"]).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("revoked the keys") && said.contains("(1)"), "{said}");
    assert!(succeeds(&without_file, &list).await.contains("revoked"));
}

#[tokio::test]
async fn a_key_is_printed_once_and_alone() {
    let setup = setup().await;
    succeeds(&setup, &["tenant", "add", "acme"]).await;
    let output =
        trunkline(&setup, &["key", "create", "acme", "--name", "ci", "--expires-in", "90d"]).await;
    let stdout = String::from_utf8(output.stdout).unwrap();
    let text = stdout.strip_suffix('\n').unwrap();
    let key = ApiKey::parse(text).expect("a key and nothing else");
    assert!(!String::from_utf8(output.stderr).unwrap().contains(text));

    // It is the one that the store knows.
    let url = format!("sqlite://{}/trunkline.db", setup.dir.path().display());
    let store = Store::open(&Secret::new(url), None).await.unwrap();
    let record = store.key(&key.id()).await.unwrap().unwrap();
    assert_eq!(record.hash, store.hash(&key));
    assert_eq!(record.owner, KeyOwner::Tenant(tenant("acme")));
    // It expires so long after the command began; it was created a moment later.
    let (days, minute) = (90 * 24 * 60 * 60 * 1000, 60 * 1000);
    let lasts = record.expires.unwrap() - record.created;
    assert!((days - minute..=days).contains(&lasts), "{lasts} ms");

    let table = succeeds(&setup, &["key", "list", "acme"]).await;
    assert_eq!(rows(&table)[1][..3], [key.id().as_str(), "ci", "active"]);
    assert!(!table.contains(text), "{table}");
}

#[tokio::test]
async fn the_audit_log_has_who_really_ran_a_command() {
    let setup = setup().await;
    let env = [("USER", "mallory"), ("LOGNAME", "mallory")];
    let output = trunkline_with(&setup, &["tenant", "add", "acme"], &env).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let who = tokio::process::Command::new("id").arg("-un").output().await.unwrap();
    let who = String::from_utf8(who.stdout).unwrap();
    let actor = setup.store().await.audit(1, None).await.unwrap()[0].actor.clone();
    assert_eq!(actor, format!("cli:{}", who.trim()));
}

#[tokio::test]
async fn keys_are_rotated_two_at_a_time() {
    let setup = setup().await;
    let create = ["key", "create", "of-file"];
    let old = succeeds(&setup, &create).await;
    succeeds(&setup, &create).await;
    let error = fails(&setup, &create).await;
    let old = ApiKey::parse(old.trim()).unwrap().id();
    assert!(error.contains("has 2 active keys already; revoke one first"), "{error}");
    assert!(error.contains(&format!("`trunkline key revoke {old}`")), "{error}");
    succeeds(&setup, &["key", "revoke", old.as_str()]).await;
    succeeds(&setup, &create).await;
    let list = shown(&setup, &["key", "list", "of-file", "--json"]).await;
    let states = list["keys"].as_array().unwrap().iter().map(|key| key["state"].as_str().unwrap());
    assert_eq!(states.collect::<Vec<_>>(), ["revoked", "active", "active"]);

    // Those of administrators are apart.
    let admin = succeeds(&setup, &["key", "create", "--admin"]).await;
    let admin = ApiKey::parse(admin.trim()).unwrap().id();
    let list = shown(&setup, &["key", "list", "--admin", "--json"]).await;
    let keys = list["keys"].as_array().unwrap();
    assert_eq!((keys.len(), &keys[0]["id"]), (1, &json!(admin.as_str())));
}

#[tokio::test]
async fn a_call_is_made_with_a_key() {
    let setup = Setup::new().without_anonymous().std().with_tenant("acme", "servers = [\"std\"]");
    let gateway = setup.start().await;
    let (key, url) = (gateway.new_key("acme").await, gateway.url(""));
    let call = ["call", "--url", &url, "std", "uuid"];
    let with_flag = [&call[..], &["--key", &key]].concat();
    let with_bad = [&call[..], &["--key", "a\nb"]].concat();
    let elsewhere = Setup::new();
    for (args, code, error) in
        [(&call[..], 3, "unauthenticated"), (&with_flag, 0, ""), (&with_bad, 2, "line break")]
    {
        let output = trunkline(&elsewhere, args).await;
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(error), "{stderr}");
    }

    let mut command = tokio::process::Command::new(TRUNKLINE);
    command.current_dir(elsewhere.dir.path()).env("TRUNKLINE_KEY", &key);
    let output = command.args(call).output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let mut command = tokio::process::Command::new(TRUNKLINE);
    let help = command.args(["call", "--help"]).env("TRUNKLINE_KEY", &key).output().await.unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("TRUNKLINE_KEY") && !help.contains(&key), "{help}");
    gateway.stop().await;
}
