//! Keys admit their callers, and nobody else.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::HeaderMap;
use trunkline::common::ids::TenantName;
use trunkline::common::keys::ApiKey;
use trunkline::store::{Actor, KeyOwner, NewKey};
use trunkline::tenants::{Directory, KeyError};

use crate::support::{Answer, Api, Gateway, Setup, refused, within};

/// The longest time for a change of one replica to reach another, with time for a busy machine.
const SOON: Duration = Duration::from_secs(10);

fn setup() -> Setup {
    Setup::new().without_anonymous().std().with_tenant("acme", "servers = [\"std\"]")
}

async fn new_key(setup: &Setup, owner: &KeyOwner, expires: Option<i64>) -> NewKey {
    let actor = Actor::cli("test");
    setup.store().await.create_key(&actor, owner, None, expires).await.unwrap()
}

fn acme() -> KeyOwner {
    KeyOwner::Tenant(TenantName::parse("acme").unwrap())
}

async fn echo(api: &Api) -> Answer {
    api.call("std", "echo", r#"{"text":"x"}"#).await
}

/// Returns the answer without the parts that differ from call to call.
fn said(answer: &Answer) -> (u16, HeaderMap, String) {
    let mut headers = answer.headers.clone();
    headers.remove("trunkline-call-id");
    headers.remove("date");
    (answer.status, headers, answer.text())
}

async fn with_headers(gateway: &Gateway, headers: &[(&str, &str)]) -> Answer {
    let request = gateway.post("std", "echo", r#"{"text":"x"}"#);
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    Answer::of(request).await
}

#[tokio::test]
async fn a_key_is_shown_in_either_header_and_only_in_one() {
    let gateway = setup().start().await;
    let key = gateway.new_key("acme").await;
    let bearer = format!("Bearer {key}");
    for headers in [
        &[("authorization", &*bearer)][..],
        &[("authorization", &format!("bearer  {key} "))],
        &[("x-api-key", &key)],
    ] {
        assert_eq!(with_headers(&gateway, headers).await.status, 200, "{headers:?}");
    }
    let two = with_headers(&gateway, &[("authorization", &bearer), ("x-api-key", &key)]).await;
    assert_eq!(two.problem(), refused(400, "invalid_request"));
    for headers in [("authorization", &*key), ("authorization", "Basic eDp5"), ("x-api-key", "")] {
        let answer = with_headers(&gateway, &[headers]).await;
        assert_eq!(answer.problem(), refused(401, "unauthenticated"), "{headers:?}");
    }
    let nobody = with_headers(&gateway, &[]).await;
    assert_eq!(nobody.problem(), refused(401, "unauthenticated"));
    assert_eq!(nobody.header("www-authenticate"), "Bearer");
    gateway.stop().await;
}

#[tokio::test]
async fn unknown_wrong_revoked_and_expired_keys_get_the_same_answer() {
    let gateway = setup().start().await;
    let [revoked, expired] = [gateway.new_key("acme").await, {
        let soon = Timestamp::now().as_millisecond() + 1;
        new_key(gateway.setup(), &acme(), Some(soon)).await.key.expose().to_owned()
    }];
    let api = gateway.with_key(&revoked);
    assert_eq!(echo(&api).await.status, 200);
    let id = ApiKey::parse(&revoked).unwrap().id();
    gateway.setup().store().await.revoke_key(&Actor::cli("test"), &id).await.unwrap();
    within(SOON, "revoked", async || (echo(&api).await.status == 401).then_some(())).await;

    let revoked = said(&echo(&api).await);
    assert_eq!(revoked.0, 401);
    let unknown = ApiKey::generate();
    // The id of a key that there is, with another secret.
    let wrong =
        with_checksum(&format!("{}{}", &api_text(&gateway).await[..16], &unknown.expose()[16..59]));
    for other in [unknown.expose(), &wrong, &expired, "tl_nonsense", "x"] {
        assert_eq!(said(&echo(&gateway.with_key(other)).await), revoked, "{other}");
    }
    gateway.stop().await;
}

/// The text of a new key that is valid.
async fn api_text(gateway: &Gateway) -> String {
    let key = gateway.new_key("acme").await;
    assert_eq!(echo(&gateway.with_key(&key)).await.status, 200);
    key
}

/// A key that looks right: `body` is all but its checksum.
fn with_checksum(body: &str) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut rest = crc32fast::hash(body.as_bytes());
    let mut digits = [0_u8; 6];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(rest % 62) as usize];
        rest /= 62;
    }
    let key = format!("{body}{}", std::str::from_utf8(&digits).unwrap());
    assert!(ApiKey::parse(&key).is_some(), "{key}");
    key
}

#[tokio::test]
async fn a_key_works_as_soon_as_it_is_made() {
    let gateway = setup().start().await;
    for _ in 0..2 {
        let key = gateway.new_key("acme").await;
        assert_eq!(echo(&gateway.with_key(&key)).await.status, 200);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn administrators_call_no_tools_and_tenants_administer_nothing() {
    let gateway = setup().start().await;
    let admin = new_key(gateway.setup(), &KeyOwner::Admin, None).await;
    let admin = gateway.with_key(admin.key.expose());
    assert_eq!(echo(&admin).await.problem(), refused(403, "forbidden"));
    assert_eq!(admin.get("/admin/v1/tenants").await.status, 200);
    let tenant = gateway.as_tenant("acme").await;
    assert_eq!(tenant.get("/admin/v1/tenants").await.problem(), refused(403, "forbidden"));
    let nobody = gateway.get("/admin/v1/tenants").await;
    assert_eq!(nobody.problem(), refused(401, "unauthenticated"));
    gateway.stop().await;
}

/// Every kind of slip in a valid key, most of which its checksum tells; and as many again as a
/// patient attacker would make, with checksums that are right.
#[tokio::test]
async fn of_a_million_changed_keys_none_is_accepted() {
    let setup = setup();
    let key = new_key(&setup, &acme(), None).await.key;
    let directory = Directory::open(setup.store().await, &setup.config(), None).await.unwrap();
    assert!(directory.authenticate(&key).await.is_ok());
    let text = key.expose().as_bytes();
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let digit = |n: usize| b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"[n];
    let mut parsed = 0;
    for n in 0..1_000_000 {
        let mut changed = text.to_vec();
        for _ in 0..=random(3) {
            let at = 3 + random(changed.len() - 3);
            match random(4) {
                0 => changed.swap(at, 3 + random(text.len() - 10)),
                1 => drop(changed.remove(at)),
                2 => changed.insert(at, digit(random(62))),
                _ => changed[at] = digit(random(62)),
            }
        }
        let mut changed = String::from_utf8(changed).unwrap();
        if n % 500 == 0 {
            let at = 16 + random(43);
            changed = key.expose()[..59].to_owned();
            changed.replace_range(at..=at, if &changed[at..=at] == "a" { "b" } else { "a" });
            changed = with_checksum(&changed);
        }
        if changed.as_bytes() == text {
            continue;
        }
        if let Some(changed) = ApiKey::parse(&changed) {
            parsed += 1;
            assert_eq!(directory.authenticate(&changed).await.err(), Some(KeyError::Invalid));
        }
    }
    assert!(parsed >= 2_000, "only {parsed} had the right form");
    assert!(directory.authenticate(&key).await.is_ok());
}
