//! A NUL in a request: PostgreSQL has no such texts, so nothing can be called that.

use reqwest::Method;
use trunkline::store::{Actor, KeyOwner};

use crate::secrets;
use crate::support::{Answer, Database, Serving, on_both};

#[tokio::test]
async fn nothing_is_called_by_a_name_with_a_nul() {
    on_both(async |database: &Database| {
        let setup = secrets::setup("").with_store(&database.url);
        let store = setup.store().await;
        let admin = store.create_key(&Actor::cli("test"), &KeyOwner::Admin, None, None).await;
        let admin = admin.unwrap().key;
        let acme = setup.new_key("acme").await;
        let gateway: Serving = setup.serve().await;
        let (missing, malformed) = (404, 400);
        for (method, path, key, expected) in [
            (Method::DELETE, "/v1/servers/own/secrets/%00", &*acme, missing),
            (Method::DELETE, "/v1/servers/own/secrets/TOKEN%00", &*acme, missing),
            (Method::GET, "/v1/servers/own%00/secrets", &*acme, missing),
            (Method::GET, "/v1/servers/%00", &*acme, missing),
            (Method::POST, "/mcp/%00", &*acme, missing),
            (Method::DELETE, "/admin/v1/servers/own/pins/%00", admin.expose(), missing),
            (Method::DELETE, "/admin/v1/keys/%00", admin.expose(), missing),
            (
                Method::DELETE,
                "/admin/v1/tenants/acme/servers/own/secrets/%00",
                admin.expose(),
                missing,
            ),
            (Method::GET, "/admin/v1/servers/%00/pins", admin.expose(), malformed),
            (Method::GET, "/admin/v1/tenants/%00", admin.expose(), malformed),
            (Method::GET, "/admin/v1/tenants/acme%00/keys", admin.expose(), malformed),
            (Method::GET, "/admin/v1/usage?tenant=%00", admin.expose(), malformed),
            (Method::GET, "/v1/usage?by=%00", &*acme, malformed),
            (Method::GET, "/admin/v1/audit?before=%00", admin.expose(), malformed),
        ] {
            let url = format!("http://{}{path}", gateway.addr);
            let request = gateway.client.request(method.clone(), url).bearer_auth(key);
            let answer = Answer::of(request).await;
            assert_eq!(answer.status, expected, "{method} {path}: {answer:?}");
        }
        let errors: Vec<_> =
            gateway.log().into_iter().filter(|line| line.contains("\"ERROR\"")).collect();
        assert!(errors.is_empty(), "{errors:?}");
    })
    .await;
}
