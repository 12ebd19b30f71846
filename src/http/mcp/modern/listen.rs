//! Streams of changes: `subscriptions/listen` of the modern era. That of a legacy session is [`crate::http::mcp::legacy::session_stream`].

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
use tokio_util::sync::CancellationToken;

use crate::backend::State;
use crate::backend::changes::mailbox::{Change, List, Lists, Mailbox};
use crate::backend::changes::{Subscription, WatchError};
use crate::common::ids::ServerId;
use crate::gateway::{CallError, Caller, Executed, Rights};
use crate::http::mcp::rpc;
use crate::http::mcp::rpc::RpcError;
use crate::http::mcp::session::too_many_seats;
use crate::http::mcp::stream::sse;
use crate::http::mcp::stream::stream_quota::Seat;
use crate::http::mcp::stream::visible_servers::{Following, is_ready};
use crate::http::mcp::{Asking, Scope};
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::mcp::params::ParamsError;
use crate::protocol::mcp::{meta, method, names};
use crate::registry::ChangeSource;
use crate::tenants::limits::{Admission, Standing};

/// Resources that one stream or session may watch.
pub(crate) const WATCHED_MAX: usize = 1000;

/// How long a server may take to agree before a client is told that it listens all the same.
const SETTLE_WAIT: Duration = Duration::from_secs(3);

/// What a client wants to hear of.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Filter {
    tools_list_changed: bool,
    prompts_list_changed: bool,
    resources_list_changed: bool,
    resource_subscriptions: Vec<String>,
}

/// `subscriptions/listen`.
pub(crate) async fn listen(
    asking: &Asking<'_>,
    caller: &Caller,
) -> Result<Response<Body>, RpcError> {
    let filter = asking.params.get("notifications").ok_or(ParamsError::Missing("notifications"))?;
    // Without this look serde would also take an array, member by member.
    let filter = Some(filter.get()).filter(|filter| filter.starts_with('{'));
    let filter = filter.and_then(|filter| serde_json::from_str(filter).ok());
    let mut filter: Filter = filter.ok_or_else(|| {
        let expected = "an object such as {\"toolsListChanged\": true}";
        ParamsError::WrongType { at: "params.notifications".into(), expected }
    })?;
    if filter.resource_subscriptions.len() > WATCHED_MAX {
        return Err(RpcError::invalid_params(format!(
            "at most {WATCHED_MAX} resources can be watched at once"
        )));
    }
    let mut resources = by_server(asking.scope, std::mem::take(&mut filter.resource_subscriptions));
    resources.retain(|server, _| {
        let is_there = asking.front.gateway.server(caller, server).is_ok();
        is_there && caller.tenant.may_use_all_of(server)
    });
    let (_admission, standing) = admit(asking, caller, &resources).await?;
    let begun = begin(asking, caller, filter, resources).await;
    begun.map_err(|error| error.with_standing(standing))
}

/// Takes it from the tenant's limits, like a call to each server of which resources are watched.
async fn admit(
    asking: &Asking<'_>,
    caller: &Caller,
    resources: &HashMap<String, Vec<String>>,
) -> Result<(Admission, Standing), CallError> {
    let limits = &caller.tenant.limits;
    let mut admission = limits.enter().await?;
    if resources.is_empty() {
        let server = asking.scope.server().unwrap_or_default();
        let standing = limits.admit(&mut admission, server, None).await?;
        return Ok((admission, standing));
    }
    let mut standing = Standing::default();
    for server in resources.keys() {
        standing = limits.admit(&mut admission, server, None).await?;
    }
    Ok((admission, standing))
}

