//! Tenants and the audit log are stored and read back, on both databases.

use serde_json::json;
use sqlx::Connection;
use std::collections::BTreeMap;
use tokio::task::JoinSet;
use trunkline::common::ids::{TenantGeneration, TenantId, TenantName};
use trunkline::common::policy::{CallbackHost, Grant, Grants, Limit, Pattern, Policy};
use trunkline::store::{Actor, KeyOwner, Store, StoreError};

use crate::support::on_both;

pub fn tenant_id(name: &str) -> TenantId {
    tenant(name).of(TenantGeneration::from_number(1))
}

pub fn tenant(id: &str) -> TenantName {
    TenantName::parse(id).unwrap()
}

pub fn root() -> Actor {
    Actor::cli("root")
}

/// One that says something of everything.
fn full() -> Policy {
    let limit = |rate: Option<&str>, burst, max_in_flight| Limit {
        rate: rate.map(|rate| rate.parse().unwrap()),
        burst,
        max_in_flight,
    };
    let pattern = |text| Pattern::parse(text).unwrap();
    let servers = ["std", "search/*", "a", "git-*/read_*"].map(pattern);
    Policy {
        limit: limit(Some("100/s"), Some(200), Some(50)),
        weight: 7,
        servers: Grants::new(servers.iter().cloned().map(Grant::Tools).collect()),
        limits: [
            (pattern("search/query"), limit(Some("5/min"), None, None)),
            (pattern("std/ü"), limit(None, None, Some(3))),
            (pattern("*"), limit(Some("9/h"), Some(2), Some(1))),
        ]
        .into(),
        callback_hosts: vec![CallbackHost::parse("hooks.example").unwrap()],
    }
}

async fn policy_of(store: &Store, name: &str) -> Policy {
    store.tenant(&tenant(name)).await.unwrap().unwrap().policy
}

#[tokio::test]
async fn policies_come_back_as_they_were_given() {
    on_both(async |database| {
        let store = database.open().await;
        let policies = [
            ("full", full()),
            ("new", Policy::new()),
            ("unlimited", Policy::unlimited()),
            ("A-1_b", full()),
        ];
        for (id, policy) in &policies {
            store.add_tenant(&root(), &tenant(id), policy).await.unwrap();
        }
        let expected: BTreeMap<_, _> = policies.map(|(id, policy)| (tenant(id), policy)).into();
        let stored = store.tenants().await.unwrap();
        assert_eq!(store.load().await.unwrap().tenants, stored);
        let policies: BTreeMap<_, _> = stored.into_iter().map(|(id, it)| (id, it.policy)).collect();
        assert_eq!(policies, expected);
        assert_eq!(policy_of(&store, "full").await, full());
        assert_eq!(store.tenant(&tenant("nobody")).await.unwrap(), None);

        // All of it is replaced, nothing of the old one stays.
        store.set_tenant(&root(), &tenant("full"), &Policy::new()).await.unwrap();
        assert_eq!(policy_of(&store, "full").await, Policy::new());
        store.set_tenant(&root(), &tenant("new"), &full()).await.unwrap();
        assert_eq!(policy_of(&database.open().await, "new").await, full());
    })
    .await;
}

#[tokio::test]
async fn there_is_one_tenant_of_a_name() {
    on_both(async |database| {
        let store = database.open().await;
        let acme = tenant("acme");
        store.add_tenant(&root(), &acme, &full()).await.unwrap();
        let again = store.add_tenant(&root(), &acme, &Policy::new()).await;
        assert!(matches!(again, Err(StoreError::AlreadyExists(_))), "{again:?}");
        assert_eq!(policy_of(&store, "acme").await, full());
        let unknown = store.set_tenant(&root(), &tenant("acme2"), &Policy::new()).await;
        assert!(matches!(unknown, Err(StoreError::NotFound(_))), "{unknown:?}");
    })
    .await;
}

