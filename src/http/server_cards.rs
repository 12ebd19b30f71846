//! Describes endpoints to clients that know nothing but the host: the catalog at
//! `/.well-known/ai-catalog.json`, and the card of each endpoint. Both are for everybody, so they
//! show what anonymous callers may see, and nothing at all where there are no such callers.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::auth::anonymous;
use super::auth::origin::CallersPage;
use super::error::{HttpError, no_such_path};
use super::state::AppState;
use crate::backend::RunState;
use crate::gateway::Caller;
use crate::protocol::mcp::{IMPLEMENTATION_NAME, IMPLEMENTATION_VERSION, ProtocolVersion};
use crate::tenants::Tenant;

const CARD: &str = "application/mcp-server-card+json";
const CATALOG: &str = "application/ai-catalog+json";
const SCHEMA: &str = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json";
/// The longest texts of a card.
const TITLE_CHARS_MAX: usize = 100;
const VERSION_CHARS_MAX: usize = 255;
/// The version of a server that does not run.
const UNKNOWN_VERSION: &str = "unknown";
/// How long a catalog is kept, and may be kept by others.
const MAX_AGE: Duration = Duration::from_secs(60);
const RENDERED_FOR: Duration = Duration::from_secs(5);

/// The last catalog that was rendered.
#[derive(Default)]
pub(super) struct CatalogCache(Mutex<Option<RenderedCatalog>>);

struct RenderedCatalog {
    base: String,
    /// The rights that it was rendered for.
    tenant: Arc<Tenant>,
    version: u64,
    at: Instant,
    body: String,
}

#[derive(Deserialize)]
pub(super) struct CardPath {
    server: Option<String>,
    toolset: Option<String>,
}

/// The address of the gateway, and its name in identifiers.
struct Site {
    /// Without a slash at the end.
    base: String,
    host: String,
    /// Whether the operator has set the address. Otherwise it is what the client called.
    is_configured: bool,
}

impl Site {
    fn of(app: &AppState, headers: &HeaderMap, uri: &Uri) -> Option<Self> {
        if let Some(url) = &app.public_url {
            let base = url.trim_end_matches('/').to_owned();
            let host = host_of(base.split_once("://")?.1);
            return Some(Self { host, base, is_configured: true });
        }
        let given = match uri.authority() {
            Some(authority) => authority.as_str(),
            None => headers.get(header::HOST)?.to_str().ok()?,
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
        if given.is_empty() || !given.bytes().all(is_plain) {
            return None;
        }
        let base = format!("http://{given}");
        Some(Self { host: host_of(given), base, is_configured: false })
    }

    /// Returns the namespace of names: the host in reverse.
    fn namespace(&self) -> String {
        let is_address = self.host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if is_address {
            return self.host.clone();
        }
        self.host.rsplit('.').collect::<Vec<_>>().join(".")
    }

    fn entry(&self, name: &str, path: &str) -> Value {
        json!({
            "identifier": format!("urn:air:{}:mcp:{name}", self.host),
            "type": CARD,
            "url": format!("{}{path}", self.base),
        })
    }

    fn card(&self, endpoint: &Endpoint) -> Value {
        let versions = ProtocolVersion::ALL.map(ProtocolVersion::as_str);
        let mut card = json!({
            "$schema": SCHEMA,
            "name": format!("{}/{}", self.namespace(), endpoint.name),
            "version": endpoint.version,
            "description": endpoint.description,
            "remotes": [{
                "type": "streamable-http",
                "url": format!("{}{}", self.base, endpoint.path),
                "supportedProtocolVersions": versions,
            }],
        });
        if let Some(title) = &endpoint.title {
            card["title"] = json!(title);
        }
        card
    }
}

/// Returns the host without its port and path, in the characters of names.
fn host_of(authority: &str) -> String {
    let authority = authority.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    host.chars().map(plain).collect::<String>().to_ascii_lowercase()
}

struct Endpoint {
    name: String,
    path: String,
    version: String,
    title: Option<String>,
    description: String,
}

impl Endpoint {
    fn of_all() -> Self {
        Self::of_gateway("mcp", "/mcp".to_owned(), "All servers of this gateway".to_owned())
    }

    fn of_toolset(toolset: &str) -> Self {
        let description = cut(&format!("The toolset {toolset} of this gateway"), TITLE_CHARS_MAX);
        Self::of_gateway(toolset, format!("/mcp/t/{toolset}"), description)
    }

    fn of_gateway(name: &str, path: String, description: String) -> Self {
        let version = IMPLEMENTATION_VERSION.to_owned();
        let title = (name == "mcp").then(|| IMPLEMENTATION_NAME.to_owned());
        Self { name: name.to_owned(), path, version, title, description }
    }

    /// Describes a server in its own words, as far as it runs.
    fn of_server(app: &AppState, caller: &Caller, server: &str) -> Result<Self, HttpError> {
        let found = app.gateway.server(caller, server)?;
        let state = found.running(&caller.tenant.id).map(|backend| backend.state());
        let about = match state {
            Some(RunState::Ready(ready)) => Some(ready.about.clone()),
            _ => None,
        };
        let info: Value = about
            .as_ref()
            .and_then(|about| serde_json::from_str(about.own_words.server_info()?).ok())
            .unwrap_or_default();
        let own = |name: &str, max| {
            let text = info[name].as_str().map(|text| cut(text, max));
            text.filter(|text| !text.is_empty())
        };
        let description = own("description", TITLE_CHARS_MAX);
        Ok(Self {
            name: server.to_owned(),
            path: format!("/mcp/{server}"),
            version: own("version", VERSION_CHARS_MAX).unwrap_or_else(|| UNKNOWN_VERSION.into()),
            title: own("title", TITLE_CHARS_MAX),
            description: description.unwrap_or_else(|| format!("The server {server}")),
        })
    }
}

/// Returns the beginning of a server's text, without characters that nobody sees.
fn cut(text: &str, chars: usize) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).take(chars).collect();
    text.trim().to_owned()
}

