//! `subscriptions/listen` of the modern era: a stream of changes at servers. Legacy sessions have
//! [`crate::http::mcp::legacy::session_stream`] instead.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::backend::RunState;
use crate::backend::changes::WATCHED_BY_TENANT_MAX;
use crate::backend::changes::mailbox::{Lists, Mailbox};
use crate::backend::changes::{Subscription, WatchError};
use crate::common::ids::ServerId;
use crate::common::limit_use::LimitUse;
use crate::gateway::{CallError, Executed};
use crate::http::mcp::rpc::{self, RpcError};
use crate::http::mcp::stream::changes::{
    ChangeMessages, VisibleServers, is_ready, subscription_meta,
};
use crate::http::mcp::stream::stream_quota::StreamPermit;
use crate::http::mcp::{McpRequest, Scope};
use crate::http::sse;
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::mcp::params::ParamsError;
use crate::protocol::mcp::results::ServerCapabilities;
use crate::protocol::mcp::{Era, extensions, meta, method};
use crate::registry::ChangeSource;
use crate::tenants::limits::Admission;

/// How long servers may take to accept subscriptions before the client is told that it listens.
const ACCEPT_WAIT: Duration = Duration::from_secs(3);
/// The watched resources that count as one call.
const RESOURCES_PER_CALL: usize = 10;

/// The changes that a client wants to be told of.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Filter {
    tools_list_changed: bool,
    prompts_list_changed: bool,
    resources_list_changed: bool,
    resource_subscriptions: Vec<String>,
}

/// URIs of the resources to watch, as their servers name them, by server.
type Resources = HashMap<String, Vec<String>>;

pub(crate) async fn listen(
    request: &McpRequest<'_>,
    mut admission: Admission,
) -> Result<Response<Body>, RpcError> {
    let filter = request.params.get("notifications");
    let filter = filter.ok_or(ParamsError::Missing("notifications"))?;
    // serde would also take an array as the members in order.
    let filter = Some(filter.get()).filter(|filter| filter.starts_with('{'));
    let filter = filter.and_then(|filter| serde_json::from_str(filter).ok());
    let filter: Filter = filter.ok_or_else(|| {
        let expected = "an object such as {\"toolsListChanged\": true}";
        ParamsError::WrongType { at: "params.notifications".into(), expected }
    })?;
    if filter.resource_subscriptions.len() > WATCHED_BY_TENANT_MAX {
        return Err(RpcError::invalid_params(format!(
            "at most {WATCHED_BY_TENANT_MAX} resources can be watched at once"
        )));
    }
    let wanted = Lists {
        tools: filter.tools_list_changed,
        prompts: filter.prompts_list_changed,
        resources: filter.resources_list_changed,
        extensions: !declared(request).is_empty(),
    };
    let resources = by_server(request, &filter.resource_subscriptions);
    charge(request, &mut admission, &resources).await?;
    let opened = open_stream(request, wanted, resources).await;
    opened.map_err(|error| error.with_rate_status(admission.take_rate_status()))
}

/// Returns the extensions that the client declares: of theirs it is told what servers tell.
fn declared(request: &McpRequest<'_>) -> Vec<String> {
    let capabilities = request.params.meta(meta::CLIENT_CAPABILITIES);
    extensions::declared_by_client(capabilities.map_or("{}", RawValue::get))
}

/// Sorts the resources by server, without those of servers that the caller may not use.
fn by_server(request: &McpRequest<'_>, uris: &[String]) -> Resources {
    let McpRequest { http, caller, .. } = request;
    let mut resources = Resources::new();
    for (server, uri) in uris.iter().filter_map(|uri| http.scope.split_uri(uri)) {
        resources.entry(server.to_owned()).or_default().push(uri.into_owned());
    }
    resources.retain(|server, _| {
        let is_visible = http.app.gateway.server(caller, server).is_ok();
        is_visible && caller.may_use_all_of(server)
    });
    resources
}

/// Charges an admitted request to the tenant, as one call for every ten resources that are watched
/// at a server. Limits of that server count it once.
async fn charge(
    request: &McpRequest<'_>,
    admission: &mut Admission,
    resources: &Resources,
) -> Result<(), CallError> {
    let limits = &request.caller.tenant.limits;
    let calls = |uris: &Vec<String>| uris.len().div_ceil(RESOURCES_PER_CALL);
    // The first was charged when the request was admitted.
    for _ in 1..resources.values().map(calls).sum::<usize>() {
        limits.charge_again(admission).await?;
    }
    let mut servers: Vec<_> = resources.keys().map(String::as_str).collect();
    if servers.is_empty() {
        servers.push(request.http.scope.server().unwrap_or_default());
    }
    for server in servers {
        limits.admit_to(admission, server, None).await?;
    }
    Ok(())
}

