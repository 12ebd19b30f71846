//! A large store is read in time.

use sqlx::{AnyConnection, Connection};
use tokio::time::Instant;

use crate::support::on_both;

const FILL: [&str; 4] = [
    "INSERT INTO tenants (id, rate, burst, max_in_flight, weight, created, changed) \
     WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) \
     SELECT 'tenant-' || i, '100/s', 200, 50, 1, 0, 0 FROM n",
    "INSERT INTO grants (tenant, position, pattern) \
     WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 1) \
     SELECT id, i, 'server-' || i FROM tenants, n",
    "INSERT INTO limits (tenant, pattern, rate, burst, max_in_flight) \
     SELECT id, 'search/query', '5/s', NULL, NULL FROM tenants",
    "INSERT INTO keys (id, tenant, hash, name, created) \
     WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) \
     SELECT substr('00000000000' || i, length('00000000000' || i) - 11), 'tenant-' || (i / 2), \
     '0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef', 'a key', 0 FROM n",
];

#[tokio::test]
async fn ten_thousand_tenants_are_loaded_in_time() {
    on_both(async |database| {
        let store = database.open().await;
        let mut connection = AnyConnection::connect(database.url.expose()).await.unwrap();
        for fill in FILL {
            sqlx::query(fill).execute(&mut connection).await.unwrap();
        }
        connection.close().await.unwrap();
        for _ in 0..3 {
            let began = Instant::now();
            let contents = store.load().await.unwrap();
            eprintln!("loaded in {:?}", began.elapsed());
            assert_eq!((contents.tenants.len(), contents.keys.len()), (10_000, 20_000));
            let policy = &contents.tenants["tenant-77"].policy;
            assert_eq!((policy.servers.list().len(), policy.limits.len()), (2, 1));
        }
    })
    .await;
}
