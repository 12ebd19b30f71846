//! Approved definitions, and those that wait to be, on both databases.

use serde_json::json;
use trunkline::common::ids::ServerId;
use trunkline::pins::{Definition, Hash, canonical};
use trunkline::store::{HELD_MAX, Sighting, Store, StoreError};

use crate::store::root;
use crate::support::on_both;

fn server() -> ServerId {
    ServerId::parse("search").unwrap()
}

fn definition(tool: &str, description: &str) -> Definition {
    let text = canonical(&json!({"name": tool, "description": description}).to_string());
    Definition { tool: tool.to_owned(), hash: Hash::of(&text), text }
}

fn held(definitions: &[Definition]) -> Sighting {
    Sighting { held: definitions.to_vec(), ..Sighting::default() }
}

async fn last_action(store: &Store) -> (String, String) {
    let entry = store.audit(1, None).await.unwrap().remove(0);
    (entry.action, entry.target)
}

#[tokio::test]
async fn of_many_that_see_a_server_first_one_is_the_first() {
    on_both(async |database| {
        let stores = [database.open().await, database.open().await, database.open().await];
        let seen =
            |at: usize| [definition("a", &format!("{at}")), definition(&format!("b{at}"), "")];
        let uses = stores
            .iter()
            .enumerate()
            .map(async |(at, store)| store.first_use(&server(), &seen(at)).await.unwrap());
        let firsts = futures_util::future::join_all(uses).await;
        let first = firsts.iter().position(|is_first| *is_first).expect("one is the first");
        assert_eq!(firsts.iter().filter(|is_first| **is_first).count(), 1);

        // What the first has seen counts for all, and nothing that another has seen.
        let (pins, held) = stores[0].pins(None).await.unwrap();
        let definitions: Vec<_> = pins.iter().map(|pin| pin.definition.clone()).collect();
        assert_eq!(definitions, seen(first));
        assert!(pins.iter().all(|pin| pin.by == "first use" && pin.gone.is_none()));
        assert_eq!(held, []);
        for store in &stores {
            let pinned = store.pinned().await.unwrap().remove(&server()).unwrap();
            let expected = seen(first).map(|it| (it.tool, it.hash)).into();
            assert_eq!(pinned.approved, expected);
        }
        let expected = ("pin.first_use".to_owned(), "server:search".to_owned());
        assert_eq!(last_action(&stores[0]).await, expected);
    })
    .await;
}

#[tokio::test]
async fn a_server_without_tools_is_seen_for_the_first_time_only_once() {
    on_both(async |database| {
        let store = database.open().await;
        assert!(store.first_use(&server(), &[]).await.unwrap());
        assert!(!store.first_use(&server(), &[definition("a", "")]).await.unwrap());
        assert!(store.pinned().await.unwrap()[&server()].approved.is_empty());
    })
    .await;
}

#[tokio::test]
async fn what_is_held_back_is_approved_by_its_hash() {
    on_both(async |database| {
        let store = database.open().await;
        let (old, new, newer) =
            (definition("a", "old"), definition("a", "new"), definition("a", "newer"));
        store.first_use(&server(), &[old.clone(), definition("b", "")]).await.unwrap();
        store.record_sighting(&server(), &held(std::slice::from_ref(&new))).await.unwrap();
        let (_, seen) = store.pins(Some(&server())).await.unwrap();
        assert_eq!((seen.len(), &seen[0].definition), (1, &new));

        // The server changes again before anybody has approved anything.
        let again = Sighting {
            released: vec![(new.tool.clone(), new.hash)],
            ..held(std::slice::from_ref(&newer))
        };
        store.record_sighting(&server(), &again).await.unwrap();
        for hashes in [&[new.hash][..], &[newer.hash, new.hash], &[old.hash]] {
            let refused = store.approve(&root(), &server(), hashes).await;
            assert!(matches!(refused, Err(StoreError::NotHeld { .. })), "{refused:?}");
        }
        // All or nothing: nothing.
        assert_eq!(store.pinned().await.unwrap()[&server()].approved["a"], old.hash);

        let elsewhere = ServerId::parse("other").unwrap();
        assert!(store.approve(&root(), &elsewhere, &[newer.hash]).await.is_err());
        assert_eq!(store.approve(&root(), &server(), &[newer.hash]).await.unwrap(), ["a"]);
        let (pins, left) = store.pins(Some(&server())).await.unwrap();
        assert_eq!((&pins[0].definition, pins[0].by.as_str()), (&newer, "cli:root"));
        assert_eq!((pins.len(), left), (2, vec![]));
        let entry = store.audit(1, None).await.unwrap().remove(0);
        assert_eq!((entry.action.as_str(), entry.actor.as_str()), ("pin.approve", "cli:root"));
        assert_eq!(entry.detail, json!({"tools": {"a": newer.hash.to_string()}}));
    })
    .await;
}

