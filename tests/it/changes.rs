//! A change by a command reaches every gateway of the store in the promised time.

use std::time::Duration;

use tokio::time::Instant;
use trunkline::common::keys::ApiKey;

use crate::support::{Database, Gateway, Setup, on_both, trunkline, within};

/// The promised time. SQLite is polled every half second, and PostgreSQL notifies, which leaves
/// most of it to busy machines; the median of three must keep to it, and none may take much longer.
const PROMISED: Duration = Duration::from_secs(2);
const AT_MOST: Duration = Duration::from_secs(6);

async fn gateway(database: &Database) -> Gateway {
    let setup = Setup::new().without_anonymous().std().with_store(&database.url);
    setup.with_tenant("acme", "servers = [\"std\"]").start().await
}

async fn status(gateway: &Gateway, key: &str) -> u16 {
    gateway.with_key(key).call("std", "uuid", "").await.status
}

#[tokio::test]
async fn a_key_that_a_command_revokes_is_soon_refused_by_all() {
    on_both(async |database| {
        let gateways = [gateway(database).await, gateway(database).await];
        let mut took = vec![];
        for _ in 0..3 {
            let key = gateways[0].new_key("acme").await;
            for gateway in &gateways {
                assert_eq!(status(gateway, &key).await, 200);
            }
            let id = ApiKey::parse(&key).unwrap().id();
            let output = trunkline(gateways[0].setup(), &["key", "revoke", id.as_str()]).await;
            assert!(output.status.success(), "{output:?}");
            let revoked = Instant::now();
            for gateway in &gateways {
                let is_refused = async || (status(gateway, &key).await == 401).then_some(());
                within(AT_MOST, "refused", is_refused).await;
            }
            took.push(revoked.elapsed());
        }
        took.sort();
        assert!(took[1] < PROMISED && took[2] < AT_MOST, "{took:?}");
        for gateway in gateways {
            gateway.stop().await;
        }
    })
    .await;
}
