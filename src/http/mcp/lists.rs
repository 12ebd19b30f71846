//! Lists of tools, prompts and resources: of one server as it writes them, or of all servers together under names
//! that tell them apart.
//!
//! Tools are kept here by the gateway; the others are asked for each time, all pages of them, on the same path as
//! any call. A client gets them in pages of our own making.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::Value;
use serde_json::value::RawValue;
use siphasher::sip::SipHasher;
use std::hash::Hasher;
use tokio::time::Instant;

use super::rpc::RpcError;
use super::{Asking, Scope};
use crate::backend::instance::tools::Tool;
use crate::backend::{Backend, Ready};
use crate::common::offload::offload_if_long;
use crate::gateway::{Call, CallError, Caller};
use crate::http::Front;
use crate::http::auth::credential;
use crate::http::rest::call::asked_timeout;
use crate::http::rest::servers::granted;
use crate::protocol::jsonrpc::METHOD_NOT_FOUND;
use crate::protocol::jsonrpc::members::Members;
use crate::protocol::jsonrpc::rewrite::MemberChange;
use crate::protocol::mcp::pages::Pages;
use crate::protocol::mcp::params::text_of;
use crate::protocol::mcp::results::Caching;
use crate::protocol::mcp::{Era, method, names};

/// How long a server that is still starting may hold up the list of all servers. Who listens is told when it is there.
const START_WAIT: Duration = Duration::from_secs(3);
/// One page of ours ends at either.
const PAGE_ITEMS: usize = 1000;
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Items that one server may list.
const ITEMS_MAX: usize = 10_000;

/// The code of the errors that say that the tenant has reached a limit of its own.
const TOO_MANY_REQUESTS: i64 = 429;

/// A kind of list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl Kind {
    /// The list that a method asks for.
    pub(super) fn of(method: &str) -> Option<Self> {
        Some(match method {
            method::TOOLS_LIST => Self::Tools,
            method::PROMPTS_LIST => Self::Prompts,
            method::RESOURCES_LIST => Self::Resources,
            method::TEMPLATES_LIST => Self::Templates,
            _ => return None,
        })
    }

    fn method(self) -> &'static str {
        match self {
            Self::Tools => method::TOOLS_LIST,
            Self::Prompts => method::PROMPTS_LIST,
            Self::Resources => method::RESOURCES_LIST,
            Self::Templates => method::TEMPLATES_LIST,
        }
    }

    /// The member that holds the items.
    fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// The member of an item that names it.
    fn key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }
}

/// A whole list.
struct List {
    items: Vec<String>,
    caching: Caching,
}

/// The answer to a list request: a JSON object.
pub(super) async fn list(
    asking: &Asking<'_>,
    caller: &Caller,
    kind: Kind,
) -> Result<String, RpcError> {
    let timeout = asked_timeout(asking.headers)?;
    let list = match asking.scope {
        Scope::One(server) => {
            let until = |it: &Backend| asking.arrived + timeout.unwrap_or(it.timeout());
            let (backend, ready) = asking.front.gateway.ready(caller, server, until).await?;
            list_one(asking.front, caller, &backend, &ready, kind, until(&backend)).await?
        }
        Scope::All => list_all(asking, caller, kind, timeout).await?,
    };
    // What a tenant sees is its own: nobody may show it to another.
    let is_public = list.caching.is_public && credential(asking.headers)?.is_none();
    let list = List { caching: Caching { is_public, ..list.caching }, ..list };
    let cursor = asking.params.get("cursor").map(|cursor| text_of(cursor).unwrap_or_default());
    list.page(kind, cursor.as_deref(), asking.era)
}

