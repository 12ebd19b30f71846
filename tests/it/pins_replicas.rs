//! Pins that several gateways share, and a store that is away.

use crate::pins::{QUERY, SOON, change, is_called, other_query, setup};
use crate::support::{Database, Gateway, Postgres, Setup, eventually, within};
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use trunkline::store::{Actor, Store};

async fn approve_what_is_held(store: &Store) {
    let held = eventually("written down", async || store.pins(None).await.unwrap().1.pop()).await;
    let hashes = [held.definition.hash];
    store.approve(&Actor::cli("test"), &held.server, &hashes).await.unwrap();
}

async fn two(url: &trunkline::config::Secret) -> [Gateway; 2] {
    let setups = [setup(&[]).with_store(url), setup(&[]).with_store(url)];
    let [one, other] = setups;
    let (one, other) = tokio::join!(one.start(), other.start());
    [one, other]
}

#[tokio::test]
async fn replicas_agree_on_what_is_approved() {
    let Some(server) = Postgres::shared() else { return };
    let database = Database::postgres(server).await;
    let [one, other] = two(&database.url).await;
    for gateway in [&one, &other] {
        assert_eq!(gateway.call("fake", "query", "").await.tool_text(), "query");
    }
    // The server of one is updated.
    change(&one, &one.fake("fake"), &other_query()).await;
    is_called(&one, "query", 409).await;
    assert_eq!(other.call("fake", "query", "").await.tool_text(), "query");
    approve_what_is_held(&database.open().await).await;
    within(SOON, "approved", async || {
        let statuses = (
            one.call("fake", "query", "").await.status,
            // What this one still has is no longer what was approved.
            other.call("fake", "query", "").await.status,
        );
        (statuses == (200, 409)).then_some(())
    })
    .await;
    change(&other, &other.fake("fake"), &other_query()).await;
    is_called(&other, "query", 200).await;
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn of_replicas_that_start_together_one_decides() {
    let Some(server) = Postgres::shared() else { return };
    let database = Database::postgres(server).await;
    let one = setup(&[]).with_store(&database.url);
    let other = setup(&[]).with_store(&database.url);
    let fake = crate::support::Fake::new(other.dir.path(), "fake");
    fake.set_extra_tools(&other_query());
    let (one, other) = tokio::join!(one.start(), other.start());
    let mut statuses =
        [one.call("fake", "query", "").await.status, other.call("fake", "query", "").await.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn while_the_store_is_away_what_was_known_holds() {
    let Some(server) = Postgres::start() else { return };
    let database = Database::postgres(&server).await;
    let gateway = setup(&[]).with_store(&database.url).start().await;
    let fake = gateway.fake("fake");
    server.down();
    change(&gateway, &fake, &other_query()).await;
    is_called(&gateway, "query", 409).await;
    change(&gateway, &fake, QUERY).await;
    is_called(&gateway, "query", 200).await;
    change(&gateway, &fake, &other_query()).await;
    is_called(&gateway, "query", 409).await;
    server.up();
    let store = eventually("open", async || Store::open(&database.url, None).await.ok()).await;
    approve_what_is_held(&store).await;
    is_called(&gateway, "query", 200).await;
    gateway.stop().await;
}

#[tokio::test]
async fn one_server_that_cannot_be_written_down_does_not_keep_others_from_being() {
    let setup = Setup::new().fake_with("a", &[], "pin = true").fake_with("b", &[], "pin = true");
    let gateway = setup.start().await;
    let path = gateway.setup().dir.path().join("trunkline.db");
    let mut database = SqliteConnectOptions::new().filename(path).connect().await.unwrap();
    let trigger = "CREATE TRIGGER no BEFORE INSERT ON held_definitions WHEN NEW.server = 'a' \
                   BEGIN SELECT RAISE(ABORT, 'no'); END";
    sqlx::raw_sql(trigger).execute(&mut database).await.unwrap();
    for server in ["a", "b"] {
        gateway.fake(server).set_extra_tools(QUERY);
        gateway.call(server, "change", "").await.tool_text();
    }
    let store = gateway.setup().store().await;
    let held = eventually("written down", async || store.pins(None).await.unwrap().1.pop()).await;
    assert_eq!((held.server.as_str(), held.definition.tool.as_str()), ("b", "query"));
    gateway.stop().await;
}
