//! A name that is used again is somebody else: nothing of a removed tenant reaches the next one.

use serde_json::json;
use trunkline::common::ids::TenantName;
use trunkline::common::policy::Policy;
use trunkline::store::{Actor, Store};

use crate::support::mcp_legacy::Session;
use crate::support::{Answer, Api, Gateway, Setup, eventually, is_alive, on_both};

const KEYS: &str = "session_keys = [\"0123456789abcdef0123456789abcdef\"]";

fn setup() -> Setup {
    let setup = Setup::new().without_anonymous().set(KEYS);
    let setup = setup.fake_with("own", &[], "sharing = \"tenant\"");
    setup.fake_with("alone", &[], "sharing = \"session\"").std()
}

async fn add(store: &Store, name: &str) {
    let name = TenantName::parse(name).unwrap();
    store.add_tenant(&Actor::cli("test"), &name, &Policy::unlimited()).await.unwrap();
}

async fn remove(store: &Store, name: &str) {
    let name = TenantName::parse(name).unwrap();
    store.remove_tenant(&Actor::cli("test"), &name).await.unwrap();
}

async fn pid(api: &Api) -> i32 {
    api.call("own", "pid", "").await.tool_text().parse().unwrap()
}

async fn gone(pid: i32) {
    eventually("gone", async || (!is_alive(pid)).then_some(())).await;
}

/// Returns the status of a request in a session.
async fn status(session: &Session) -> u16 {
    session.ask("ping", json!({})).await.status
}

async fn becomes(api: &Api, status: u16) {
    let is = async || (api.servers().await.status == status).then_some(());
    eventually("the status", is).await;
}

async fn reported_calls(api: &Api) -> usize {
    api.get("/v1/usage").await.json()["usage"].as_array().unwrap().len()
}

/// Processes and a session of a tenant at one gateway.
struct Belongings {
    api: Api,
    own: i32,
    alone: i32,
    session: Session,
}

async fn belongings(gateway: &Gateway, key: &str) -> Belongings {
    let api = gateway.with_key(key);
    becomes(&api, 200).await;
    let session = Session::open(&api, "/mcp").await;
    let alone = session.tool_text("alone__pid", json!({})).await.parse().unwrap();
    eventually("usage", async || (reported_calls(&api).await > 0).then_some(())).await;
    Belongings { own: pid(&api).await, alone, session, api }
}

/// Checks that nothing of an earlier tenant is left for the one with this key.
async fn nothing_is_left(before: &Belongings, gateway: &Gateway, key: &str) {
    becomes(&before.api, 401).await;
    let after = gateway.with_key(key);
    becomes(&after, 200).await;
    assert_eq!(reported_calls(&after).await, 0);
    assert_eq!(status(&before.session.at(&after, "/mcp")).await, 404);
    let own = pid(&after).await;
    assert_ne!(own, before.own);
    gone(before.own).await;
    gone(before.alone).await;
    assert_eq!(pid(&after).await, own, "its own process stays");
}

#[tokio::test]
async fn nothing_of_a_removed_tenant_is_left_for_the_next_of_its_name_at_any_replica() {
    on_both(async |database| {
        let store = database.open().await;
        add(&store, "acme").await;
        let (one, two) = (setup().with_store(&database.url), setup().with_store(&database.url));
        let (one, two) = (one.start().await, two.start().await);
        let key = one.new_key("acme").await;
        let before = [belongings(&one, &key).await, belongings(&two, &key).await];
        // Both replicas see the end of this at most.
        remove(&store, "acme").await;
        add(&store, "acme").await;
        let key = one.new_key("acme").await;
        nothing_is_left(&before[0], &one, &key).await;
        nothing_is_left(&before[1], &two, &key).await;
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_removed_tenant_ends_with_its_processes_and_its_calls_finish() {
    let setup = setup();
    let store = setup.store().await;
    add(&store, "acme").await;
    let gateway = setup.start().await;
    let acme = belongings(&gateway, &gateway.new_key("acme").await).await;
    let call = acme.api.spawn_call("own", "later", json!({"ms": 2000}));
    gateway.has_in_flight("own", 1.0).await;
    let mut stream = acme.session.listen().await;
    remove(&store, "acme").await;
    while stream.next().await.is_some() {}
    becomes(&acme.api, 401).await;
    assert_eq!(call.await.unwrap().tool_text(), "later");
    gone(acme.own).await;
    gone(acme.alone).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_tenant_of_the_file_is_new_when_a_file_was_without_it() {
    let without = setup();
    let with = without.clone().with_tenant("acme", "servers = [\"*\"]");
    let gateway = with.clone().start().await;
    let key = gateway.new_key("acme").await;
    let session = Session::open(&gateway.with_key(&key), "/mcp").await;
    gateway.stop().await;
    // A restart does not change who it is.
    let gateway = with.clone().start().await;
    assert_eq!(status(&session.at(&gateway.with_key(&key), "/mcp")).await, 200);
    let before = belongings(&gateway, &key).await;
    assert!(gateway.apply(&without).await);
    becomes(&before.api, 401).await;
    gone(before.own).await;
    assert!(gateway.apply(&with).await);
    let key = gateway.new_key("acme").await;
    nothing_is_left(&before, &gateway, &key).await;
    gateway.stop().await;
    // A start counts as well.
    let session = {
        let gateway = with.clone().start().await;
        let session = Session::open(&gateway.with_key(&key), "/mcp").await;
        gateway.stop().await;
        session
    };
    without.start().await.stop().await;
    let gateway = with.start().await;
    assert_eq!(gateway.with_key(&key).servers().await.status, 401);
    let api = gateway.as_tenant("acme").await;
    becomes(&api, 200).await;
    assert_eq!(status(&session.at(&api, "/mcp")).await, 404);
    gateway.stop().await;
}

/// Both changes come before the store is read once.
#[tokio::test]
async fn a_tenant_of_the_file_is_new_however_soon_it_comes_back() {
    let without = setup();
    let with = without.clone().with_tenant("acme", "servers = [\"*\"]");
    let directory =
        trunkline::tenants::Directory::open(with.store().await, &with.config(), None).await;
    let directory = directory.unwrap();
    let acme = TenantName::parse("acme").unwrap();
    let before = directory.tenant(&acme).unwrap();
    directory.set_config(&without.config());
    directory.set_config(&with.config());
    let is_new = async || directory.tenant(&acme).filter(|now| now.id != before.id).map(drop);
    tokio::select! {
        () = directory.follow() => unreachable!("it never ends"),
        () = eventually("another tenant", is_new) => {}
    }
    assert!(before.removed.is_cancelled());
}

#[tokio::test]
async fn a_configured_local_is_not_the_built_in_one() {
    let built_in = setup().tenant("local");
    let gateway = built_in.clone().start().await;
    let session = Session::open(&gateway, "/mcp").await;
    let before = pid(&gateway).await;
    assert!(gateway.apply(&built_in.with_tenant("local", "servers = [\"*\"]")).await);
    eventually("another", async || (status(&session).await == 404).then_some(())).await;
    assert_ne!(pid(&gateway).await, before);
    gone(before).await;
    assert_eq!(Answer::of(session.get()).await.status, 404);
    gateway.stop().await;
}
