//! Callers without a key: their tenant must exist, and when it goes, they are refused.

use std::time::Duration;

use serde_json::json;
use tokio::time::{advance, pause, resume};
use trunkline::common::ids::TenantName;
use trunkline::common::policy::Policy;
use trunkline::store::{Actor, Store};
use trunkline::tenants::{Directory, KeyError};

use crate::support::mcp_legacy::Session;
use crate::support::{Api, Serving, Setup, eventually, trunkline};

/// The rights of a tenant that may use nothing but `std`.
const STD_ONLY: &str = "servers = [\"std\"]";

async fn status(api: &Api) -> u16 {
    api.call("std", "echo", json!({"text": "x"})).await.status
}

async fn becomes(api: &Api, expected: u16) {
    eventually("in force", async || (status(api).await == expected).then_some(())).await;
}

async fn add(store: &Store, id: &str) {
    let id = TenantName::parse(id).unwrap();
    store.add_tenant(&Actor::cli("test"), &id, &Policy::unlimited()).await.unwrap();
}

async fn remove(store: &Store, id: &str) {
    let id = TenantName::parse(id).unwrap();
    store.remove_tenant(&Actor::cli("test"), &id).await.unwrap();
}

/// Runs `trunkline serve` until it refuses to start, and returns its standard error.
async fn refusal(setup: &Setup) -> String {
    let config = setup.write();
    let output = trunkline(setup, &["serve", "--config", config.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn a_tenant_that_nobody_configured_is_refused_at_the_start() {
    let setup = Setup::new().tenant("locale").std();
    let error = refusal(&setup).await;
    for part in ["`auth.anonymous_tenant`", "`locale`", "trunkline tenant add locale"] {
        assert!(error.contains(part), "{error}");
    }
    // Neither do the commands know it, except the one that adds it.
    let config = setup.write();
    let config = config.to_str().unwrap();
    let key = trunkline(&setup, &["key", "create", "locale", "--config", config]).await;
    assert!(!key.status.success(), "{key:?}");
    let args = ["tenant", "add", "locale", "--servers", "std", "--config", config];
    assert!(trunkline(&setup, &args).await.status.success());
    let gateway = setup.start().await;
    assert_eq!(status(&gateway).await, 200);
    gateway.stop().await;
}

#[tokio::test]
async fn access_closes_with_the_tenant_of_the_file() {
    let none = Setup::new().std().fake("fake");
    let gateway = none.clone().with_tenant("local", STD_ONLY).start().await;
    assert_eq!(status(&gateway).await, 200);
    assert_eq!(gateway.call("fake", "raw", "{}").await.status, 404);
    let mut stream = Session::open(&gateway, "/mcp").await.listen().await;
    assert!(gateway.apply(&none).await);
    // At once, and for good: no built-in tenant takes the place of the limited one.
    assert_eq!(status(&gateway).await, 401);
    assert_eq!(stream.next().await, None);
    let key = gateway.new_key("local").await;
    assert_eq!(status(&gateway.with_key(&key)).await, 401);
    assert_eq!(status(&gateway).await, 401);
    assert!(gateway.apply(&none.with_tenant("local", STD_ONLY)).await);
    becomes(&gateway, 200).await;
    assert_eq!(gateway.call("fake", "raw", "{}").await.status, 404);
    gateway.stop().await;
}

#[tokio::test]
async fn access_closes_with_the_tenant_of_the_store() {
    for id in ["local", "guests"] {
        let setup = Setup::new().tenant(id).std();
        let store = setup.store().await;
        add(&store, id).await;
        let gateway = setup.start().await;
        assert_eq!(status(&gateway).await, 200);
        let mut stream = Session::open(&gateway, "/mcp").await.listen().await;
        remove(&store, id).await;
        becomes(&gateway, 401).await;
        assert_eq!(stream.next().await, None);
        add(&store, id).await;
        becomes(&gateway, 200).await;
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_tenant_that_is_added_takes_the_place_of_the_built_in_one_for_good() {
    let setup = Setup::new().std();
    let store = setup.store().await;
    let gateway = setup.start().await;
    assert_eq!(status(&gateway).await, 200);
    add(&store, "local").await;
    let limited = TenantName::parse("local").unwrap();
    let change = |policy| {
        Ok::<_, trunkline::store::StoreError>(Policy { servers: Policy::new().servers, ..policy })
    };
    store.change_tenant(&Actor::cli("test"), &limited, change).await.unwrap();
    becomes(&gateway, 404).await;
    remove(&store, "local").await;
    becomes(&gateway, 401).await;
    gateway.stop().await;
}

/// Opens a directory that is never read again, as if the store were away from now on.
async fn directory_once_read(setup: &Setup) -> Directory {
    Directory::open(setup.store().await, &setup.config(), None).await.unwrap()
}

#[tokio::test]
async fn a_tenant_of_the_store_is_trusted_for_an_hour_after_the_last_read() {
    let in_store = Setup::new().tenant("guests").std();
    add(&in_store.store().await, "guests").await;
    let in_file = Setup::new().std().with_tenant("local", STD_ONLY);
    let built_in = Setup::new().std();
    for (setup, after) in
        [(in_store, Some(KeyError::Unavailable)), (in_file, None), (built_in, None)]
    {
        let directory = directory_once_read(&setup).await;
        assert_eq!(directory.anonymous().err(), None);
        pause();
        advance(Duration::from_secs(3590)).await;
        assert_eq!(directory.anonymous().err(), None);
        advance(Duration::from_secs(20)).await;
        assert_eq!(directory.anonymous().err(), after);
        resume();
    }
}

#[tokio::test]
async fn another_tenant_in_the_file_ends_the_access_of_the_one_before_at_once() {
    let setup = Setup::new().tenant("guests").std();
    for id in ["guests", "visitors"] {
        add(&setup.store().await, id).await;
    }
    let directory = directory_once_read(&setup).await;
    let access = directory.anonymous().ok().unwrap();
    directory.set_config(&setup.clone().tenant("visitors").config());
    assert_eq!(directory.anonymous().err(), Some(KeyError::Unavailable));
    assert!(access.gone.is_cancelled(), "its streams end");
}

#[tokio::test]
async fn streams_end_when_callers_need_a_key() {
    let std = Setup::new().std().with_tenant("local", STD_ONLY);
    let gateway = std.clone().start().await;
    let mut stream = Session::open(&gateway, "/mcp").await.listen().await;
    assert!(gateway.apply(&std.without_anonymous()).await);
    assert_eq!(stream.next().await, None, "although the tenant is still there");
    gateway.stop().await;
}

#[tokio::test]
async fn a_new_configuration_that_names_an_unknown_tenant_closes_access_with_a_warning() {
    let setup = Setup::new().std();
    let gateway: Serving = setup.clone().serve().await;
    let status = async || gateway.call("std", "echo", json!({"text": "x"})).await.status;
    assert_eq!(status().await, 200);
    setup.clone().tenant("locale").write();
    eventually("closed", async || (status().await == 401).then_some(())).await;
    gateway.logged("callers without a key are refused").await;
    gateway.logged("trunkline tenant add locale").await;
    // The tenant that is added opens it.
    add(&setup.store().await, "locale").await;
    eventually("open", async || (status().await == 200).then_some(())).await;
    let warnings = gateway.log().iter().filter(|line| line.contains("are refused")).count();
    assert_eq!(warnings, 1);
}
