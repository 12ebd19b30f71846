//! The live pages from the outside: sessions, who may do what, and the stream.

use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::time::timeout;
use trunkline::common::keys::KeyId;
use trunkline::store::{Actor, KeyOwner};

use crate::support::{Answer, Api, Gateway, Setup, eventually, in_time, refused};

/// A browser with the page open.
pub struct Page {
    client: Client,
    origin: String,
    path: &'static str,
    cookie: String,
}

impl Page {
    /// Signs in; returns the answer's status if that fails.
    pub async fn sign_in(
        gateway: &Gateway,
        path: &'static str,
        body: Value,
    ) -> Result<Self, Answer> {
        let client = Client::builder().no_proxy().build().unwrap();
        let mut page = Self { client, origin: gateway.url(""), path, cookie: String::new() };
        let response = page.ask(Method::POST, "/session").body(body.to_string()).send().await;
        let response = response.unwrap();
        let cookie = response.headers().get("set-cookie").map(|it| it.to_str().unwrap().to_owned());
        match cookie {
            Some(cookie) => {
                assert!(cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
                assert!(cookie.contains(&format!("Path={path};")), "{cookie}");
                page.cookie = cookie.split(';').next().unwrap().to_owned();
                Ok(page)
            }
            None => Err(Answer {
                status: response.status().as_u16(),
                headers: response.headers().clone(),
                body: response.bytes().await.unwrap().to_vec(),
            }),
        }
    }

    pub fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{}{path}", self.origin, self.path));
        let request = request.header("trunkline-page", "1").header("origin", &self.origin);
        request.header("cookie", &self.cookie)
    }

    pub async fn status(&self, method: Method, path: &str) -> u16 {
        self.ask(method, path).send().await.unwrap().status().as_u16()
    }
}

async fn admin_key(gateway: &Gateway) -> (String, String) {
    let store = gateway.setup().store().await;
    let key = store.create_key(&Actor::cli("test"), &KeyOwner::Admin, None, None).await.unwrap();
    (key.key.expose().to_owned(), key.record.id.as_str().to_owned())
}

pub async fn operator(gateway: &Gateway) -> (Page, Api) {
    let (key, _) = admin_key(gateway).await;
    let page = Page::sign_in(gateway, "/dashboard", json!({"key": key})).await;
    (page.unwrap_or_else(|answer| panic!("{answer:?}")), gateway.with_key(&key))
}