#[tokio::test]
async fn of_many_changes_at_once_all_survive() {
    on_both(async |database| {
        let acme = tenant("acme");
        database.open().await.add_tenant(&root(), &acme, &Policy::new()).await.unwrap();
        let mut changes = JoinSet::new();
        for replica in 0..2 {
            let store = database.open().await;
            for at in 0..8 {
                let (store, acme) = (store.clone(), acme.clone());
                let pattern = Pattern::parse(&format!("server-{replica}-{at}")).unwrap();
                changes.spawn(async move {
                    let change = |mut policy: Policy| {
                        let limit = Limit { max_in_flight: Some(1), ..Limit::default() };
                        policy.limits.insert(pattern, limit);
                        Ok::<_, StoreError>(policy)
                    };
                    store.change_tenant(&root(), &acme, change).await.unwrap();
                });
            }
        }
        changes.join_all().await;
        let policy = policy_of(&database.open().await, "acme").await;
        assert_eq!(policy.limits.len(), 16, "{policy:?}");
    })
    .await;
}

#[tokio::test]
async fn a_change_that_is_refused_changes_nothing() {
    on_both(async |database| {
        let store = database.open().await;
        let acme = tenant("acme");
        store.add_tenant(&root(), &acme, &full()).await.unwrap();
        let refusal = |_| Err(StoreError::Corrupt("not so".to_owned()));
        let refused = store.change_tenant(&root(), &acme, refusal).await.unwrap_err();
        assert!(refused.to_string().contains("not so"), "{refused}");
        assert_eq!(policy_of(&store, "acme").await, full());
        assert_eq!(store.audit(10, None).await.unwrap().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_tenant_that_is_removed_takes_its_keys_along() {
    on_both(async |database| {
        let store = database.open().await;
        let (acme, other) = (tenant("acme"), tenant("other"));
        for id in [&acme, &other] {
            store.add_tenant(&root(), id, &full()).await.unwrap();
        }
        let key = async |owner| store.create_key(&root(), &owner, None, None).await.unwrap().key;
        let gone = key(KeyOwner::Tenant(acme.clone())).await;
        let stays = [key(KeyOwner::Tenant(other.clone())).await, key(KeyOwner::Admin).await];
        assert_eq!(store.remove_tenant(&root(), &acme).await.unwrap(), 1);

        let contents = store.load().await.unwrap();
        assert_eq!(contents.tenants.keys().collect::<Vec<_>>(), [&other]);
        let mut left: Vec<_> = contents.keys.iter().map(|key| key.id).collect();
        left.sort();
        let mut expected = stays.map(|key| key.id());
        expected.sort();
        assert_eq!(left, expected);
        assert!(store.key(&gone.id()).await.unwrap().unwrap().revoked.is_some());

        // Nor do they come back with a tenant of the same name.
        assert_eq!(store.add_tenant(&root(), &acme, &full()).await.unwrap(), 0);
        assert_eq!(store.load().await.unwrap().keys.len(), 2);
        let unknown = store.remove_tenant(&root(), &tenant("nobody")).await;
        assert!(matches!(unknown, Err(StoreError::NotFound(_))), "{unknown:?}");
    })
    .await;
}

#[tokio::test]
async fn keys_that_an_earlier_tenant_has_left_are_not_for_a_new_one() {
    on_both(async |database| {
        let store = database.open().await;
        // As of a tenant that the configuration file named for a while.
        let owner = KeyOwner::Tenant(tenant("acme"));
        let left = store.create_key(&root(), &owner, None, None).await.unwrap().key.id();
        let other = store.create_key(&root(), &KeyOwner::Admin, None, None).await.unwrap().key.id();
        assert_eq!(store.add_tenant(&root(), &tenant("acme"), &full()).await.unwrap(), 1);
        assert!(store.key(&left).await.unwrap().unwrap().revoked.is_some());
        assert!(store.key(&other).await.unwrap().unwrap().revoked.is_none());
        assert_eq!(store.audit(1, None).await.unwrap()[0].detail["revoked_keys"], 1);
        // One that cannot be added takes nobody's keys.
        let key = store.create_key(&root(), &owner, None, None).await.unwrap().key.id();
        store.add_tenant(&root(), &tenant("acme"), &full()).await.unwrap_err();
        assert!(store.key(&key).await.unwrap().unwrap().revoked.is_none());
    })
    .await;
}

/// Actor, action and target of all entries, the oldest first.
async fn audited(store: &Store) -> Vec<(String, String, String)> {
    let entries = store.audit(100, None).await.unwrap();
    entries.into_iter().rev().map(|entry| (entry.actor, entry.action, entry.target)).collect()
}

#[tokio::test]
async fn every_change_is_audited_and_nothing_else() {
    on_both(async |database| {
        let store = database.open().await;
        let acme = tenant("acme");
        let owner = KeyOwner::Tenant(acme.clone());
        let expires = 4_102_444_800_000;
        store.add_tenant(&root(), &acme, &Policy::new()).await.unwrap();
        let admin = store.create_key(&root(), &KeyOwner::Admin, None, None).await.unwrap().key.id();
        let new =
            store.create_key(&Actor::key(admin), &owner, Some("ci"), Some(expires)).await.unwrap();
        let id = new.key.id();
        store.set_tenant(&root(), &acme, &full()).await.unwrap();
        store.revoke_key(&root(), &id).await.unwrap();
        store.remove_tenant(&root(), &acme).await.unwrap();
        // What fails changes nothing.
        store.set_tenant(&root(), &acme, &full()).await.unwrap_err();
        store.remove_tenant(&root(), &acme).await.unwrap_err();

        let entry = |actor: &str, action: &str, target: &str| {
            (actor.to_owned(), action.to_owned(), target.to_owned())
        };
        assert_eq!(
            audited(&store).await,
            [
                entry("cli:root", "tenant.add", "tenant:acme"),
                entry("cli:root", "key.create", &format!("key:{admin}")),
                entry(&format!("key:{admin}"), "key.create", &format!("key:{id}")),
                entry("cli:root", "tenant.set", "tenant:acme"),
                entry("cli:root", "key.revoke", &format!("key:{id}")),
                entry("cli:root", "tenant.remove", "tenant:acme"),
            ]
        );
        let entries = store.audit(3, None).await.unwrap();
        let generation = &entries[0].detail["generation"];
        assert_eq!(entries[0].detail, json!({"revoked_keys": 0, "generation": generation}));
        assert_eq!(entries[1].detail, json!({"tenant": "acme", "generation": generation}));
        let mut set = json!(full());
        set["generation"] = generation.clone();
        assert_eq!(entries[2].detail, set);
        let before = store.audit(1, Some(&entries[2].id)).await.unwrap();
        let created = json!({
            "tenant": "acme", "name": "ci", "expires": "2100-01-01T00:00:00Z",
            "generation": generation,
        });
        assert_eq!(before[0].detail, created);
        assert!(before[0].at <= entries[0].at && before[0].id < entries[2].id);
        assert!(!before[0].detail.to_string().contains(new.key.expose()));
    })
    .await;
}

#[tokio::test]
async fn a_row_that_cannot_be_read_takes_away_the_rights_of_its_tenant_alone() {
    on_both(async |database| {
        let store = database.open().await;
        for id in ["good", "bad"] {
            store.add_tenant(&root(), &tenant(id), &full()).await.unwrap();
            let owner = KeyOwner::Tenant(tenant(id));
            store.create_key(&root(), &owner, None, None).await.unwrap();
        }
        sqlx::any::install_default_drivers();
        let mut by_hand = sqlx::AnyConnection::connect(database.url.expose()).await.unwrap();
        for text in [
            "UPDATE grants SET pattern = 'a b' WHERE tenant = 'bad' AND position = 1",
            "UPDATE keys SET hash = 'x' WHERE tenant = 'bad'",
        ] {
            sqlx::query(text).execute(&mut by_hand).await.unwrap();
        }
        let contents = store.load().await.unwrap();
        assert_eq!(contents.tenants.into_keys().collect::<Vec<_>>(), [tenant("good")]);
        let owners: Vec<_> = contents.keys.into_iter().map(|key| key.owner).collect();
        assert_eq!(owners, [KeyOwner::Tenant(tenant("good"))]);
        assert!(matches!(store.tenant(&tenant("bad")).await, Err(StoreError::Corrupt(_))));
    })
    .await;
}