/// Answers `GET /.well-known/ai-catalog.json`.
pub(super) async fn catalog(
    _page: CallersPage,
    State(app): State<Arc<AppState>>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response<Body>, HttpError> {
    let Some((caller, site)) = visitor(&app, &headers, &uri)? else {
        return Ok(no_such_path(uri).await);
    };
    let version = *app.gateway.registry().changed().borrow();
    let body = {
        let mut cache = app.catalog.0.lock();
        let is_current = |it: &&RenderedCatalog| {
            let is_same = it.base == site.base && it.version == version;
            let has_rights = Arc::ptr_eq(&it.tenant, &caller.tenant);
            is_same && has_rights && it.at.elapsed() < RENDERED_FOR
        };
        match cache.as_ref().filter(is_current) {
            Some(rendered) => rendered.body.clone(),
            None => {
                let (base, tenant) = (site.base.clone(), caller.tenant.clone());
                let (body, at) = (render(&app, &caller, &site), Instant::now());
                *cache = Some(RenderedCatalog { base, tenant, version, at, body: body.clone() });
                body
            }
        }
    };
    Ok(respond(CATALOG, body, &site, &headers))
}

fn render(app: &AppState, caller: &Caller, site: &Site) -> String {
    let mut entries = vec![site.entry("mcp", "/server-card")];
    for server in app.gateway.servers(caller) {
        let id = server.id();
        entries.push(site.entry(id.as_str(), &format!("/mcp/{id}/server-card")));
    }
    for toolset in app.gateway.toolsets(caller) {
        let id = toolset.id();
        entries.push(site.entry(&format!("t:{id}"), &format!("/mcp/t/{id}/server-card")));
    }
    json!({"specVersion": "1.0", "entries": entries}).to_string()
}

/// Answers `GET` of the card of an endpoint.
pub(super) async fn card(
    _page: CallersPage,
    State(app): State<Arc<AppState>>,
    Path(path): Path<CardPath>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response<Body>, HttpError> {
    let Some((caller, site)) = visitor(&app, &headers, &uri)? else {
        return Ok(no_such_path(uri).await);
    };
    let endpoint = match path {
        CardPath { server: Some(server), .. } => Endpoint::of_server(&app, &caller, &server)?,
        CardPath { toolset: Some(toolset), .. } => {
            app.gateway.within(caller, &toolset)?;
            Endpoint::of_toolset(&toolset)
        }
        CardPath { .. } => Endpoint::of_all(),
    };
    Ok(respond(CARD, site.card(&endpoint).to_string(), &site, &headers))
}

/// Returns the anonymous caller; `None` if there is none, or the address of the gateway is unknown.
fn visitor(
    app: &AppState,
    headers: &HeaderMap,
    uri: &Uri,
) -> Result<Option<(Caller, Site)>, HttpError> {
    match anonymous(app) {
        Ok(caller) => Ok(Site::of(app, headers, uri).map(|site| (caller, site))),
        Err(HttpError::Unauthenticated { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn respond(kind: &'static str, body: String, site: &Site, asked: &HeaderMap) -> Response<Body> {
    let digest = Sha256::digest(&body);
    let etag: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let etag = format!("\"{etag}\"");
    let is_known = asked.get_all(header::IF_NONE_MATCH).iter().any(|known| {
        let mut known = known.to_str().unwrap_or_default().split(',').map(str::trim);
        known.any(|known| known == "*" || known.trim_start_matches("W/") == etag)
    });
    // An address that the client itself has given must not reach others.
    let caching = match site.is_configured {
        true => format!("public, max-age={}", MAX_AGE.as_secs()),
        false => "private, no-cache".to_owned(),
    };
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, kind)], body).into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in [(header::ETAG, etag), (header::CACHE_CONTROL, caching)] {
        headers.insert(name, HeaderValue::from_str(&value).expect("plain ASCII"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_become_names() {
        for (authority, host, namespace) in [
            ("gateway.example.com:8443/base", "gateway.example.com", "com.example.gateway"),
            ("localhost:8080", "localhost", "localhost"),
            ("127.0.0.1:80", "127.0.0.1", "127.0.0.1"),
            ("[::1]:80", "--1", "--1"),
            ("A_b.example", "a-b.example", "example.a-b"),
        ] {
            let (base, is_configured) = (String::new(), true);
            let site = Site { base, host: host_of(authority), is_configured };
            assert_eq!((&*site.host, &*site.namespace()), (host, namespace));
        }
    }

    #[test]
    fn texts_of_servers_are_bounded() {
        assert_eq!(cut(" a\u{1b}b\n ", 100), "ab");
        assert_eq!(cut(&"x".repeat(1000), TITLE_CHARS_MAX).len(), TITLE_CHARS_MAX);
    }
}
