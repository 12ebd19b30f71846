//! Lists of tools, prompts and resources. One server's list is shown unchanged. In the list of all
//! servers, names tell the servers apart.
//!
//! The gateway keeps the tools of each server. Prompts and resources are requested each time, all
//! pages of them, as calls. Clients get pages that the gateway makes.

use std::borrow::Cow;
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::Value;
use serde_json::value::RawValue;
use siphasher::sip::SipHasher;
use tokio::time::Instant;

use super::rpc::{self, RpcError};
use super::{McpRequest, Scope};
use crate::backend::instance::tools::Tool;
use crate::backend::{Backend, Ready};
use crate::common::offload::Offload;
use crate::gateway::{Call, CallError, Caller};
use crate::http::auth::credential;
use crate::http::headers::{add_rate_status, asked_timeout};
use crate::http::rest::servers::granted;
use crate::protocol::jsonrpc::METHOD_NOT_FOUND;
use crate::protocol::jsonrpc::members::{MemberChange, Members};
use crate::protocol::mcp::pages::Pages;
use crate::protocol::mcp::params::text_of;
use crate::protocol::mcp::results::Caching;
use crate::protocol::mcp::{Era, method, names};
use crate::registry::Server;
use crate::tenants::limits::{Admission, Cost};

/// How long a server that is starting may delay the list of all servers. Clients that listen for
/// changes are notified when it is ready.
const START_WAIT: Duration = Duration::from_secs(3);
/// A page that the gateway makes ends at either.
const PAGE_ITEMS: usize = 1000;
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// The most items that one server may list.
const ITEMS_MAX: usize = 10_000;
/// The code of an error that says that the tenant has reached a limit of its own.
const TOO_MANY_REQUESTS: i64 = 429;

/// A kind of list.
#[derive(Clone, Copy)]
pub(super) struct ListKind {
    method: &'static str,
    /// The member of the result that holds the items.
    member: &'static str,
    /// The member of an item that names it.
    key: &'static str,
}

const KINDS: [ListKind; 4] = [
    ListKind { method: method::TOOLS_LIST, member: "tools", key: "name" },
    ListKind { method: method::PROMPTS_LIST, member: "prompts", key: "name" },
    ListKind { method: method::RESOURCES_LIST, member: "resources", key: "uri" },
    ListKind { method: method::TEMPLATES_LIST, member: "resourceTemplates", key: "uriTemplate" },
];

impl ListKind {
    pub(super) fn of(method: &str) -> Option<Self> {
        KINDS.into_iter().find(|kind| kind.method == method)
    }

    fn is_tools(self) -> bool {
        self.method == method::TOOLS_LIST
    }
}

/// A complete list: items are JSON objects.
struct Listing {
    items: Vec<String>,
    caching: Caching,
}

/// Returns the time for a list of this server. A list of several servers goes on without those that
/// may not take as long as the caller asked.
fn list_timeout(backend: &Backend, asked: Option<Duration>) -> Duration {
    asked.unwrap_or(backend.timeout()).min(backend.config().max_deadline())
}

/// Responds to an admitted list request.
pub(super) async fn respond(
    request: &McpRequest<'_>,
    kind: ListKind,
    mut admission: Admission,
) -> Result<Response<Body>, RpcError> {
    let rate_status = admission.take_rate_status();
    match list(request, kind).await {
        Ok(list) => {
            let mut response = rpc::respond_result(request.id, &list);
            add_rate_status(response.headers_mut(), &rate_status);
            Ok(response)
        }
        Err(error) if error.code == TOO_MANY_REQUESTS => Err(error),
        Err(error) => Err(error.with_rate_status(rate_status)),
    }
}

/// Answers a list request with a JSON object.
async fn list(request: &McpRequest<'_>, kind: ListKind) -> Result<String, RpcError> {
    let http = request.http;
    let timeout = asked_timeout(&http.headers)?;
    let mut list = match &http.scope {
        Scope::One(server) => {
            let until = |backend: &Backend| http.arrived + list_timeout(backend, timeout);
            let server = http.app.gateway.server(request.caller, server)?;
            let ready = http.app.gateway.ready(request.caller, server.clone(), until).await;
            let (backend, ready) = ready?;
            list_one(request, &server, &backend, &ready, kind, until(&backend)).await?
        }
        Scope::All => list_all(request, kind, timeout).await?,
    };
    // An authenticated caller's list depends on its rights, so caches must not share it.
    list.caching.is_public &=
        credential(&http.headers).is_ok_and(|credential| credential.is_none());
    let cursor = request.params.get("cursor").map(|cursor| text_of(cursor).unwrap_or_default());
    list.page(kind, cursor.as_deref(), request.era)
}

