//! A name that is used again is somebody else: generations of tenants, on both databases.

use std::collections::{BTreeMap, BTreeSet};

use trunkline::common::ids::{ServerId, TenantGeneration, TenantName};
use trunkline::common::policy::Policy;
use trunkline::common::usage::Counts;
use trunkline::store::{Actor, KeyOwner, Label, Store, StoreError, UsageKey, UsageOf, UsageQuery};

use crate::store::{root, tenant, tenant_id};
use crate::support::on_both;

const MINUTE: i64 = 60_000;

async fn generation(store: &Store, name: &str) -> TenantGeneration {
    store.tenant(&tenant(name)).await.unwrap().unwrap().generation
}

/// The generation of a tenant of the file, if the store knows one.
async fn file_generation(store: &Store, name: &str) -> Option<TenantGeneration> {
    store.file_tenants().await.unwrap().get(name).map(|tenant| tenant.generation)
}

/// Reads a file with these tenants, as at the start of a gateway. Returns those that ended.
async fn read_file(store: &Store, names: &[&str]) -> Vec<String> {
    let named: BTreeSet<_> = names.iter().map(|name| tenant(name)).collect();
    let ended = store.sync_file_tenants(&named, |name| !named.contains(name)).await.unwrap();
    ended.into_iter().map(|ended| ended.name.to_string()).collect()
}

async fn calls(store: &Store, whose: UsageOf) -> u64 {
    let query = UsageQuery { from: 0, to: i64::MAX, whose, by_minute: false };
    store.usage(&query).await.unwrap().iter().map(|total| total.counts.calls).sum()
}

#[tokio::test]
async fn a_tenant_that_is_added_again_is_another() {
    on_both(async |database| {
        let store = database.open().await;
        let acme = tenant("acme");
        store.add_tenant(&root(), &acme, &Policy::new()).await.unwrap();
        let first = generation(&store, "acme").await;
        store.set_tenant(&root(), &acme, &Policy::unlimited()).await.unwrap();
        assert_eq!(generation(&database.open().await, "acme").await, first);
        let things = async || {
            let owner = KeyOwner::Tenant(acme.clone());
            let key = store.create_key(&root(), &owner, None, None).await.unwrap().record;
            let server = ServerId::parse("one").unwrap();
            let label = Label { tenant: &acme, server: &server, name: "X" };
            store.set_secret(&root(), label, "sealed").await.unwrap();
            store.remove_secret(&root(), label).await.unwrap();
            store.add_callback_secret(&root(), &acme, "sealed").await.unwrap();
            key.id
        };
        let old_key = things().await;
        store.remove_tenant(&root(), &acme).await.unwrap();
        store.add_tenant(&root(), &acme, &Policy::new()).await.unwrap();
        let second = generation(&store, "acme").await;
        assert_ne!(first, second);
        let key = things().await;
        store.revoke_key(&root(), &key).await.unwrap();
        store.revoke_key(&root(), &old_key).await.unwrap();
        // The audit log tells them apart.
        let entries = store.audit(100, None).await.unwrap();
        let logged: Vec<_> = entries.iter().map(|it| it.detail["generation"].as_str()).collect();
        let [first, second] = [first, second].map(|it| it.to_string());
        let (old, new) = (Some(first.as_str()), Some(second.as_str()));
        // The old key's second end is of no tenant that is there.
        assert_eq!(logged, [&[None][..], &[new; 6], &[old; 7]].concat());
    })
    .await;
}

#[tokio::test]
async fn a_tenant_of_an_older_version_has_a_generation_too() {
    on_both(async |database| {
        let store = database.open().await;
        store.add_tenant(&root(), &tenant("acme"), &Policy::new()).await.unwrap();
        let since = store.tenant(&tenant("acme")).await.unwrap().unwrap().since;
        database.run("UPDATE tenants SET generation = NULL").await;
        assert_eq!(generation(&store, "acme").await, TenantGeneration::from_number(since));
    })
    .await;
}

#[tokio::test]
async fn a_tenant_of_the_file_is_another_when_a_file_was_without_it() {
    on_both(async |database| {
        let store = database.open().await;
        assert_eq!(read_file(&store, &["acme", "other"]).await, [""; 0]);
        let first = file_generation(&store, "acme").await.unwrap();
        let other = file_generation(&store, "other").await.unwrap();
        assert_ne!(first, other);
        // Restarted, and at another replica.
        assert_eq!(read_file(&database.open().await, &["acme", "other"]).await, [""; 0]);
        assert_eq!(file_generation(&store, "acme").await, Some(first));
        assert_eq!(store.file_tenants().await.unwrap()["acme"].since, None, "as old as the store");

        let owner = KeyOwner::Tenant(tenant("acme"));
        let key = store.create_key(&root(), &owner, None, None).await.unwrap().record;
        let server = ServerId::parse("one").unwrap();
        let label = Label { tenant: &tenant("acme"), server: &server, name: "X" };
        store.set_secret(&root(), label, "sealed").await.unwrap();
        assert_eq!(read_file(&store, &["other"]).await, ["acme"]);
        assert_eq!(file_generation(&store, "acme").await, None);
        assert!(store.key(&key.id).await.unwrap().unwrap().revoked.is_some());
        assert!(store.secrets().await.unwrap().1.is_empty());

        read_file(&store, &["acme", "other"]).await;
        let second = file_generation(&store, "acme").await.unwrap();
        assert_ne!(first, second);
        assert_eq!(file_generation(&store, "other").await, Some(other));
        assert!(store.file_tenants().await.unwrap()["acme"].since.is_some());
    })
    .await;
}

