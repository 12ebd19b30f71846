//! Lists of tools, prompts, resources and skills. One server's list is shown unchanged. In the list
//! of all servers, names tell the servers apart.
//!
//! The gateway keeps the tools of each server, and the lists of them as they were rendered. Prompts
//! and resources are requested each time, all pages of them, as calls. Clients get pages that the
//! gateway makes.
//!
//! The list of all servers starts no process of a tenant's or session's own. Such a server's tools
//! are known from an earlier process, or the list says that they are left out. The list of one
//! server, asked for by name, starts it as a call.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Response, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::pinned_skills;
use super::rpc::{self, RpcError};
use super::{JSON, McpRequest, Scope};
use crate::backend::instance::tools::Tool;
use crate::backend::{Backend, Ready};
use crate::common::offload::Offload;
use crate::gateway::{Call, CallError, Held, Reply, hold_response};
use crate::http::auth::credential;
use crate::http::available::{self, LeftOut, START_WAIT};
use crate::http::headers::{add_rate_status, asked_timeout, refuse_key};
use crate::http::list_cache::{ListForm, ListKey};
use crate::http::rendered_list::{RenderedList, body_of};
use crate::http::rest::servers::{granted, list_key};
use crate::http::toolset_list::{self, ToolsetForm};
use crate::http::unsent::hold;
use crate::protocol::jsonrpc::METHOD_NOT_FOUND;
use crate::protocol::jsonrpc::members::{MemberChange, Members};
use crate::protocol::mcp::apps::expose_page;
use crate::protocol::mcp::pages::Pages;
use crate::protocol::mcp::params::text_of;
use crate::protocol::mcp::results::Caching;
use crate::protocol::mcp::skills::expose_skill;
use crate::protocol::mcp::{Era, method, names};
use crate::registry::Server;
use crate::tenants::limits::{Admission, Cost};

/// The most items that one server may list.
const ITEMS_MAX: usize = 10_000;

/// A kind of list.
#[derive(Clone, Copy)]
pub(super) struct ListKind {
    method: &'static str,
    /// The member of the result that holds the items.
    member: &'static str,
    /// The member of an item that names it.
    key: &'static str,
}

const TOOLS: ListKind = ListKind { method: method::TOOLS_LIST, member: "tools", key: "name" };
const KINDS: [ListKind; 5] = [
    TOOLS,
    ListKind { method: method::PROMPTS_LIST, member: "prompts", key: "name" },
    ListKind { method: method::RESOURCES_LIST, member: "resources", key: "uri" },
    ListKind { method: method::TEMPLATES_LIST, member: "resourceTemplates", key: "uriTemplate" },
    ListKind { method: method::SKILLS_LIST, member: "skills", key: "uri" },
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
    /// The room of the server's pages, while the list is made of them.
    held: Vec<Held>,
}

/// A list for a caller, and the servers that it leaves out.
type Listed = (Arc<RenderedList>, LeftOut);

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
    refuse_key(&request.http.headers)?;
    let rate_status = admission.take_rate_status();
    let listed = match (&request.http.scope, kind.is_tools()) {
        (Scope::One(server), true) => tools_of_one(request, server).await,
        (Scope::All, true) => tools_of_all(request).await,
        (Scope::Toolset(_), true) => tools_of_toolset(request).await,
        (Scope::One(server), false) => list_of_one(request, server, kind).await,
        (Scope::All, false) => list_of_all(request, kind).await,
        (Scope::Toolset(_), false) => Err(RpcError::method_not_found(kind.method)),
    };
    match listed.and_then(|listed| page(request, listed)) {
        Ok(mut response) => {
            add_rate_status(response.headers_mut(), &rate_status);
            Ok(response)
        }
        Err(error) if error.has_rate_status() => Err(error),
        Err(error) => Err(error.with_rate_status(rate_status)),
    }
}

/// Responds with the page that the request asks for.
fn page(request: &McpRequest<'_>, (list, left_out): Listed) -> Result<Response<Body>, RpcError> {
    let cursor = request.params.get("cursor").map(|cursor| text_of(cursor).unwrap_or_default());
    let page = list.page(cursor.as_deref()).ok_or_else(|| {
        RpcError::invalid_params(
            "`params.cursor` is not, or no longer, a cursor of this list: start again without it",
        )
    })?;
    let mut end = String::new();
    if request.era == Era::Modern {
        let Caching { ttl_ms, is_public } = list.caching;
        // An authenticated caller's list depends on its rights, so caches must not share it.
        let is_anonymous =
            || credential(&request.http.headers).is_ok_and(|credential| credential.is_none());
        let scope = if is_public && is_anonymous() { "public" } else { "private" };
        end +=
            &format!(",\"resultType\":\"complete\",\"ttlMs\":{ttl_ms},\"cacheScope\":\"{scope}\"");
    }
    if let Some(session) = request.session
        && !(left_out.not_running.is_empty() && left_out.unavailable.is_empty())
    {
        session.note_missed_list(&request.http.app.stream_quota);
    }
    if let Some(meta) = left_out.meta(&request.http.app.gateway, request.caller) {
        end += &format!(",\"_meta\":{meta}");
    }
    end += "}}";
    let pieces = [rpc::result_start(request.id), page, end.into()];
    let held = hold_response(&request.caller.tenant, pieces.iter().map(Bytes::len).sum())?;
    let mut response = ([(header::CONTENT_TYPE, JSON)], body_of(pieces)).into_response();
    hold(&mut response, Some(held));
    Ok(response)
}