async fn begin(
    asking: &Asking<'_>,
    caller: &Caller,
    filter: Filter,
    mut resources: HashMap<String, Vec<String>>,
) -> Result<Response<Body>, RpcError> {
    let seat = asking.front.seats.take(&caller.tenant.id).ok_or_else(too_many_seats)?;
    let mailbox = Arc::new(Mailbox::default());
    let mut subscriptions = HashMap::new();
    let mut honoured = Honoured::default();
    let mut following = Following::new(asking.front, caller, asking.scope);
    let sources = following.new_ones();
    for source in &sources {
        let server = source.changes.server();
        let (lists, subscription) = filter.subscribe(source, caller, &mailbox);
        let watched = resources.remove(server.as_str()).unwrap_or_default();
        honoured.add(source, lists, &subscription, watched)?;
        subscriptions.insert(server.clone(), subscription);
    }
    // Whoever is told that it listens must not miss anything from then on.
    let settle = sources.iter().map(|source| (source, &subscriptions[source.changes.server()]));
    let settle = settle.map(|(source, subscription)| async move {
        let refused = match is_ready(source) {
            true => subscription.settled(asking.arrived + SETTLE_WAIT).await,
            false => vec![],
        };
        (source.changes.server(), refused)
    });
    for (of, refused) in join_all(settle).await {
        honoured.resources.retain(|(server, uri)| server != of || !refused.contains(uri));
    }
    let id = asking.id.to_owned();
    let scope = asking.scope.clone();
    let acknowledged = honoured.acknowledgement(&id, &scope);
    let closing = asking.front.closing.clone();
    Ok(sse::respond(Listening {
        first: Some(acknowledged),
        changes: Messages { mailbox, scope, subscription_id: Some(id) },
        closing,
        rights: caller.rights.clone(),
        following,
        filter,
        subscriptions,
        _seat: seat,
        is_over: false,
    }))
}

/// The resources to watch at each server, in its own terms.
fn by_server(scope: &Scope, uris: Vec<String>) -> HashMap<String, Vec<String>> {
    let mut by_server: HashMap<String, Vec<String>> = HashMap::new();
    for uri in uris {
        match scope {
            Scope::One(server) => by_server.entry(server.clone()).or_default().push(uri),
            Scope::All => {
                if let Some((server, uri)) = names::split_resource_uri(&uri) {
                    by_server.entry(server.to_owned()).or_default().push(uri.to_owned());
                }
            }
        }
    }
    by_server
}

impl Filter {
    /// The lists of a server of which all may be used, or only the tools.
    fn lists(&self, may_use_all: bool) -> Lists {
        Lists {
            tools: self.tools_list_changed,
            prompts: self.prompts_list_changed && may_use_all,
            resources: self.resources_list_changed && may_use_all,
        }
    }

    /// Has a mailbox hear of the lists of a server.
    fn subscribe(
        &self,
        source: &ChangeSource,
        caller: &Caller,
        mailbox: &Arc<Mailbox>,
    ) -> (Lists, Subscription) {
        let changes = &source.changes;
        let lists = self.lists(caller.tenant.may_use_all_of(changes.server().as_str()));
        let tenant = caller.tenant.id.clone();
        (lists, changes.subscribe(tenant, mailbox.clone(), lists))
    }
}

/// What a client will hear of, of what it asked for.
#[derive(Default)]
struct Honoured {
    lists: Lists,
    /// With their servers, in the servers' own terms.
    resources: Vec<(ServerId, String)>,
}

impl Honoured {
    /// A server that is not there yet may turn out to have everything.
    fn add(
        &mut self,
        source: &ChangeSource,
        lists: Lists,
        subscription: &Subscription,
        watched: Vec<String>,
    ) -> Result<(), RpcError> {
        let about = match source.backend.as_ref().map(|backend| backend.state()) {
            Some(State::Ready(ready)) => Some(ready.about.clone()),
            _ => None,
        };
        let has = |of: fn(&crate::protocol::mcp::results::ServerCapabilities) -> bool| {
            about.as_ref().is_none_or(|about| of(&about.capabilities))
        };
        self.lists.tools |= lists.tools && has(|it| it.tools.is_some());
        self.lists.prompts |= lists.prompts && has(|it| it.prompts.is_some());
        self.lists.resources |= lists.resources && has(|it| it.resources.is_some());
        if has(|it| it.resources.as_ref().is_some_and(|resources| resources.subscribe)) {
            let server = source.changes.server();
            self.resources.extend(watched.iter().map(|uri| (server.clone(), uri.clone())));
            subscription.watch_all(watched).map_err(|error| not_watched(&error))?;
        }
        Ok(())
    }

