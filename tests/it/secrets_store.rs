//! Tenants' secrets in both databases.

use serde_json::json;
use trunkline::common::ids::ServerId;
use trunkline::common::policy::Policy;
use trunkline::store::{Label, SecretRecord, Store, StoreError, Subject};

use crate::store::{root, tenant};
use crate::support::{Database, in_time, on_both};

fn server(id: &str) -> ServerId {
    ServerId::parse(id).unwrap()
}

async fn set(store: &Store, of: &str, at: &str, name: &str, sealed: &str) {
    let label = Label { tenant: &tenant(of), server: &server(at), name };
    store.set_secret(&root(), label, sealed).await.unwrap();
}

async fn all(store: &Store) -> Vec<(String, String, String, String)> {
    let (_, secrets) = store.secrets().await.unwrap();
    let text = |it: trunkline::store::SealedSecret| {
        (it.tenant.to_string(), it.server.to_string(), it.name, it.sealed)
    };
    let mut all: Vec<_> = secrets.into_iter().map(text).collect();
    all.sort();
    all
}

fn row(tenant: &str, server: &str, name: &str, sealed: &str) -> (String, String, String, String) {
    (tenant.to_owned(), server.to_owned(), name.to_owned(), sealed.to_owned())
}

#[tokio::test]
async fn what_is_set_is_there_under_its_own_name_until_it_is_removed() {
    on_both(async |database: &Database| {
        let store = database.open().await;
        set(&store, "a", "one", "X", "sealed-a1").await;
        set(&store, "a", "two", "X", "a2").await;
        set(&store, "b", "one", "X", "b1").await;
        set(&store, "a", "one", "X", "sealed-a1-again").await;
        let a1 = row("a", "one", "X", "sealed-a1-again");
        let (a2, b1) = (row("a", "two", "X", "a2"), row("b", "one", "X", "b1"));
        assert_eq!(all(&store).await, [a1.clone(), a2.clone(), b1.clone()]);
        let listed = store.list_secrets(&tenant("a"), Some(&server("two"))).await.unwrap();
        let [SecretRecord { server: listed, name, updated }] = &listed[..] else { panic!() };
        assert_eq!((listed, name.as_str()), (&server("two"), "X"));
        assert!(*updated > 1_700_000_000_000);
        assert_eq!(store.list_secrets(&tenant("a"), None).await.unwrap().len(), 2);

        let remove = async || {
            let label = Label { tenant: &tenant("a"), server: &server("two"), name: "X" };
            store.remove_secret(&root(), label).await
        };
        remove().await.unwrap();
        assert!(matches!(remove().await, Err(StoreError::NotFound(_))));
        assert_eq!(all(&store).await, [a1, b1]);
        let audit = store.audit(10, None).await.unwrap();
        let noted: Vec<_> = audit.iter().map(|entry| entry.action.as_str()).collect();
        assert_eq!(
            noted,
            ["secret.remove", "secret.set", "secret.set", "secret.set", "secret.set"]
        );
        assert_eq!(audit[0].detail, json!({"server": "two", "name": "X"}));
        assert!(!format!("{audit:?}").contains("sealed"));
    })
    .await;
}

#[tokio::test]
async fn each_value_has_a_version_of_its_own_that_sealing_it_again_keeps() {
    on_both(async |database: &Database| {
        let store = database.open().await;
        let version = async || store.secrets().await.unwrap().1[0].version;
        set(&store, "a", "one", "X", "1").await;
        let first = version().await;
        set(&store, "a", "one", "X", "1").await;
        let second = version().await;
        assert!(second > first);
        let label = Label { tenant: &tenant("a"), server: &server("one"), name: "X" };
        store.remove_secret(&root(), label).await.unwrap();
        set(&store, "a", "one", "X", "1").await;
        let third = version().await;
        assert!(third > second);
        let rotated = store.rotate_secrets(&root(), |_, _| Some("anew".to_owned())).await.unwrap();
        assert_eq!((rotated.seen, rotated.resealed), (1, 1));
        assert_eq!((version().await, all(&store).await[0].3.as_str()), (third, "anew"));
    })
    .await;
}

