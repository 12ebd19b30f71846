//! A store that an earlier version has left: the program of then made the file that is read here.

use serde_json::json;
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

use crate::support::{Answer, Setup};

/// The key and the secrets' keys that the earlier version was configured with.
const SETTINGS: &str = "[auth]\nhash_key = \"0123456789abcdef0123456789abcdef\"
[secrets]\nkeys = [\"fedcba9876543210fedcba9876543210\"]\n";
/// The key of the tenant `acme`, as it was shown once.
const ACME: &str = "tl_kiRPZShZytRM_Ah3Xn3fWpkOZ3ia5KYQYiHghoIp9QFDw4NXtNyYFTrD0sl0Xt";
/// The result of the call with the key `once`.
const RESULT: &str = "c5f5c5e2-af9f-4e3f-9124-d0cc23f4309a";

#[tokio::test]
async fn keys_secrets_usage_and_kept_calls_of_an_earlier_version_are_used() {
    let settings = "sharing = \"tenant\"\nenv.TOKEN = \"${secret:TOKEN}\"";
    let setup = Setup::new().without_anonymous().std().fake_with("own", &[], settings);
    let setup = setup.raw(SETTINGS);
    let file = SqliteConnectOptions::new().filename(setup.dir.path().join("trunkline.db"));
    let mut store = file.create_if_missing(true).foreign_keys(false).connect().await.unwrap();
    sqlx::raw_sql(include_str!("data/store_0_1_0.sql")).execute(&mut store).await.unwrap();
    // As if it had been stopped a moment ago, so that nothing has expired.
    let renewed = "UPDATE calls SET expires = (unixepoch() + 3600) * 1000;
        UPDATE tenant_usage SET minute = (unixepoch() / 60) * 60000";
    sqlx::raw_sql(renewed).execute(&mut store).await.unwrap();
    drop(store);

    let gateway = setup.start().await;
    let acme = gateway.with_key(ACME);
    let again = acme.post("std", "uuid", "{}").header("Idempotency-Key", "once");
    let again = Answer::of(again).await;
    assert_eq!((again.status, again.text().contains(RESULT)), (200, true), "{again:?}");
    let token = acme.call("own", "env", json!({"name": "TOKEN"})).await;
    assert_eq!(token.tool_text(), "the value");
    let usage = acme.get("/v1/usage").await.json();
    let of = |tool: &str| usage["usage"].as_array().unwrap().iter().any(|row| row["tool"] == tool);
    assert!(of("uuid") && of("echo"), "{usage}");
    gateway.stop().await;
}