/// What the servers have that are there. One that is not does not keep the others from being seen.
async fn list_all(
    asking: &Asking<'_>,
    caller: &Caller,
    kind: Kind,
    timeout: Option<Duration>,
) -> Result<List, RpcError> {
    let gateway = &asking.front.gateway;
    let lists = gateway.servers(caller).map(|server| async move {
        // A process that belongs to a session or a tenant is started by listing what it has.
        let (server, until) = (server.id().as_str(), |_: &Backend| asking.arrived + START_WAIT);
        let (backend, ready) = gateway.ready(caller, server, until).await.ok()?;
        let deadline = asking.arrived + timeout.unwrap_or(backend.timeout());
        let list = list_one(asking.front, caller, &backend, &ready, kind, deadline).await;
        Some(list.map(|list| list.exposed(caller, server, &ready, kind)))
    });
    // Only the caller's own limit is told: what is left out because of it is not gone.
    let is_own_limit = |error: &RpcError| error.code() == TOO_MANY_REQUESTS;
    let mut found = vec![];
    for list in join_all(lists).await.into_iter().flatten() {
        match list {
            Ok(list) => found.push(list),
            Err(error) if is_own_limit(&error) => return Err(error),
            Err(_) => {}
        }
    }
    let caching = match found.iter().map(|list| list.caching).reduce(Caching::and) {
        // Another server may come at any time.
        Some(caching) => Caching { ttl_ms: 0, ..caching },
        None => Caching::default(),
    };
    let items = found.into_iter().flat_map(|list| list.items).collect();
    Ok(List { items, caching })
}

async fn list_one(
    front: &Front,
    caller: &Caller,
    backend: &Backend,
    ready: &Ready,
    kind: Kind,
    deadline: Instant,
) -> Result<List, RpcError> {
    let capabilities = &ready.about.capabilities;
    let capability = match kind {
        Kind::Tools => &capabilities.tools,
        Kind::Prompts => &capabilities.prompts,
        Kind::Resources | Kind::Templates => &capabilities.resources,
    };
    let is_granted = kind == Kind::Tools || caller.tenant.may_use_all_of(backend.id().as_str());
    if capability.is_none() || !is_granted {
        let message = format!("this server has no {}", kind.member());
        return Err(RpcError::new(METHOD_NOT_FOUND, message));
    }
    if kind == Kind::Tools {
        backend.refresh_if_stale(ready);
        let tools = granted(caller, backend.id().as_str(), ready);
        let items = tools.map(|tool| tool.definition().get().to_owned()).collect();
        return Ok(List { items, caching: ready.tools.caching() });
    }
    let endless = |reason| CallError::protocol(&format!("its list has no end: {reason}"));
    let mut list = List { items: vec![], caching: Caching::ANY };
    let mut pages = Pages::default();
    let mut cursor: Option<String> = None;
    loop {
        let others =
            cursor.as_ref().map(|cursor| format!(",\"cursor\":{}", Value::from(cursor.as_str())));
        let (server, others) = (backend.id().to_string(), others.unwrap_or_default());
        let call = Call::plain(server, kind.method(), others, deadline);
        let page = front.gateway.call(caller, call).await?.result;
        pages.count(page.len()).map_err(endless)?;
        (list, cursor) = list.with_page(page, kind).await?;
        let Some(next) = &cursor else { return Ok(list) };
        pages.follow(next).map_err(endless)?;
    }
}

impl List {
    /// With what is on a page of the server's, a long one read aside; and the cursor of the next.
    async fn with_page(
        mut self,
        page: Bytes,
        kind: Kind,
    ) -> Result<(Self, Option<String>), RpcError> {
        offload_if_long(page.len(), move || {
            let page = std::str::from_utf8(&page).expect("looked at by the gateway");
            let cursor = self.add_page(page, kind)?;
            Ok((self, cursor))
        })
        .await
    }