async fn tools_of_one(request: &McpRequest<'_>, server: &str) -> Result<Listed, RpcError> {
    let McpRequest { http, caller, .. } = request;
    let server = http.app.gateway.server(caller, server)?;
    let tools = match caller.known_tools(&server) {
        Some(known) => known,
        None => {
            let timeout = asked_timeout(&http.headers)?;
            let until = |backend: &Backend| http.arrived + list_timeout(backend, timeout);
            let ready = http.app.gateway.ready_or_start(caller, server.clone(), until).await;
            let (backend, ready) = ready?;
            if ready.about.capabilities.tools.is_none() {
                return Err(has_none("tools"));
            }
            backend.refresh_if_stale(&ready);
            ready.tools.clone()
        }
    };
    let key = list_key(&http.app, caller, ListForm::Own, &[(&server, &tools)]);
    let render = || {
        let tools_of_caller = granted(caller, server.id().as_str(), &tools);
        let items: Vec<_> = tools_of_caller.map(|tool| tool.definition().get()).collect();
        RenderedList::paged("tools", &items, tools.caching())
    };
    Ok((rendered(request, key, tools.bytes(), render).await, LeftOut::default()))
}

/// Lists the tools of all servers that are available. Starts no process of the caller's own.
async fn tools_of_all(request: &McpRequest<'_>) -> Result<Listed, RpcError> {
    let McpRequest { http, caller, .. } = request;
    asked_timeout(&http.headers)?;
    let (servers, left_out) =
        available::tools_of_all(&http.app.gateway, caller, http.arrived).await;
    let sets: Vec<_> = servers.iter().map(|(server, tools)| (server, tools)).collect();
    let key = list_key(&http.app, caller, ListForm::Exposed, &sets);
    let len = servers.iter().map(|(_, tools)| tools.bytes()).sum();
    let render = || {
        let all = servers.iter().flat_map(|(server, tools)| {
            let may_call = |tool: &Tool| caller.may_call(server.id().as_str(), tool.name());
            let granted = tools.exposed().filter(move |(_, tool)| may_call(tool));
            granted.filter_map(|(name, tool)| {
                let definition = expose_page(tool.definition().get(), server.id().as_str());
                renamed(&definition, TOOLS, name)
            })
        });
        let caching = servers.iter().map(|(_, tools)| tools.caching()).reduce(Caching::and);
        // A server may be added at any time, so the list must not be cached.
        let caching = Caching { ttl_ms: 0, ..caching.unwrap_or_default() };
        RenderedList::paged("tools", &all.collect::<Vec<_>>(), caching)
    };
    Ok((rendered(request, key, len, render).await, left_out))
}

async fn tools_of_toolset(request: &McpRequest<'_>) -> Result<Listed, RpcError> {
    let McpRequest { http, caller, .. } = request;
    asked_timeout(&http.headers)?;
    let toolset = request.toolset();
    Ok(toolset_list::list(&http.app, caller, toolset, ToolsetForm::Mcp, http.arrived).await)
}

/// Returns a list of tools, from the cache or rendered.
async fn rendered(
    request: &McpRequest<'_>,
    key: ListKey,
    len: usize,
    render: impl FnOnce() -> RenderedList,
) -> Arc<RenderedList> {
    let (app, tenant) = (&request.http.app, &*request.caller.tenant);
    app.lists.get_or_render(key, (tenant, app.gateway.offload()), len, render).await
}

async fn list_of_one(
    request: &McpRequest<'_>,
    server: &str,
    kind: ListKind,
) -> Result<Listed, RpcError> {
    let McpRequest { http, caller, .. } = request;
    let timeout = asked_timeout(&http.headers)?;
    let until = |backend: &Backend| http.arrived + list_timeout(backend, timeout);
    let server = http.app.gateway.server(caller, server)?;
    let ready = http.app.gateway.ready_or_start(caller, server.clone(), until).await;
    let (backend, ready) = ready?;
    let list = list_one(request, &server, &ready, kind, until(&backend)).await?;
    Ok((list.render(request, kind).await, LeftOut::default()))
}