#[tokio::test]
async fn a_tenant_that_the_store_has_is_the_same_in_the_file() {
    on_both(async |database| {
        let store = database.open().await;
        let acme = tenant("acme");
        store.add_tenant(&root(), &acme, &Policy::new()).await.unwrap();
        let key = store.create_key(&root(), &KeyOwner::Tenant(acme.clone()), None, None).await;
        read_file(&store, &["acme"]).await;
        assert_eq!(file_generation(&store, "acme").await, None, "the store's counts");
        assert_eq!(read_file(&store, &[]).await, [""; 0]);
        let key = store.key(&key.unwrap().record.id).await.unwrap().unwrap();
        assert_eq!(key.revoked, None);
        // A file's tenant is not revived by a tenant of the store.
        read_file(&store, &["late"]).await;
        let first = file_generation(&store, "late").await;
        store.add_tenant(&root(), &tenant("late"), &Policy::new()).await.unwrap();
        store.remove_tenant(&root(), &tenant("late")).await.unwrap();
        read_file(&store, &["late"]).await;
        assert_ne!(file_generation(&store, "late").await, first);
    })
    .await;
}

#[tokio::test]
async fn secrets_belong_to_a_generation() {
    on_both(async |database| {
        let store = database.open().await;
        let server = ServerId::parse("one").unwrap();
        let set = async |name: &TenantName| {
            let label = Label { tenant: name, server: &server, name: "X" };
            store.set_secret(&root(), label, "sealed").await.unwrap();
        };
        let [stored, in_file, built_in] = ["stored", "in_file", "local"].map(tenant);
        store.add_tenant(&root(), &stored, &Policy::new()).await.unwrap();
        read_file(&store, &["in_file"]).await;
        for name in [&stored, &in_file, &built_in] {
            set(name).await;
        }
        let (_, secrets) = store.secrets().await.unwrap();
        let of: BTreeMap<_, _> =
            secrets.iter().map(|it| (it.tenant.name(), it.tenant.generation())).collect();
        assert_eq!(of[&stored], generation(&store, "stored").await);
        assert_eq!(Some(of[&in_file]), file_generation(&store, "in_file").await);
        assert_eq!(of[&built_in], TenantGeneration::BUILT_IN);
    })
    .await;
}

#[tokio::test]
async fn a_removed_tenant_sets_no_secrets_of_the_next() {
    on_both(async |database| {
        let store = database.open().await;
        let server = ServerId::parse("one").unwrap();
        store.add_tenant(&root(), &tenant("stored"), &Policy::new()).await.unwrap();
        read_file(&store, &["in_file"]).await;
        let stored = generation(&store, "stored").await;
        let in_file = file_generation(&store, "in_file").await.unwrap();
        let of = [("stored", stored), ("in_file", in_file), ("local", TenantGeneration::BUILT_IN)];
        for (name, generation) in of {
            let id = tenant(name).of(generation);
            let (other, actor) = (tenant_id(name), Actor::tenant(&id));
            let label = Label { tenant: id.name(), server: &server, name: "X" };
            let set = async |actor: &Actor| store.set_secret(actor, label, "sealed").await;
            set(&actor).await.unwrap();
            let late = Actor::tenant(&other);
            assert!(matches!(set(&late).await, Err(StoreError::NotFound(_))), "{name}");
            let removed = store.remove_secret(&late, label).await;
            assert!(matches!(removed, Err(StoreError::NotFound(_))), "{name}");
            assert_eq!(store.list_secrets(id.name(), None).await.unwrap().len(), 1);
            store.remove_secret(&actor, label).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_report_shows_no_calls_of_an_earlier_tenant() {
    on_both(async |database| {
        let store = database.open().await;
        let [first, second] =
            [1, 2].map(|number| tenant("acme").of(TenantGeneration::from_number(number)));
        let row = |tenant, calls| {
            let server = ServerId::parse("std").unwrap();
            let key = UsageKey { minute: 5 * MINUTE, tenant, server, tool: "echo".to_owned() };
            (key, Counts { calls, ..Counts::default() })
        };
        // In one minute, in one batch.
        let rows = [row(first.clone(), 1), row(second.clone(), 2)];
        store.add_usage("r1", 1, &rows.into()).await.unwrap();
        // Counted by an older version: before and after the second tenant was added.
        for (minute, calls) in [(4, 10), (6, 20)] {
            let minute = minute * MINUTE;
            let row = format!(
                "INSERT INTO usage \
                 VALUES ({minute}, 'acme', 'std', 'echo', {calls}, 0, 0, 0, 0, 0, 0)"
            );
            database.run(&row).await;
        }
        let since = 5 * MINUTE + 30_000;
        let of = |id, since| calls(&store, UsageOf::Tenant { id, since });
        assert_eq!(of(second, since).await, 2 + 20);
        assert_eq!(of(first, 0).await, 1 + 10 + 20, "as long as it was alone");
        assert_eq!(calls(&store, UsageOf::Name(tenant("acme"))).await, 33);
        assert_eq!(calls(&store, UsageOf::Name(tenant("other"))).await, 0);
        assert_eq!(calls(&store, UsageOf::Everybody).await, 33);
        assert_eq!(store.delete_old(10 * MINUTE, 0).await.unwrap(), 4);
        assert_eq!(calls(&store, UsageOf::Everybody).await, 0);
    })
    .await;
}