#[tokio::test]
async fn a_session_does_what_the_page_does_and_no_more() {
    let gateway = Setup::new().std().start().await;
    let (page, _) = operator(&gateway).await;
    for path in ["/admin/v1/servers", "/admin/v1/tenants", "/admin/v1/history", "/session"] {
        assert_eq!(page.status(Method::GET, path).await, 200, "{path}");
    }
    assert_eq!(page.status(Method::POST, "/admin/v1/servers/std/pause").await, 200);
    assert_eq!(page.status(Method::POST, "/admin/v1/servers/std/resume").await, 200);
    for (method, path) in [
        (Method::POST, "/admin/v1/admin-keys"),
        (Method::POST, "/admin/v1/tenants/local/keys"),
        (Method::DELETE, "/admin/v1/tenants/local"),
        (Method::PUT, "/admin/v1/tenants/local/servers/std/secrets/x"),
    ] {
        assert_eq!(page.status(method.clone(), path).await, 403, "{method} {path}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_cookie_alone_and_other_origins_do_nothing() {
    let gateway = Setup::new().std().start().await;
    let (page, _) = operator(&gateway).await;
    let ask = |method, path: &str| {
        page.client.request(method, format!("{}{path}", page.origin)).header("cookie", &page.cookie)
    };
    // Elsewhere no cookie counts, and on the page's own paths not without its header.
    for path in ["/admin/v1/servers", "/dashboard/admin/v1/servers"] {
        let answer = Answer::of(ask(Method::GET, path).header("trunkline-page", "1")).await;
        assert_eq!(answer.status, if path.starts_with("/admin") { 401 } else { 200 }, "{path}");
        assert_ne!(Answer::of(ask(Method::GET, path)).await.status, 200, "{path}");
    }
    let pause = "/dashboard/admin/v1/servers/std/pause";
    let port = gateway.addr.port();
    for origin in [
        None,
        Some("null".to_owned()),
        Some("https://evil.example".to_owned()),
        Some(format!("http://localhost:{port}")),
        Some("http://127.0.0.1:1".to_owned()),
    ] {
        let request = ask(Method::POST, pause).header("trunkline-page", "1");
        let request = match &origin {
            Some(origin) => request.header("origin", origin),
            None => request,
        };
        assert_eq!(Answer::of(request).await.problem(), refused(403, "forbidden"), "{origin:?}");
    }
    assert_eq!(gateway.call("std", "echo", json!({"text": "x"})).await.status, 200);
    gateway.stop().await;
}

#[tokio::test]
async fn no_path_but_the_pages_own_takes_a_cookie() {
    let setup = Setup::new().without_anonymous().std();
    let gateway = setup.with_tenant("acme", "servers = [\"*\"]").start().await;
    let (operator, _) = operator(&gateway).await;
    let key = gateway.new_key("acme").await;
    let tenant = Page::sign_in(&gateway, "/me", json!({"key": key})).await.ok().unwrap();
    let cookies = format!("{}; {}", operator.cookie, tenant.cookie);
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;
    for (method, path, body) in [
        (Method::GET, "/v1/servers", ""),
        (Method::POST, "/v1/servers/std/tools/echo", r#"{"text":"x"}"#),
        (Method::GET, "/v1/limits", ""),
        (Method::POST, "/mcp", list),
        (Method::POST, "/mcp/std", list),
        (Method::GET, "/admin/v1/servers", ""),
        (Method::POST, "/admin/v1/servers/std/pause", ""),
    ] {
        let request = tenant.client.request(method, gateway.url(path)).body(body);
        let request = request.header("cookie", &cookies).header("origin", &tenant.origin);
        let request =
            request.header("trunkline-page", "1").header("content-type", "application/json");
        let accept = "application/json, text/event-stream";
        assert_eq!(Answer::of(request.header("accept", accept)).await.status, 401, "{path}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn operators_and_tenants_have_sessions_of_their_own() {
    let setup = Setup::new().without_anonymous().std();
    let gateway = setup.with_tenant("acme", "servers = [\"*\"]").start().await;
    let (admin, _) = admin_key(&gateway).await;
    let tenant = gateway.new_key("acme").await;
    let sign_in = async |path, key: &str| {
        Page::sign_in(&gateway, path, json!({"key": key})).await.map_err(|answer| answer.status)
    };
    assert_eq!(sign_in("/dashboard", &tenant).await.err(), Some(403));
    assert_eq!(sign_in("/me", &admin).await.err(), Some(403));
    assert_eq!(sign_in("/me", "tl_x").await.err(), Some(401));
    let anonymous = Page::sign_in(&gateway, "/me", json!({"anonymous": true})).await;
    assert_eq!(anonymous.err().map(|answer| answer.status), Some(401));
    let mut page = sign_in("/me", &tenant).await.ok().unwrap();
    assert_eq!(page.status(Method::GET, "/v1/limits").await, 200);
    let echo = page.ask(Method::POST, "/v1/servers/std/tools/echo").body(r#"{"text":"x"}"#);
    assert_eq!(Answer::of(echo).await.status, 200);
    assert_eq!(page.status(Method::POST, "/v1/batch").await, 403);
    // A tenant's cookie, under the name of an operator's.
    page.cookie = page.cookie.replace("trunkline-tenant", "trunkline-operator");
    page.path = "/dashboard";
    assert_eq!(page.status(Method::GET, "/admin/v1/servers").await, 401);
    gateway.stop().await;
}

#[tokio::test]
async fn a_session_and_its_stream_end_with_the_key() {
    let gateway = Setup::new().std().start().await;
    let (_, other) = operator(&gateway).await;
    // Through this gateway, it has ended when the answer comes.
    let (page, id, stream) = with_stream(&gateway).await;
    let revoke = other.client.delete(other.url(&format!("/admin/v1/keys/{id}")));
    assert_eq!(Answer::of(revoke).await.status, 200);
    assert_eq!(page.status(Method::GET, "/admin/v1/servers").await, 401);
    in_time("the stream's end", stream.bytes()).await.unwrap();
    // By another process, within two seconds.
    let (page, id, stream) = with_stream(&gateway).await;
    let store = gateway.setup().store().await;
    store.revoke_key(&Actor::cli("test"), &KeyId::parse(&id).unwrap()).await.unwrap();
    timeout(Duration::from_secs(2), stream.bytes()).await.unwrap().unwrap();
    assert_eq!(page.status(Method::GET, "/admin/v1/servers").await, 401);
    gateway.stop().await;
}

/// Signs in with a new key, and looks at the trunk; returns the key's id, too.
async fn with_stream(gateway: &Gateway) -> (Page, String, Response) {
    let (key, id) = admin_key(gateway).await;
    let page = Page::sign_in(gateway, "/dashboard", json!({"key": key})).await.ok().unwrap();
    let stream = page.ask(Method::GET, "/admin/v1/live").send().await.unwrap();
    assert_eq!(stream.status(), 200);
    (page, id, stream)
}

#[tokio::test]
async fn a_tenants_page_shows_its_own_calls_and_no_other_tenants() {
    let setup = Setup::new().without_anonymous().fake_with("fake", &[], "max_in_flight = 1");
    let setup = setup.with_tenant("acme", "servers = [\"*\"]");
    let gateway = setup.with_tenant("globex", "servers = [\"*\"]").start().await;
    let [acme, globex] = [gateway.new_key("acme").await, gateway.new_key("globex").await];
    let sign_in =
        async |key: &str| Page::sign_in(&gateway, "/me", json!({"key": key})).await.ok().unwrap();
    let (page, page_of_globex) = (sign_in(&acme).await, sign_in(&globex).await);
    let open =
        async |page: &Page| Answer::of(page.ask(Method::GET, "/calls")).await.json()["open"].take();
    let calls = [(); 2].map(|()| gateway.with_key(&acme).spawn_call("fake", "hold", json!({})));
    // The list begins with the oldest call. Calls of one millisecond have no order.
    eventually("a call that runs and one that waits", async || {
        let open = open(&page).await;
        let mut states: Vec<_> = open.as_array().unwrap().iter().map(|it| &it["state"]).collect();
        states.sort_by_key(|state| state.as_str());
        let tools_are_right = open.as_array().unwrap().iter().all(|it| it["tool"] == "hold");
        (states == ["running", "waiting"] && tools_are_right).then_some(())
    })
    .await;
    assert_eq!(open(&page_of_globex).await, json!([]));
    calls.iter().for_each(|call| call.abort());
    eventually("no call", async || (open(&page).await == json!([])).then_some(())).await;
    gateway.stop().await;
}

#[tokio::test]
async fn attempts_to_sign_in_are_limited() {
    let gateway = Setup::new().std().start().await;
    let mut statuses = vec![];
    for _ in 0..15 {
        let refused = Page::sign_in(&gateway, "/dashboard", json!({"key": "tl_x"})).await;
        statuses.push(refused.err().unwrap().status);
    }
    assert_eq!((statuses[0], *statuses.last().unwrap()), (401, 429), "{statuses:?}");
    gateway.stop().await;
}

/// The state that the stream has told of.
struct Stream {
    response: Response,
    text: String,
    servers: Value,
}

impl Stream {
    fn of(response: Response) -> Self {
        Self { response, text: String::new(), servers: json!({}) }
    }

    async fn next(&mut self) {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let event: String = self.text.drain(..end + 2).collect();
                let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) else {
                    continue;
                };
                let data: Value = serde_json::from_str(data).unwrap();
                return self.apply(&data);
            }
            let bytes = in_time("an event", self.response.chunk()).await.unwrap().unwrap();
            self.text.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }

    fn apply(&mut self, data: &Value) {
        for (id, change) in data["servers"].as_object().unwrap() {
            for (name, value) in change.as_object().unwrap() {
                if name != "cells" {
                    self.servers[id][name] = value.clone();
                    continue;
                }
                for (key, cell) in value.as_object().unwrap() {
                    if cell.is_null() {
                        self.servers[id]["cells"].as_object_mut().unwrap().remove(key);
                    } else {
                        self.servers[id]["cells"][key] = cell.clone();
                    }
                }
            }
        }
    }

    /// Returns the ids of the calls on slots, sorted.
    fn on_slots(&self, server: &str) -> Vec<String> {
        let cells = self.servers[server]["cells"].as_object().cloned().unwrap_or_default();
        let mut ids: Vec<_> =
            cells.values().map(|cell| cell[4].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    }

    fn in_line(&self, server: &str) -> Vec<String> {
        let line = self.servers[server]["line"].as_array().cloned().unwrap_or_default();
        line.iter().map(|waiter| waiter[3].as_str().unwrap().to_owned()).collect()
    }
}

#[tokio::test]
async fn the_stream_says_who_holds_which_slot_and_who_waits() {
    let setup = Setup::new().fake_with("fake", &[], "max_in_flight = 4");
    let gateway = setup.start().await;
    let (_, admin) = operator(&gateway).await;
    let response = admin.client.get(admin.url("/admin/v1/live")).send().await.unwrap();
    let mut stream = Stream::of(response);
    stream.next().await;
    let calls: Vec<_> = (0..6).map(|_| gateway.spawn_call("fake", "hold", json!({}))).collect();
    let has = async |stream: &mut Stream, slots: usize, line: usize| {
        while (stream.on_slots("fake").len(), stream.in_line("fake").len()) != (slots, line) {
            stream.next().await;
        }
    };
    // One of the four is kept for others.
    has(&mut stream, 3, 3).await;
    let known = admin.get("/admin/v1/calls").await.json();
    let known = known["calls"].as_array().unwrap().iter();
    let mut known: Vec<_> = known.map(|it| it["id"].as_str().unwrap().to_owned()).collect();
    known.sort();
    assert_eq!(stream.on_slots("fake"), known);
    let head = &stream.servers["fake"]["head"];
    assert_eq!(
        (&head["slots"], &head["taken"], &head["waiting"]),
        (&json!(4), &json!(3), &json!(3))
    );
    // Of two that are cancelled, one runs and one waits.
    let (running, waiting) = (known[0].clone(), stream.in_line("fake")[1].clone());
    for id in [&running, &waiting] {
        let request = admin.client.delete(admin.url(&format!("/admin/v1/calls/{id}")));
        assert_eq!(Answer::of(request).await.status, 200);
    }
    while stream.in_line("fake").contains(&waiting) {
        stream.next().await;
    }
    let recent = admin.get("/admin/v1/calls/recent?kind=failed").await.json();
    assert!(recent["calls"].as_array().unwrap().iter().any(|it| it["id"] == running), "{recent}");
    let recent = admin.get("/admin/v1/calls/recent?kind=refused").await.json();
    assert!(recent["calls"].as_array().unwrap().iter().any(|it| it["id"] == waiting), "{recent}");
    calls.iter().for_each(|call| call.abort());
    gateway.stop().await;
}

#[tokio::test]
async fn a_browser_is_led_to_the_page_and_others_are_told_in_three_lines() {
    let gateway = Setup::new().set("ops_listen = \"127.0.0.1:0\"").std().start().await;
    let operators = Api::new(gateway.ops_addr.unwrap(), None);
    let browser = reqwest::redirect::Policy::none();
    let browser = Client::builder().no_proxy().redirect(browser).build().unwrap();
    for (api, page) in [(&*gateway, "/me"), (&operators, "/dashboard")] {
        let request = browser.get(api.url("/")).header("accept", "text/html,*/*;q=0.8");
        let response = request.send().await.unwrap();
        assert_eq!(
            (response.status(), &response.headers()["location"]),
            (303u16.try_into().unwrap(), &page.parse::<reqwest::header::HeaderValue>().unwrap())
        );
        let text = api.get("/").await.text();
        assert_eq!(text.lines().count(), 3, "{text}");
        let asked = api.get(page).await;
        assert_eq!(asked.status, 200);
        assert!(
            asked.headers["content-security-policy"]
                .to_str()
                .unwrap()
                .contains("default-src 'self'")
        );
    }
    assert_eq!(gateway.get("/dashboard").await.status, 404);
    assert_eq!(operators.get("/me").await.status, 404);
    gateway.stop().await;
}
