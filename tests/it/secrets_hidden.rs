//! What a secret is, nobody is told: not the log at its most talkative, nor the database, nor metrics.

use std::fs;

use reqwest::Method;
use serde_json::json;

use crate::secrets::{put, send, set, setup, token};
use crate::support::{Api, Database, on_both};

#[tokio::test]
async fn a_value_is_in_no_log_no_database_and_no_metric() {
    on_both(async |database: &Database| {
        let setup = setup("").with_store(&database.url);
        let key = setup.new_key("acme").await;
        let serving = setup.serve_with(&[("RUST_LOG", "trace")]).await;
        let acme = Api::new(serving.addr, Some(key));
        let values = ["swordfish-first", "swordfish-second", "swordfish-\"third\"\u{e9}"];
        for value in values {
            set(&acme, value).await;
            assert_eq!(token(&acme).await, format!("<{value}>"));
        }
        // Refused ones, too.
        assert_eq!(put(&acme, "swordfish\0").await.status, 400);
        let path = "/v1/servers/own/secrets/TOKEN";
        assert_eq!(send(&acme, Method::PUT, path, r#"["swordfish"]"#).await.status, 400);
        assert_eq!(
            send(&acme, Method::PUT, path, r#"{"value": {"swordfish": 1}}"#).await.status,
            400
        );
        let listed = acme.get("/v1/servers/own/secrets").await.text();
        assert!(!listed.contains("swordfish"), "{listed}");
        // The server's end tells what it last wrote; a call that fails, why.
        assert_eq!(acme.call("own", "exit", json!({"code": 3})).await.status, 502);
        serving.logged("ended").await;
        assert!(!acme.get("/metrics").await.text().contains("swordfish"));
        assert_eq!(send(&acme, Method::DELETE, path, "").await.status, 200);

        let store = database.open().await;
        let audit = format!("{:?}", store.audit(100, None).await.unwrap());
        assert!(audit.contains("secret.set") && !audit.contains("swordfish"), "{audit}");
        set(&acme, "swordfish-last").await;
        let (_, sealed) = store.secrets().await.unwrap();
        assert!(sealed.iter().all(|it| !it.sealed.contains("swordfish")));
        let log = serving.log();
        let is_talkative = |line: &String| line.contains("\"level\":\"DEBUG\"");
        assert!(log.iter().any(is_talkative), "the log is not at its most talkative");
        let told: Vec<_> = log.iter().filter(|line| line.contains("swordfish")).collect();
        assert_eq!(told, [] as [&String; 0]);
        if let Some(dir) = database.dir() {
            let files: Vec<_> = fs::read_dir(dir).unwrap().map(|it| it.unwrap().path()).collect();
            assert!(!files.is_empty());
            for file in files {
                let bytes = fs::read(&file).unwrap();
                let found = memchr::memmem::find(&bytes, b"swordfish");
                assert_eq!(found, None, "{}", file.display());
            }
        }
    })
    .await;
}
