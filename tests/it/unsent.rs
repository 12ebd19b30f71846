//! Tenants that do not read their answers, or do not send their bodies.

use serde_json::json;

use crate::async_calls::{accepted, id_of};
use crate::kept_calls::{is_replay, keyed, problem, said};
use crate::support::{Answer, Api, Gateway, RawHttp, Setup, eventually, failed, in_time, refused};

/// Room for four answers of [`LARGE`] bytes, and little more.
pub const BUDGETS: &str = "max_response = \"256KiB\"\n\
                           limits.unsent_per_tenant = \"1MiB\"\nlimits.unsent = \"4MiB\"";
const LARGE: usize = 220_000;
const ALL: &str = "servers = [\"*\"]";

pub fn setup() -> Setup {
    let setup = Setup::new().without_anonymous().set(BUDGETS).std().fake("fake");
    let setup = setup.with_tenant("a", ALL).with_tenant("b", ALL);
    setup.with_tenant("one", &format!("{ALL}\nmax_in_flight = 1\nrate = \"60/h\""))
}

/// Waits until so many bytes are held, as the metrics tell.
pub async fn holds(gateway: &Gateway, budget: &str, expected: impl Fn(f64) -> bool) {
    let series = format!("trunkline_held_bytes{{budget=\"{budget}\"}}");
    eventually("held as expected", async || {
        gateway.metrics().await.value(&series).filter(|held| expected(*held))
    })
    .await;
}

async fn large(api: &Api) -> reqwest::Response {
    let request = api.post("fake", "big", json!({"bytes": LARGE}));
    in_time("the head", request.send()).await.unwrap()
}

async fn neighbour_goes_on(b: &Api) {
    for _ in 0..3 {
        let answer = b.call("fake", "big", json!({"bytes": LARGE})).await;
        assert_eq!(answer.tool_text().len(), LARGE);
    }
}

#[tokio::test]
async fn a_tenant_that_reads_nothing_over_http2_is_refused_and_its_neighbour_goes_on() {
    let gateway = setup().start().await;
    let (a, b) = (gateway.as_tenant("one").await, gateway.as_tenant("b").await);
    let deaf = a.with_window(0);
    let mut unread = vec![];
    for _ in 0..4 {
        unread.push(large(&deaf).await);
        assert_eq!(unread.last().unwrap().status(), 200);
    }
    holds(&gateway, "unsent", |held| held > 4.0 * LARGE as f64).await;

    // The fifth is executed, and its answer finds no room.
    let dropped = a.call("fake", "big", json!({"bytes": LARGE})).await;
    assert_eq!(dropped.problem(), failed(502, "answer_dropped"));
    assert!(dropped.detail().contains("unsent bytes"), "{}", dropped.detail());
    // A short answer still does. Then nothing new begins.
    unread.push(in_time("the head", deaf.post("std", "uuid", "").send()).await.unwrap());
    for _ in 0..6 {
        let next = deaf.post("fake", "big", json!({"bytes": 9000}));
        unread.push(in_time("the head", next.send()).await.unwrap());
    }
    let refusal = a.call("std", "uuid", "").await;
    assert_eq!(refusal.problem(), refused(429, "tenant_busy").for_now());
    let detail = refusal.detail();
    assert!(detail.contains("unsent bytes") && detail.contains("1048576"), "{detail}");
    assert_eq!(a.tools("std").await.problem(), refused(429, "tenant_busy").for_now());
    assert_eq!(a.servers().await.problem(), refused(429, "tenant_busy").for_now());
    neighbour_goes_on(&b).await;

    drop((unread, deaf));
    holds(&gateway, "unsent", |held| held == 0.0).await;
    assert_eq!(large(&a).await.status(), 200);
    let refusals = "trunkline_held_bytes_refusals_total{budget=\"unsent\"}";
    assert!(gateway.metrics().await.value(refusals) >= Some(4.0));
    gateway.stop().await;
}