async fn open_stream(
    request: &McpRequest<'_>,
    wanted: Lists,
    mut resources: Resources,
) -> Result<Response<Body>, RpcError> {
    let (http, caller) = (request.http, request.caller);
    let permit = http.app.stream_quota.take(&caller.tenant.id)?;
    let mailbox = Arc::new(Mailbox::new(caller.tenant.held.unsent.clone()));
    let mut subscriptions = HashMap::new();
    let mut accepted = Accepted::default();
    let mut servers = VisibleServers::new(http, caller, wanted, Era::Modern);
    let sources = servers.added();
    for (source, lists) in &sources {
        let server = source.changes.server();
        let subscription =
            source.changes.subscribe(caller.tenant.id.clone(), mailbox.clone(), *lists);
        let watched = resources.remove(server.as_str()).unwrap_or_default();
        accepted.add(source, *lists, &subscription, watched)?;
        subscriptions.insert(server.clone(), subscription);
    }
    // A client that is told that it listens must not miss a change from then on.
    let ready = sources.iter().map(|(source, _)| source).filter(|source| is_ready(source));
    let settled = ready.map(|source| {
        let server = source.changes.server();
        let subscription = &subscriptions[server];
        async move { (server, subscription.await_answers(http.arrived + ACCEPT_WAIT).await) }
    });
    for (by, refused) in join_all(settled).await {
        accepted.resources.retain(|(server, uri)| server != by || !refused.contains(uri));
    }
    let (id, scope) = (request.id.to_owned(), http.scope.clone());
    Ok(sse::respond(ListenStream {
        acknowledgement: Some(accepted.acknowledgement(&id, &scope)),
        changes: ChangeMessages {
            mailbox,
            scope,
            subscription_id: Some(id),
            declared: declared(request),
        },
        servers,
        subscriptions,
        _permit: permit,
        is_over: false,
    }))
}

/// The part of a filter that servers have accepted.
#[derive(Default)]
struct Accepted {
    lists: Lists,
    /// Resources as their servers name them.
    resources: Vec<(ServerId, String)>,
}

impl Accepted {
    /// Adds what a server can report. A server that is not ready yet may be able to report all.
    fn add(
        &mut self,
        source: &ChangeSource,
        lists: Lists,
        subscription: &Subscription,
        watched: Vec<String>,
    ) -> Result<(), RpcError> {
        let about = match source.backend.as_ref().map(|backend| backend.state()) {
            Some(RunState::Ready(ready)) => Some(ready.about.clone()),
            _ => None,
        };
        let capabilities = about.as_ref().map(|about| &about.capabilities);
        let has = capabilities.map_or(Lists::ALL, Lists::of);
        self.lists.tools |= lists.tools && has.tools;
        self.lists.prompts |= lists.prompts && has.prompts;
        self.lists.resources |= lists.resources && has.resources;
        let can_watch =
            |it: &ServerCapabilities| it.resources.as_ref().is_some_and(|it| it.subscribe);
        if capabilities.is_none_or(can_watch) {
            let server = source.changes.server();
            self.resources.extend(watched.iter().map(|uri| (server.clone(), uri.clone())));
            subscription.watch_all(watched).map_err(|error| watch_error(&error))?;
        }
        Ok(())
    }

    fn acknowledgement(&self, id: &RawValue, scope: &Scope) -> Bytes {
        let mut notifications = json!({});
        for (name, is_accepted) in [
            ("toolsListChanged", self.lists.tools),
            ("promptsListChanged", self.lists.prompts),
            ("resourcesListChanged", self.lists.resources),
        ] {
            if is_accepted {
                notifications[name] = json!(true);
            }
        }
        if !self.resources.is_empty() {
            let uris = self.resources.iter();
            let uris = uris.map(|(server, uri)| scope.exposed_uri(server.as_str(), uri));
            notifications["resourceSubscriptions"] = uris.collect();
        }
        let meta = subscription_meta(id);
        let params = format!("{{\"notifications\":{notifications},{meta}}}");
        rpc::notification(method::ACKNOWLEDGED, &params)
    }
}

/// Returns the client's error for a resource that cannot be watched.
pub(crate) fn watch_error(error: &WatchError) -> RpcError {
    match error {
        WatchError::Refused(error) => RpcError::from(CallError::backend(ErrorObject::clone(error))),
        WatchError::TooLong => RpcError::invalid_params("the name of the resource is too long"),
        WatchError::TooMany => {
            let limit = LimitUse::reached("watched_resources", WATCHED_BY_TENANT_MAX);
            CallError::busy(limit, "too many resources are watched; unsubscribe from some").into()
        }
        WatchError::Full => CallError::Overloaded.into(),
        WatchError::Expired => CallError::DeadlineExceeded { executed: Executed::Unknown }.into(),
    }
}

/// The stream of a `subscriptions/listen` request.
struct ListenStream {
    /// Sent first.
    acknowledgement: Option<Bytes>,
    changes: ChangeMessages,
    servers: VisibleServers,
    subscriptions: HashMap<ServerId, Subscription>,
    _permit: StreamPermit,
    is_over: bool,
}

impl ListenStream {
    /// Subscribes to servers that were added. Servers that came back are still subscribed to.
    fn subscribe_to_added(&mut self) {
        for (source, lists) in self.servers.added() {
            let (changes, mailbox) = (&source.changes, &self.changes.mailbox);
            let server = changes.server();
            if !self.subscriptions.get(server).is_some_and(|it| it.belongs_to(changes)) {
                let tenant = self.servers.caller.tenant.id.clone();
                let subscription = changes.subscribe(tenant, mailbox.clone(), lists);
                self.subscriptions.insert(server.clone(), subscription);
            }
            if is_ready(&source) {
                mailbox.lists_changed(lists);
            }
        }
    }
}

impl sse::MessageSource for ListenStream {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(acknowledgement) = self.acknowledgement.take() {
            return Some(acknowledgement);
        }
        if self.is_over {
            return None;
        }
        loop {
            tokio::select! {
                biased;
                changed = self.servers.changed() => match changed {
                    Some(lists) => self.changes.mailbox.lists_changed(lists),
                    None => {
                        self.is_over = true;
                        let id = self.changes.subscription_id.as_deref()?;
                        let meta = subscription_meta(id);
                        let result = format!("{{\"resultType\":\"complete\",{meta}}}");
                        return Some(rpc::result(id, &result));
                    }
                },
                message = self.changes.next() => return Some(message),
            }
            self.subscribe_to_added();
        }
    }
}