    fn acknowledgement(&self, id: &RawValue, scope: &Scope) -> Bytes {
        let mut notifications = json!({});
        for (name, honoured) in [
            ("toolsListChanged", self.lists.tools),
            ("promptsListChanged", self.lists.prompts),
            ("resourcesListChanged", self.lists.resources),
        ] {
            if honoured {
                notifications[name] = json!(true);
            }
        }
        if !self.resources.is_empty() {
            let exposed = |(server, uri): &(ServerId, String)| exposed(scope, server.as_str(), uri);
            let uris: Vec<_> = self.resources.iter().map(exposed).collect();
            notifications["resourceSubscriptions"] = json!(uris);
        }
        let params = format!("{{\"notifications\":{notifications},{}}}", tag(id));
        rpc::notification(method::ACKNOWLEDGED, &params)
    }
}

/// Why a resource cannot be watched, as an error.
pub(crate) fn not_watched(error: &WatchError) -> RpcError {
    match error {
        WatchError::Refused(error) => RpcError::from(CallError::Backend(ErrorObject::clone(error))),
        WatchError::TooLong => RpcError::invalid_params("the name of the resource is too long"),
        WatchError::TooMany => {
            CallError::busy("too many resources are watched; unsubscribe from some").into()
        }
        WatchError::Full => CallError::Overloaded.into(),
        WatchError::Expired => CallError::DeadlineExceeded { executed: Executed::Unknown }.into(),
    }
}

/// The member that says which request a message belongs to: its id as it was written.
fn tag(id: &RawValue) -> String {
    format!("\"_meta\":{{\"{}\":{}}}", meta::SUBSCRIPTION_ID, id.get())
}

fn exposed(scope: &Scope, server: &str, uri: &str) -> String {
    match scope {
        Scope::All => names::resource_uri(server, uri),
        Scope::One(_) => uri.to_owned(),
    }
}

/// News as the messages that tell them.
pub(crate) struct Messages {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) scope: Scope,
    /// Modern: the request that asked for them.
    pub(crate) subscription_id: Option<Box<RawValue>>,
}

impl Messages {
    pub(crate) async fn next(&self) -> Bytes {
        match self.mailbox.next().await {
            Change::List(List::Tools) => self.message(method::TOOLS_CHANGED, None),
            Change::List(List::Prompts) => self.message(method::PROMPTS_CHANGED, None),
            Change::List(List::Resources) => self.message(method::RESOURCES_CHANGED, None),
            Change::Resource(server, uri) => {
                let uri = exposed(&self.scope, server.as_str(), &uri);
                self.message(method::RESOURCE_UPDATED, Some(&uri))
            }
        }
    }

    fn message(&self, method: &str, uri: Option<&str>) -> Bytes {
        let uri = uri.map(|uri| format!("\"uri\":{}", json!(uri)));
        let members = uri.into_iter().chain(self.subscription_id.as_deref().map(tag));
        let members = members.collect::<Vec<_>>().join(",");
        rpc::notification(method, &format!("{{{members}}}"))
    }
}

/// The stream of a `subscriptions/listen` request.
struct Listening {
    first: Option<Bytes>,
    changes: Messages,
    closing: CancellationToken,
    rights: Rights,
    following: Following,
    filter: Filter,
    subscriptions: HashMap<ServerId, Subscription>,
    _seat: Seat,
    is_over: bool,
}

impl Listening {
    /// Hears of servers that were not there before. Those that are back are still heard.
    fn follow(&mut self) {
        for source in self.following.new_ones() {
            let (caller, mailbox) = (&self.following.caller, &self.changes.mailbox);
            let (lists, subscription) = self.filter.subscribe(&source, caller, mailbox);
            let server = source.changes.server();
            if !self.subscriptions.get(server).is_some_and(|it| it.is_of(&source.changes)) {
                self.subscriptions.insert(server.clone(), subscription);
            }
            if is_ready(&source) {
                mailbox.lists_changed(lists);
            }
        }
    }
}

impl sse::Source for Listening {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if self.is_over {
            return None;
        }
        loop {
            tokio::select! {
                biased;
                () = ended(&self.closing, &self.rights) => {
                    self.is_over = true;
                    let id = self.changes.subscription_id.as_deref()?;
                    let result = format!("{{\"resultType\":\"complete\",{}}}", tag(id));
                    return Some(rpc::result(id, &result));
                }
                () = self.following.changed() => {}
                message = self.changes.next() => return Some(message),
            }
            self.follow();
        }
    }
}

/// The gateway ends, or the caller's rights do.
pub(crate) async fn ended(closing: &CancellationToken, rights: &Rights) {
    tokio::select! {
        () = closing.cancelled() => {}
        () = rights.over() => {}
    }
}