/// Lists the items of all servers that are available, without those that are not.
async fn list_all(
    request: &McpRequest<'_>,
    kind: ListKind,
    timeout: Option<Duration>,
) -> Result<Listing, RpcError> {
    let (caller, arrived) = (request.caller, request.http.arrived);
    let gateway = &request.http.app.gateway;
    let lists = gateway.servers(caller).map(|server| async move {
        // Listing starts the process that a tenant or a session has of its own.
        let until = |_: &Backend| arrived + START_WAIT;
        let (backend, ready) = gateway.ready(caller, server.clone(), until).await.ok()?;
        let deadline = arrived + list_timeout(&backend, timeout);
        let list = list_one(request, &server, &backend, &ready, kind, deadline).await;
        Some(list.map(|list| list.exposed(caller, server.id().as_str(), &ready, kind)))
    });
    let mut found = vec![];
    for list in join_all(lists).await.into_iter().flatten() {
        match list {
            Ok(list) => found.push(list),
            // Otherwise the tenant would take items for gone that its limit left out.
            Err(error) if error.code == TOO_MANY_REQUESTS => return Err(error),
            Err(_) => {}
        }
    }
    let caching = found.iter().map(|list| list.caching).reduce(Caching::and).unwrap_or_default();
    let items = found.into_iter().flat_map(|list| list.items).collect();
    // A server may be added at any time, so the list must not be cached.
    Ok(Listing { items, caching: Caching { ttl_ms: 0, ..caching } })
}

async fn list_one(
    request: &McpRequest<'_>,
    server: &Arc<Server>,
    backend: &Backend,
    ready: &Ready,
    kind: ListKind,
    deadline: Instant,
) -> Result<Listing, RpcError> {
    let (caller, id) = (request.caller, server.id().as_str());
    let capabilities = &ready.about.capabilities;
    let capability = match kind.method {
        method::TOOLS_LIST => &capabilities.tools,
        method::PROMPTS_LIST => &capabilities.prompts,
        _ => &capabilities.resources,
    };
    let is_granted = kind.is_tools() || caller.tenant.may_use_all_of(id);
    if capability.is_none() || !is_granted {
        let message = format!("this server has no {}", kind.member);
        return Err(RpcError::new(METHOD_NOT_FOUND, message));
    }
    if kind.is_tools() {
        backend.refresh_if_stale(ready);
        let tools = granted(caller, id, ready);
        let items = tools.map(|tool| tool.definition().get().to_owned()).collect();
        return Ok(Listing { items, caching: ready.tools.caching() });
    }
    let endless = |reason| CallError::protocol(&format!("its list has no end: {reason}"));
    let gateway = &request.http.app.gateway;
    let mut list = Listing { items: vec![], caching: Caching::ANY };
    let mut pages = Pages::default();
    let mut params = String::new();
    loop {
        let call = Call::plain(server.clone(), kind.method, params, deadline);
        let admission = caller.tenant.admit(Cost::PaidCall).await.map_err(CallError::from)?;
        let page = gateway.call(caller, admission, call).await?.result;
        pages.count(page.len()).map_err(endless)?;
        let cursor;
        (list, cursor) = list.with_page(gateway.offload(), page, kind).await?;
        let Some(cursor) = cursor else { return Ok(list) };
        pages.follow(&cursor).map_err(endless)?;
        // The list itself has paid for the first page of each server.
        caller.tenant.admit(Cost::List).await.map_err(CallError::from)?;
        params = format!(",\"cursor\":{}", Value::from(cursor));
    }
}

impl Listing {
    /// Adds a page of the server's, and returns the cursor of the next. A long page is offloaded.
    async fn with_page(
        mut self,
        offload: &Offload,
        page: Bytes,
        kind: ListKind,
    ) -> Result<(Self, Option<String>), CallError> {
        let len = page.len();
        let add_page = move || {
            let broken = || CallError::protocol("its list does not follow the protocol");
            let page = std::str::from_utf8(&page).expect("checked by the gateway");
            self.caching = self.caching.and(Caching::of(page));
            let members = Members::parse(page).map_err(|_| broken())?;
            let items = members.get(kind.member).ok_or_else(broken)?;
            let items: Vec<&RawValue> = serde_json::from_str(items.get()).map_err(|_| broken())?;
            if self.items.len() + items.len() > ITEMS_MAX {
                return Err(CallError::protocol("its list is too long"));
            }
            self.items.extend(items.into_iter().map(|item| item.get().to_owned()));
            Ok((self, members.get("nextCursor").and_then(text_of).map(Cow::into_owned)))
        };
        offload.run_if_long(len, add_page).await
    }