#[tokio::test]
async fn of_two_definitions_of_one_tool_one_is_approved() {
    on_both(async |database| {
        let store = database.open().await;
        store.first_use(&server(), &[]).await.unwrap();
        let two = [definition("a", "one"), definition("a", "other")];
        store.record_sighting(&server(), &held(&two)).await.unwrap();
        let hashes = [two[0].hash, two[1].hash];
        assert_eq!(store.approve(&root(), &server(), &hashes).await.unwrap(), ["a"]);
        let (pins, left) = store.pins(None).await.unwrap();
        assert_eq!((pins.len(), left.len()), (1, 1));
        assert_ne!(pins[0].definition, left[0].definition);
    })
    .await;
}

#[tokio::test]
async fn what_has_gone_is_known_and_may_come_back() {
    on_both(async |database| {
        let store = database.open().await;
        store.first_use(&server(), &[definition("a", ""), definition("b", "")]).await.unwrap();
        let gone = Sighting { gone: vec!["a".to_owned()], ..Sighting::default() };
        store.record_sighting(&server(), &gone).await.unwrap();
        assert_eq!(store.pinned().await.unwrap()[&server()].gone, ["a".to_owned()].into());
        assert!(store.pins(None).await.unwrap().0[0].gone.is_some());
        let back = Sighting { back: vec!["a".to_owned()], ..Sighting::default() };
        store.record_sighting(&server(), &back).await.unwrap();
        assert!(store.pinned().await.unwrap()[&server()].gone.is_empty());
    })
    .await;
}

#[tokio::test]
async fn one_tool_is_forgotten_or_all() {
    on_both(async |database| {
        let store = database.open().await;
        let definitions = [definition("a", ""), definition("b", "")];
        store.first_use(&server(), &definitions).await.unwrap();
        store.record_sighting(&server(), &held(&[definition("c", "")])).await.unwrap();
        assert_eq!(store.forget_pins(&root(), &server(), Some("a")).await.unwrap(), 1);
        let absent = store.forget_pins(&root(), &server(), Some("a")).await;
        assert!(matches!(absent, Err(StoreError::NotFound(_))), "{absent:?}");
        // It is not as if the server had never been seen.
        assert_eq!(store.forget_pins(&root(), &server(), Some("b")).await.unwrap(), 1);
        assert!(!store.first_use(&server(), &definitions).await.unwrap());

        assert_eq!(store.forget_pins(&root(), &server(), None).await.unwrap(), 0);
        assert_eq!(last_action(&store).await.0, "pin.forget");
        assert_eq!(store.pins(None).await.unwrap(), (vec![], vec![]));
        let absent = store.forget_pins(&root(), &server(), None).await;
        assert!(matches!(absent, Err(StoreError::NotFound(_))), "{absent:?}");
        assert!(store.first_use(&server(), &definitions).await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn no_server_fills_the_store() {
    on_both(async |database| {
        let store = database.open().await;
        store.first_use(&server(), &[]).await.unwrap();
        let many = |from: usize| {
            let some = from..from + HELD_MAX;
            some.map(|at| definition(&format!("t{at}"), "")).collect::<Vec<_>>()
        };
        store.record_sighting(&server(), &held(&many(0))).await.unwrap();
        store.record_sighting(&server(), &held(&many(HELD_MAX))).await.unwrap();
        // The same again is no more.
        store.record_sighting(&server(), &held(&many(0))).await.unwrap();
        assert_eq!(store.pins(None).await.unwrap().1.len(), HELD_MAX);
        let hashes: Vec<_> = many(0).iter().map(|it| it.hash).collect();
        assert_eq!(store.approve(&root(), &server(), &hashes).await.unwrap().len(), HELD_MAX);
        // As many as a server may have, at its first use.
        let other = ServerId::parse("other").unwrap();
        let tools: Vec<_> = (0..5_000).map(|at| definition(&format!("t{at}"), "")).collect();
        assert!(store.first_use(&other, &tools).await.unwrap());
        assert_eq!(store.pinned().await.unwrap()[&other].approved.len(), 5_000);
    })
    .await;
}

#[tokio::test]
async fn many_tools_come_and_go_at_once() {
    on_both(async |database| {
        let store = database.open().await;
        let named = |count: usize| (0..count).map(|at| format!("tool-{at}"));
        let all: Vec<Definition> = named(121).map(|tool| definition(&tool, "")).collect();
        store.first_use(&server(), &all).await.unwrap();
        let others: Vec<Definition> = named(121).map(|tool| definition(&tool, "other")).collect();
        let gone = named(121).collect();
        let sighting = Sighting { gone, held: others.clone(), ..Sighting::default() };
        store.record_sighting(&server(), &sighting).await.unwrap();
        let pinned = async || store.pinned().await.unwrap().remove(&server()).unwrap();
        let noted = pinned().await;
        assert_eq!((noted.gone.len(), noted.held.len()), (121, 121));
        let released = others[..120].iter().map(|it| (it.tool.clone(), it.hash)).collect();
        let back = named(120).collect();
        let sighting = Sighting { back, released, ..Sighting::default() };
        store.record_sighting(&server(), &sighting).await.unwrap();
        let noted = pinned().await;
        assert_eq!(noted.gone, ["tool-120".to_owned()].into());
        assert_eq!(noted.held, [("tool-120".to_owned(), others[120].hash)].into());
    })
    .await;
}