#[tokio::test]
async fn a_tenant_that_does_not_read_over_http1_is_refused_and_its_neighbour_goes_on() {
    // More than the buffers of a socket take.
    let limits = "max_response = \"16MiB\"\nlimits.unsent_per_tenant = \"32MiB\"";
    let setup = Setup::new().without_anonymous().set(limits).fake("fake").std();
    let setup = setup.with_tenant("a", ALL).with_tenant("b", ALL);
    let gateway = setup.start().await;
    let (a, b) = (gateway.as_tenant("a").await, gateway.as_tenant("b").await);
    let ask = |size: usize| a.post("fake", "big", json!({"bytes": size})).send();
    let unread = [ask(15 << 20).await.unwrap(), ask(14 << 20).await.unwrap()];
    assert!(unread.iter().all(|response| response.status() == 200));
    holds(&gateway, "unsent", |held| held > 28e6).await;
    let refusal = a.call("std", "uuid", "").await;
    assert_eq!(refusal.problem(), refused(429, "tenant_busy").for_now());
    neighbour_goes_on(&b).await;
    drop(unread);
    holds(&gateway, "unsent", |held| held == 0.0).await;
    gateway.stop().await;
}

#[tokio::test]
async fn refusals_that_nobody_reads_end_without_a_body() {
    let gateway = setup().start().await;
    let a = gateway.as_tenant("a").await;
    let mut unread = vec![];
    // More than the room for refusals; each connection has 200 streams at most.
    for _ in 0..5 {
        let deaf = a.with_window(0);
        for _ in 0..150 {
            let call = deaf.post("fake", "big", json!({"bytes": 8000}));
            unread.push(in_time("the head", call.send()).await.unwrap());
        }
    }
    let last = unread.pop().unwrap();
    assert_eq!((last.status().as_u16(), last.content_length()), (429, Some(0)));
    assert_eq!(last.headers()["retry-after"], "1");
    // An eighth more than the budget of each.
    holds(&gateway, "unsent", |held| held > 1e6 && held <= 1.125 * 1024.0 * 1024.0).await;
    drop(unread);
    holds(&gateway, "unsent", |held| held == 0.0).await;
    gateway.stop().await;
}

#[tokio::test]
async fn callers_without_a_key_hold_a_budget_of_their_own() {
    let gateway = setup().start().await;
    let mut unread = vec![];
    for _ in 0..3 {
        let deaf = Api::new(gateway.addr, None).with_window(0);
        for _ in 0..150 {
            let call = deaf.post("std", "uuid", "");
            unread.push(in_time("the head", call.send()).await.unwrap());
        }
    }
    assert!(unread.iter().all(|response| response.status() == 401 || response.status() == 429));
    holds(&gateway, "unsent", |held| held > 1e6 && held <= 1.2e6).await;
    neighbour_goes_on(&gateway.as_tenant("b").await).await;
    drop(unread);
    holds(&gateway, "unsent", |held| held == 0.0).await;
    gateway.stop().await;
}

#[tokio::test]
async fn bodies_that_stay_half_sent_hold_a_bounded_part() {
    let gateway = setup().start().await;
    let keys = [gateway.new_key("a").await, gateway.new_key("b").await];
    let head = |key: &str| format!("authorization: Bearer {key}\r\ncontent-length: 1000000\r\n");
    let half = "x".repeat(900_000);
    let mut halves = vec![];
    // Room for the bytes of 32 bodies of the largest size, and each request counts 12 KiB more.
    for n in 1..=32 {
        let mut raw = RawHttp::connect(gateway.addr).await;
        raw.send_head("/v1/servers/std/tools/echo", &head(&keys[0])).await;
        raw.send(&half).await;
        halves.push(raw);
        if n == 31 {
            holds(&gateway, "requests", |held| held > 31.0 * 1_060_864.0).await;
        }
    }
    let refusal = halves.last_mut().unwrap().response().await;
    assert!(refusal.starts_with("HTTP/1.1 429"), "{refusal}");
    assert!(refusal.contains("bodies of your requests"), "{refusal}");
    holds(&gateway, "requests", |held| held > 32.8e6 && held <= 33.6e6).await;
    let b = gateway.with_key(&keys[1]);
    assert_eq!(b.call("std", "echo", json!({"text": "x".repeat(50_000)})).await.status, 200);
    drop(halves);
    holds(&gateway, "requests", |held| held == 0.0).await;
    gateway.stop().await;
}