    /// Adds what is on a page of the server's; gives the cursor of the next.
    fn add_page(&mut self, page: &str, kind: Kind) -> Result<Option<String>, RpcError> {
        let broken =
            || RpcError::from(CallError::protocol("its list does not follow the protocol"));
        self.caching = self.caching.and(Caching::of(page));
        let members = Members::parse(page).map_err(|_| broken())?;
        let items = members.get(kind.member()).ok_or_else(broken)?;
        let items: Vec<&RawValue> = serde_json::from_str(items.get()).map_err(|_| broken())?;
        if self.items.len() + items.len() > ITEMS_MAX {
            return Err(CallError::protocol("its list is too long").into());
        }
        self.items.extend(items.into_iter().map(|item| item.get().to_owned()));
        Ok(members.get("nextCursor").and_then(text_of).map(Cow::into_owned))
    }

    /// The same under names that tell servers apart. What has no name is left out.
    fn exposed(mut self, caller: &Caller, server: &str, ready: &Ready, kind: Kind) -> Self {
        if kind == Kind::Tools {
            let tools = ready.tools.exposed();
            let granted = tools.filter(|(_, tool)| caller.tenant.may_call(server, tool.name()));
            let named = |(name, tool): (&str, &Tool)| renamed(tool.definition().get(), kind, name);
            self.items = granted.filter_map(named).collect();
            return self;
        }
        let exposed = |item: &String| {
            let members = Members::parse(item).ok()?;
            let name = text_of(members.get(kind.key())?)?;
            let name = match kind {
                Kind::Tools | Kind::Prompts => names::join(server, &name),
                Kind::Resources | Kind::Templates => names::resource_uri(server, &name),
            };
            renamed(item, kind, &name)
        };
        self.items = self.items.iter().filter_map(exposed).collect();
        self
    }

    /// One page, and the cursor of the next. A cursor is good only for the list it was made for.
    fn page(&self, kind: Kind, cursor: Option<&str>, era: Era) -> Result<String, RpcError> {
        let invalid = || {
            RpcError::invalid_params(
                "`params.cursor` is not, or no longer, a cursor of this list: start again without it",
            )
        };
        let start = match cursor {
            None => 0,
            Some(cursor) => {
                let (start, fingerprint) = cursor.split_once('-').ok_or_else(invalid)?;
                let start: usize = start.parse().map_err(|_| invalid())?;
                if start >= self.items.len() || fingerprint != self.fingerprint() {
                    return Err(invalid());
                }
                start
            }
        };
        let mut page = format!("{{\"{}\":[", kind.member());
        let mut end = start;
        for item in &self.items[start..] {
            if end > start && (end - start == PAGE_ITEMS || page.len() + item.len() > PAGE_BYTES) {
                break;
            }
            if end > start {
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

    fn fingerprint(&self) -> String {
        format!("{:x}", hash(&self.items))
    }
}

fn hash<T: AsRef<str>>(texts: &[T]) -> u64 {
    let mut hash = SipHasher::new();
    for text in texts {
        hash.write(text.as_ref().as_bytes());
        hash.write_u8(0);
    }
    hash.finish()
}

fn renamed(item: &str, kind: Kind, name: &str) -> Option<String> {
    let name = Value::from(name).to_string();
    let members = Members::parse(item).ok()?;
    Some(members.rewrite(
        |member, _| {
            if member == kind.key() {
                MemberChange::Replace(Cow::Owned(name.clone()))
            } else {
                MemberChange::Keep
            }
        },
        &[],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::offload::LONG;
    use crate::common::offload::testing::is_offloaded;

    #[test]
    fn only_a_long_page_is_read_aside() {
        let read = |len: usize| async move {
            let around = "{\"prompts\":[\"\"]}".len();
            let page = format!("{{\"prompts\":[\"{}\"]}}", "x".repeat(len - around));
            let list = List { items: vec![], caching: Caching::ANY };
            let Ok((list, None)) = list.with_page(page.into(), Kind::Prompts).await else {
                panic!("it is a page")
            };
            assert_eq!(list.items.len(), 1);
        };
        assert!(!is_offloaded(read(LONG)));
        assert!(is_offloaded(read(LONG + 1)));
    }
}
