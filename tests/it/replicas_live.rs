//! The live page of several replicas: one stream has the trunks of all.

use reqwest::{Method, Response};
use serde_json::json;
use trunkline::store::{Actor, KeyOwner};

use crate::replicas::{stop, two};
use crate::support::{Answer, Api, Database, Gateway, eventually, in_time};

/// Reads the stream until this text has come.
async fn read_until(response: &mut Response, text: &str) {
    let mut read = String::new();
    while !read.contains(text) {
        let bytes = in_time(text, response.chunk()).await.unwrap().unwrap();
        read.push_str(&String::from_utf8_lossy(&bytes));
    }
}

async fn live(admin: &Api) -> Response {
    let response = admin.client.get(admin.url("/admin/v1/live")).send().await.unwrap();
    assert_eq!(response.status(), 200);
    response
}

async fn admin_key(gateway: &Gateway) -> String {
    let store = gateway.setup().store().await;
    let key = store.create_key(&Actor::cli("test"), &KeyOwner::Admin, None, None).await.unwrap();
    key.key.expose().to_owned()
}

#[tokio::test]
async fn one_stream_shows_all_replicas_and_a_call_of_any_is_cancelled() {
    let database = Database::sqlite();
    let [one, other] = two(&database).await;
    let key = admin_key(&one).await;
    let admin = one.with_key(&key);
    let mut stream = live(&admin).await;
    let call = other.spawn_call("fake", "hold", json!({}));
    let at_other = other.with_key(&key);
    let id = eventually("held", async || {
        let calls = at_other.get("/admin/v1/calls").await.json();
        calls["calls"][0]["id"].as_str().map(str::to_owned)
    })
    .await;
    read_until(&mut stream, &id).await;
    let cancel = admin.client.request(Method::DELETE, admin.url(&format!("/admin/v1/calls/{id}")));
    assert_eq!(Answer::of(cancel).await.status, 200);
    assert_eq!(in_time("cancelled", call).await.unwrap().status, 409);
    let pause = admin.client.post(admin.url("/admin/v1/servers/fake/pause"));
    assert_eq!(Answer::of(pause).await.status, 200);
    let waits = other.call_within_ms(300, "fake", "hold", json!({})).await;
    assert_eq!(waits.status, 504, "{waits:?}");
    let resume = admin.client.post(admin.url("/admin/v1/servers/fake/resume"));
    assert_eq!(Answer::of(resume).await.status, 200);
    stop([one, other]).await;
}