#[tokio::test]
async fn answers_that_are_kept_need_no_room_and_say_that_the_tool_ran() {
    let gateway = setup().start().await;
    let a = gateway.as_tenant("a").await;
    let arguments = || json!({"bytes": LARGE});
    let before = Answer::of(keyed(&a, "before", "big", arguments())).await;
    assert_eq!(before.tool_text().len(), LARGE);
    let deaf = a.with_window(0);
    let mut unread = vec![];
    for _ in 0..4 {
        unread.push(large(&deaf).await);
    }
    holds(&gateway, "unsent", |held| held > 4.0 * LARGE as f64).await;

    let dropped = problem(502, "answer_dropped", true, "yes");
    for key in ["first", "before", "first"] {
        let answer = Answer::of(keyed(&a, key, "big", arguments())).await;
        assert_eq!(said(&answer), dropped, "{key}");
        assert!(answer.detail().contains("Idempotency-Key"), "{}", answer.detail());
        assert!(answer.headers.contains_key("retry-after"));
    }
    let id = id_of(&Answer::of(accepted(&a, "big", arguments())).await);
    let result = async || a.get(&format!("/v1/calls/{id}/result?wait=20")).await;
    assert_eq!(said(&result().await), dropped);
    holds(&gateway, "keeping", |held| held == 0.0).await;

    drop((unread, deaf));
    holds(&gateway, "unsent", |held| held == 0.0).await;
    for key in ["first", "before"] {
        let answer = Answer::of(keyed(&a, key, "big", arguments())).await;
        assert_eq!(answer.tool_text().len(), LARGE);
        assert!(is_replay(&answer), "{key}");
    }
    assert_eq!(result().await.tool_text().len(), LARGE);
    // Four without a key.
    assert_eq!(gateway.fake("fake").calls_of("big").len(), 4 + 3);
    holds(&gateway, "unsent", |held| held == 0.0).await;
    gateway.stop().await;
}

#[tokio::test]
async fn long_bodies_count_until_their_calls_have_ended() {
    let setup = Setup::new().without_anonymous().std();
    let setup = setup.fake_with("fake", &[], "max_in_flight = 200");
    let gateway = setup.with_tenant("a", ALL).with_tenant("b", ALL).start().await;
    let (a, b) = (gateway.as_tenant("a").await, gateway.as_tenant("b").await);
    let long = || json!({"text": "x".repeat(900_000)});
    let mut waiting = vec![];
    for n in 1..=36 {
        waiting.push(tokio::spawn(a.post("fake", "hold", long()).send()));
        holds(&gateway, "requests", |held| held >= f64::from(n) * 908_192.0).await;
    }
    let refusal = a.call("std", "echo", long()).await;
    assert_eq!(refusal.problem(), refused(429, "tenant_busy").for_now());
    assert_eq!(refusal.json()["limit"]["name"], "request_bytes");
    // Short ones go on, and so does the neighbour.
    assert_eq!(a.call("std", "echo", json!({"text": "short"})).await.status, 200);
    let hash = json!({"algorithm": "sha256", "text": "x".repeat(900_000)});
    assert_eq!(b.call("std", "hash", hash).await.status, 200);
    a.call("fake", "release", "{}").await.tool_text();
    drop(waiting);
    holds(&gateway, "requests", |held| held == 0.0).await;
    gateway.stop().await;
}