/// Lists the items of all servers that are available, without those that are not. Starts no process
/// of the caller's own.
async fn list_of_all(request: &McpRequest<'_>, kind: ListKind) -> Result<Listed, RpcError> {
    let McpRequest { http, caller, .. } = request;
    let (gateway, arrived) = (&http.app.gateway, http.arrived);
    let timeout = asked_timeout(&http.headers)?;
    let (servers, mut left_out) = available::callable(gateway, caller);
    let is_held = |server: &Server| {
        let may_be = server.asks_callers() && caller.session.is_none();
        may_be && http.app.parked_calls.hold(&caller.tenant.id, server.id())
    };
    let (idle, running): (Vec<_>, Vec<_>) =
        servers.into_iter().partition(|server| caller.must_start(server) || is_held(server));
    let lists = running.into_iter().map(|server| async move {
        let until = |_: &Backend| arrived + START_WAIT;
        let Ok((backend, ready)) = gateway.ready(caller, server.clone(), until).await else {
            return Err(server);
        };
        let deadline = arrived + list_timeout(&backend, timeout);
        let list = list_one(request, &server, &ready, kind, deadline).await;
        Ok(list.map(|list| list.exposed(server.id().as_str(), kind)))
    });
    left_out.not_running = idle.iter().map(|server| server.id().clone()).collect();
    let mut found = vec![];
    for list in join_all(lists).await {
        match list {
            Ok(Ok(list)) => found.push(list),
            // Otherwise the tenant would take items for gone that a limit left out.
            Ok(Err(error)) if error.is_of_limit => return Err(error),
            Ok(Err(_)) => {}
            Err(server) => left_out.unavailable.push(server),
        }
    }
    let caching = found.iter().map(|list| list.caching).reduce(Caching::and).unwrap_or_default();
    let held: Vec<Held> = found.iter_mut().flat_map(|list| list.held.drain(..)).collect();
    let items = found.into_iter().flat_map(|list| list.items).collect();
    // A server may be added at any time, so the list must not be cached.
    let list = Listing { items, caching: Caching { ttl_ms: 0, ..caching }, held };
    Ok((list.render(request, kind).await, left_out))
}

fn has_none(member: &str) -> RpcError {
    RpcError::new(METHOD_NOT_FOUND, format!("this server has no {member}"))
}

/// Asks a server for all pages of a list of prompts or resources.
async fn list_one(
    request: &McpRequest<'_>,
    server: &Arc<Server>,
    ready: &Ready,
    kind: ListKind,
    deadline: Instant,
) -> Result<Listing, RpcError> {
    let caller = request.caller;
    let about = &ready.about;
    let has_list = match kind.method {
        method::PROMPTS_LIST => about.capabilities.prompts.is_some(),
        method::SKILLS_LIST => about.own_words.declared().has(kind.method),
        _ => about.capabilities.resources.is_some(),
    };
    if !has_list || !caller.may_use_all_of(server.id().as_str()) {
        return Err(has_none(kind.member));
    }
    let endless = |reason| CallError::protocol(&format!("its list has no end: {reason}"));
    let gateway = &request.http.app.gateway;
    let mut list = Listing { items: vec![], caching: Caching::ANY, held: vec![] };
    let mut pages = Pages::default();
    let mut params = String::new();
    loop {
        let call = Call::plain(server.clone(), kind.method, params, deadline);
        let admission = caller.tenant.admit(Cost::PaidCall).await.map_err(CallError::from)?;
        let Reply { result: page, held, .. } = gateway.call(caller, admission, &call).await?;
        pages.count(page.len()).map_err(endless)?;
        list.held.push(held);
        let cursor;
        (list, cursor) = list.with_page(gateway.offload(), page, kind).await?;
        if cursor.is_none() && kind.method == method::SKILLS_LIST {
            list.items = pinned_skills::approved(request, server, ready, list.items).await;
        }
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
    fn exposed(mut self, server: &str, kind: ListKind) -> Self {
        let exposed = |item: &String| {
            if kind.method == method::SKILLS_LIST {
                return expose_skill(item, server);
            }
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

    async fn render(self, request: &McpRequest<'_>, kind: ListKind) -> Arc<RenderedList> {
        let (offload, turn) =
            (request.http.app.gateway.offload(), &request.caller.tenant.long_work);
        let len = self.items.iter().map(String::len).sum();
        let render = || RenderedList::paged(kind.member, &self.items, self.caching);
        Arc::new(offload.in_place(turn, len, render).await)
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
#[path = "tests/lists.rs"]
mod tests;
