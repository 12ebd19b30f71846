//! Keys: whose they are, how many there may be, and when they were used.

use tokio::task::JoinSet;
use trunkline::common::keys::{ApiKey, KeyId};
use trunkline::common::policy::Policy;
use trunkline::config::Secret;
use trunkline::store::{KeyOwner, KeyState, NewKey, Store, StoreError};

use crate::store::{root, tenant};
use crate::support::on_both;

fn acme() -> KeyOwner {
    KeyOwner::Tenant(tenant("acme"))
}

#[tokio::test]
async fn a_key_is_found_by_its_id_and_known_by_its_hash() {
    on_both(async |database| {
        let store = database.open().await;
        let NewKey { key, record } =
            store.create_key(&root(), &acme(), Some("ci ü"), Some(5)).await.unwrap();
        let admin = store.create_key(&root(), &KeyOwner::Admin, None, None).await.unwrap();
        // Another replica hashes alike, without having been told the hash key.
        let other = database.open().await;
        assert_eq!(other.key(&key.id()).await.unwrap(), Some(record.clone()));
        assert_eq!(other.hash(&key), record.hash);
        assert_ne!(other.hash(&key), admin.record.hash);
        assert_eq!((record.name.as_deref(), record.expires), (Some("ci ü"), Some(5)));
        assert_eq!(record.owner, acme());
        assert_eq!(admin.record.owner, KeyOwner::Admin);
        assert_eq!(other.key(&ApiKey::generate().id()).await.unwrap(), None);

        assert_eq!(other.list_keys(&acme()).await.unwrap(), [record]);
        assert_eq!(other.list_keys(&KeyOwner::Admin).await.unwrap(), [admin.record]);
        assert_eq!(other.load().await.unwrap().keys.len(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_hash_key_of_the_operator_is_used_instead() {
    on_both(async |database| {
        let secret = Secret::new("0123456789abcdef0123456789abcdef".to_owned());
        let mine = Store::open(&database.url, Some(&secret)).await.unwrap();
        let new = mine.create_key(&root(), &KeyOwner::Admin, None, None).await.unwrap();
        assert_eq!(mine.hash(&new.key), new.record.hash);
        assert_ne!(database.open().await.hash(&new.key), new.record.hash);
    })
    .await;
}

#[tokio::test]
async fn two_keys_are_active_at_a_time() {
    on_both(async |database| {
        let store = database.open().await;
        let create = async |expires| store.create_key(&root(), &acme(), None, expires).await;
        let first = create(None).await.unwrap().key.id();
        // One that has expired does not count.
        create(Some(1)).await.unwrap();
        create(Some(i64::MAX)).await.unwrap();
        let third = create(None).await.unwrap_err();
        assert!(matches!(third, StoreError::TooManyKeys(_)), "{third:?}");
        assert_eq!(third.to_string(), "tenant `acme` has 2 active keys already; revoke one first");
        // Others have their own, and administrators are several people.
        let admin = async || store.create_key(&root(), &KeyOwner::Admin, None, None).await;
        for _ in 0..20 {
            admin().await.unwrap();
        }
        let text = admin().await.unwrap_err().to_string();
        assert!(text.contains("has 20 active keys already"), "{text}");

        store.revoke_key(&root(), &first).await.unwrap();
        create(None).await.unwrap();
        let now = 1000;
        let states = store.list_keys(&acme()).await.unwrap();
        let mut states: Vec<_> = states.iter().map(|key| format!("{:?}", key.state(now))).collect();
        states.sort();
        assert_eq!(states, ["Active", "Active", "Expired", "Revoked"]);
    })
    .await;
}

#[tokio::test]
async fn of_many_who_make_keys_at_once_two_succeed() {
    on_both(async |database| {
        let mut makers = JoinSet::new();
        for _ in 0..4 {
            let store = database.open().await;
            for _ in 0..4 {
                let store = store.clone();
                makers.spawn(async move { store.create_key(&root(), &acme(), None, None).await });
            }
        }
        let outcomes = makers.join_all().await;
        let made = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let refused =
            outcomes.iter().filter(|outcome| matches!(outcome, Err(StoreError::TooManyKeys(_))));
        assert_eq!((made, refused.count()), (2, 14), "{outcomes:?}");
    })
    .await;
}

#[tokio::test]
async fn a_revoked_key_stays_revoked() {
    on_both(async |database| {
        let store = database.open().await;
        store.add_tenant(&root(), &tenant("acme"), &Policy::new()).await.unwrap();
        let id = store.create_key(&root(), &acme(), None, None).await.unwrap().key.id();
        store.revoke_key(&root(), &id).await.unwrap();
        let revoked = store.key(&id).await.unwrap().unwrap();
        assert_eq!(revoked.state(revoked.created), KeyState::Revoked);
        assert_eq!(store.load().await.unwrap().keys, []);
        store.revoke_key(&root(), &id).await.unwrap();
        assert_eq!(store.key(&id).await.unwrap(), Some(revoked));
        let unknown = store.revoke_key(&root(), &ApiKey::generate().id()).await;
        assert!(matches!(unknown, Err(StoreError::NotFound(_))), "{unknown:?}");
    })
    .await;
}

#[tokio::test]
async fn the_last_use_of_a_key_is_the_latest_noted() {
    on_both(async |database| {
        let store = database.open().await;
        let one = store.create_key(&root(), &acme(), None, None).await.unwrap().key.id();
        let two = store.create_key(&root(), &acme(), None, None).await.unwrap().key.id();
        let last_used = async |id: &KeyId| store.key(id).await.unwrap().unwrap().last_used;
        store.record_key_uses(&[]).await.unwrap();
        store.record_key_uses(&[(one, 10), (two, 7), (one, 30), (one, 20)]).await.unwrap();
        assert_eq!((last_used(&one).await, last_used(&two).await), (Some(30), Some(7)));
        // An earlier one of another replica comes late; and there are more than one statement
        // takes.
        let mut many: Vec<_> = (0..2500).map(|_| (ApiKey::generate().id(), 1)).collect();
        many.extend([(one, 29), (two, 8)]);
        store.record_key_uses(&many).await.unwrap();
        assert_eq!((last_used(&one).await, last_used(&two).await), (Some(30), Some(8)));
    })
    .await;
}