    /// Renames the items so that names tell servers apart. Items without a name are left out.
    fn exposed(mut self, caller: &Caller, server: &str, ready: &Ready, kind: ListKind) -> Self {
        if kind.is_tools() {
            let tools = ready.tools.exposed();
            let granted = tools.filter(|(_, tool)| caller.tenant.may_call(server, tool.name()));
            let named = |(name, tool): (&str, &Tool)| renamed(tool.definition().get(), kind, name);
            self.items = granted.filter_map(named).collect();
            return self;
        }
        let exposed = |item: &String| {
            let members = Members::parse(item).ok()?;
            let name = text_of(members.get(kind.key)?)?;
            let name = match kind.key {
                "name" => names::join(server, &name),
                _ => names::resource_uri(server, &name),
            };
            renamed(item, kind, &name)
        };
        self.items = self.items.iter().filter_map(exposed).collect();
        self
    }

    /// Returns one page, with the cursor of the next.
    fn page(&self, kind: ListKind, cursor: Option<&str>, era: Era) -> Result<String, RpcError> {
        let start = match cursor {
            None => 0,
            Some(cursor) => self.start_of(cursor).ok_or_else(|| {
                RpcError::invalid_params(
                    "`params.cursor` is not, or no longer, a cursor of this list: start again \
                     without it",
                )
            })?,
        };
        let mut page = format!("{{\"{}\":[", kind.member);
        let mut end = start;
        for item in &self.items[start..] {
            if end > start {
                if end - start == PAGE_ITEMS || page.len() + item.len() > PAGE_BYTES {
                    break;
                }
                page.push(',');
            }
            page.push_str(item);
            end += 1;
        }
        page.push(']');
        if end < self.items.len() {
            page += &format!(",\"nextCursor\":\"{end}-{}\"", self.fingerprint());
        }
        if era == Era::Modern {
            let Caching { ttl_ms, is_public } = self.caching;
            let scope = if is_public { "public" } else { "private" };
            page += &format!(
                ",\"resultType\":\"complete\",\"ttlMs\":{ttl_ms},\"cacheScope\":\"{scope}\""
            );
        }
        page.push('}');
        Ok(page)
    }

    /// Returns the first item after a cursor. A cursor is valid only for the list it was made for.
    fn start_of(&self, cursor: &str) -> Option<usize> {
        let (start, fingerprint) = cursor.split_once('-')?;
        let start = start.parse().ok().filter(|start| *start < self.items.len())?;
        (fingerprint == self.fingerprint()).then_some(start)
    }

    fn fingerprint(&self) -> String {
        let mut hash = SipHasher::new();
        for item in &self.items {
            hash.write(item.as_bytes());
            hash.write_u8(0);
        }
        format!("{:x}", hash.finish())
    }
}

fn renamed(item: &str, kind: ListKind, name: &str) -> Option<String> {
    let name = Value::from(name).to_string();
    let change = |member: &str, _: &RawValue| match member == kind.key {
        true => MemberChange::Replace(Cow::Owned(name.clone())),
        false => MemberChange::Keep,
    };
    Some(Members::parse(item).ok()?.rewrite(change, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::offload::testing::is_offloaded;
    use crate::common::offload::{LONG, Offload};

    #[test]
    fn only_a_long_page_is_offloaded() {
        let read = |len: usize| async move {
            let around = "{\"prompts\":[\"\"]}".len();
            let page = format!("{{\"prompts\":[\"{}\"]}}", "x".repeat(len - around));
            let list = Listing { items: vec![], caching: Caching::ANY };
            let Ok((list, None)) = list.with_page(&Offload::new(), page.into(), KINDS[1]).await
            else {
                panic!("it is a page")
            };
            assert_eq!(list.items.len(), 1);
        };
        assert!(!is_offloaded(read(LONG)));
        assert!(is_offloaded(read(LONG + 1)));
    }
}