#[tokio::test]
async fn all_are_sealed_again_however_many() {
    on_both(async |database: &Database| {
        let store = database.open().await;
        for n in 0..130 {
            set(&store, &format!("t{}", n % 7), "one", &format!("N{n}"), &format!("old{n}")).await;
        }
        let mut seen = 0;
        let reseal = |label: Label<'_>, sealed: &str| {
            seen += 1;
            let number = sealed.strip_prefix("old")?;
            (label.name != "N13").then(|| format!("new{number}"))
        };
        let rotated = store.rotate_secrets(&root(), reseal).await.unwrap();
        assert_eq!((rotated.seen, rotated.resealed, seen), (130, 129, 130));
        for (_, _, name, sealed) in all(&store).await {
            let expected =
                if name == "N13" { "old13".to_owned() } else { name.replace('N', "new") };
            assert_eq!(sealed, expected);
        }
    })
    .await;
}

#[tokio::test]
async fn a_change_is_heard_of_by_those_who_follow_secrets() {
    on_both(async |database: &Database| {
        let (store, other) = (database.open().await, database.open().await);
        let (mut secrets, mut tenants) =
            (store.changes(Subject::Secrets), store.changes(Subject::Policy));
        in_time("the first", secrets.next()).await.unwrap();
        in_time("the first", tenants.next()).await.unwrap();
        set(&other, "a", "one", "X", "1").await;
        in_time("set", secrets.next()).await.unwrap();
        let (revision, _) = store.secrets().await.unwrap();
        other.add_tenant(&root(), &tenant("a"), &Policy::new()).await.unwrap();
        in_time("a tenant", tenants.next()).await.unwrap();
        in_time("what an earlier one left is gone", secrets.next()).await.unwrap();
        assert_eq!(all(&store).await, []);
        set(&other, "a", "one", "X", "2").await;
        other.remove_tenant(&root(), &tenant("a")).await.unwrap();
        in_time("removed", secrets.next()).await.unwrap();
        let (after, left) = store.secrets().await.unwrap();
        assert!(after > revision && left.is_empty());
    })
    .await;
}

/// Writes a secret of each of 20,000 tenants.
const MANY: &str = "INSERT INTO tenant_secrets (tenant, server, name, sealed, version, updated) \
     WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) \
     SELECT 'tenant-' || i, 'one', 'X', 'sealed', 0, 0 FROM n";

#[tokio::test]
async fn a_change_is_read_without_the_secrets_of_others() {
    on_both(async |database: &Database| {
        database.open().await;
        database.run(MANY).await;
        let (store, other) = (database.open().await, database.open().await);
        let mut cursor = None;
        // Returns the tenants whose secrets are read, and how many secrets these are.
        let mut read = async || {
            let changed = store.changed_secrets(cursor).await.unwrap();
            cursor = Some(changed.cursor);
            let tenants = changed.tenants?;
            let names: Vec<_> = tenants.iter().map(ToString::to_string).collect();
            Some((names.join(" "), changed.secrets.len()))
        };
        let some = |tenants: &str, secrets| Some((tenants.to_owned(), secrets));
        assert_eq!(read().await, None);
        assert_eq!(read().await, some("", 0));
        set(&other, "tenant-7", "one", "Y", "1").await;
        set(&other, "tenant-9", "one", "X", "1").await;
        set(&other, "tenant-7", "two", "X", "1").await;
        assert_eq!(read().await, some("tenant-7 tenant-9", 4));
        let label = Label { tenant: &tenant("tenant-8"), server: &server("one"), name: "X" };
        other.remove_secret(&root(), label).await.unwrap();
        assert_eq!(read().await, some("tenant-8", 0));
        other.add_tenant(&root(), &tenant("tenant-9"), &Policy::new()).await.unwrap();
        assert_eq!(read().await, some("tenant-9", 0));
        set(&other, "tenant-9", "one", "X", "2").await;
        other.remove_tenant(&root(), &tenant("tenant-9")).await.unwrap();
        assert_eq!(read().await, some("tenant-9", 0));
        // Changes that name no tenant may be of any.
        database.run("UPDATE revisions SET value = value + 1 WHERE name = 'secrets'").await;
        set(&other, "tenant-7", "one", "Y", "2").await;
        assert_eq!(read().await, None);
        for n in 0..=500 {
            set(&other, "tenant-7", "one", "Y", &n.to_string()).await;
        }
        assert_eq!(read().await, None);
        assert_eq!(read().await, some("", 0));
    })
    .await;
}
