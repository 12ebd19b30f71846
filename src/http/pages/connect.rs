//! The page at which a tenant connects itself to a server that wants OAuth, and the one that the
//! authorization server sends the browser back to.
//!
//! Both are empty until their script has shown the tenant's session: the session's cookie is not
//! sent with a request that another site has caused. So whoever follows a link does nothing yet. A
//! cookie of its own binds the browser: the one that begins must be the one that comes back.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use serde_json::json;
use tokio::time::Instant;

use super::session::{self, Page, Proof};
use super::sign_in::is_secure;
use super::{assets, guard};
use crate::common::ids::ServerId;
use crate::common::seal::Purpose;
use crate::gateway::Caller;
use crate::http::admin::ok;
use crate::http::auth::origin::CallersPage;
use crate::http::auth::store_quota::StorePermit;
use crate::http::body;
use crate::http::error::{HttpError, HttpResult};
use crate::http::rest::connect::{Connection, end, of};
use crate::http::state::AppState;
use crate::oauth::authorization::unguessable;
use crate::tenants::connections::{CALLBACK_PAGE, CLIENT_DOCUMENT, Callback};

const COOKIE: &str = "trunkline-connect";
/// As long as a consent may take, and a little more.
const COOKIE_AGE: Duration = Duration::from_secs(15 * 60);
/// Longer than what a browser brings back.
const BODY_MAX: usize = 24 * 1024;

/// Returns the routes of both pages.
pub(super) fn routes() -> Router<Arc<AppState>> {
    let page = async |_: CallersPage| assets::page("connect.html");
    let callback = async |_: CallersPage| assets::page("callback.html");
    Router::new()
        .route("/me/connect/{server}", get(page).post(begin).delete(disconnect))
        .route("/me/callback", post(finish))
        .route(CALLBACK_PAGE, get(callback))
        .route(&format!("{CALLBACK_PAGE}/{{server}}"), get(callback))
        .route(&format!("{CLIENT_DOCUMENT}{{server}}"), get(client_document))
}

/// Begins, now that a person has agreed: returns the address to send the browser to.
async fn begin(
    State(app): State<Arc<AppState>>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> HttpResult {
    let (parts, _) = request.into_parts();
    let Path(server) = path?;
    let caller = signed_in(&app, &parts)?;
    let (connections, server) = of(&app, &caller, &server)?;
    let _permit = StorePermit::of(&app.connect_requests, &caller, server.id().as_str()).await?;
    let browser = browser(&app, &parts.headers).unwrap_or_else(unguessable);
    let tenant = &caller.tenant.id;
    let url = connections.begin(tenant, server.id(), &browser).await?;
    let mut response = ok(&json!({"redirect": url.as_str()}))?;
    let cookie = write_browser(&app, &browser, is_secure(&parts));
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}

/// Ends a connection.
async fn disconnect(
    State(app): State<Arc<AppState>>,
    path: Result<Path<String>, PathRejection>,
    parts: Parts,
) -> HttpResult {
    let Path(server) = path?;
    let caller = signed_in(&app, &parts)?;
    end(&app, &caller, &server).await
}

/// Ends: the browser is back from the authorization server.
async fn finish(State(app): State<Arc<AppState>>, request: Request) -> HttpResult {
    let (parts, body) = request.into_parts();
    let caller = signed_in(&app, &parts)?;
    let body = body::read(body, BODY_MAX, Instant::now() + body::TIMEOUT).await?;
    let callback: Callback = serde_json::from_slice(&body)
        .map_err(|_| HttpError::invalid("send the parameters that the browser has brought back"))?;
    let other_browser = "this consent was begun in another browser: begin again";
    let browser = browser(&app, &parts.headers);
    let browser = browser.ok_or_else(|| HttpError::invalid(other_browser))?;
    let Some(connections) = &app.connections else {
        return Err(HttpError::NotFound("server that takes consent of tenants".to_owned()));
    };
    let _permit = StorePermit::of(&app.connect_requests, &caller, "").await?;
    let tenant = &caller.tenant.id;
    let may_use = |server: &ServerId| of(&app, &caller, ServerId::as_str(server)).is_ok();
    let server = connections.finish(tenant, &browser, &callback, may_use).await?;
    let (connections, server) = of(&app, &caller, server.as_str())?;
    let view = connections.view(tenant, server.id()).await?;
    ok(&Connection::new(connections, &caller, &server, &view))
}

/// Serves the metadata of the gateway as a client of a server's authorization server.
async fn client_document(
    State(app): State<Arc<AppState>>,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(server) = path?;
    let document = app.connections.as_ref().and_then(|it| it.client_document(&server));
    let document = document.ok_or_else(|| HttpError::NotFound(format!("client `{server}`")))?;
    let headers =
        [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "max-age=300")];
    Ok::<Response<Body>, _>((headers, document.to_string()).into_response())
}

/// Returns the caller of the page's session. Everybody on a network may be the anonymous tenant:
/// nobody connects an account of theirs to what all of them use.
fn signed_in(app: &AppState, parts: &Parts) -> Result<Caller, HttpError> {
    guard::check_page_request(app, Page::Tenants, parts)?;
    let proof = session::read(app, Page::Tenants, &parts.headers);
    let proof = proof.ok_or_else(session::signed_out)?;
    if proof == Proof::Anonymous && !app.origins.is_local() {
        return Err(HttpError::Forbidden("sign in with a key of the tenant to connect it"));
    }
    Ok(proof.tenant(app)?.0)
}

/// Returns the text that the browser was bound by.
fn browser(app: &AppState, headers: &HeaderMap) -> Option<String> {
    let sealed = session::cookie_of(headers, COOKIE)?;
    let plain = app.sealer.open(Purpose::ConnectBrowser, COOKIE.as_bytes(), sealed)?;
    String::from_utf8(plain).ok()
}

fn write_browser(app: &AppState, browser: &str, is_secure: bool) -> HeaderValue {
    let sealed = app.sealer.seal(Purpose::ConnectBrowser, COOKIE.as_bytes(), browser.as_bytes());
    let (age, secure) = (COOKIE_AGE.as_secs(), if is_secure { "; Secure" } else { "" });
    let cookie =
        format!("{COOKIE}={sealed}; Path=/me; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
    cookie.try_into().expect("sealed texts are letters and digits")
}
