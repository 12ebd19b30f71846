//! The servers whose tools a list of several shows, and those that it leaves out.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::rest::server_view::{ServerView, Viewer};
use crate::backend::Backend;
use crate::backend::instance::tools::ToolSet;
use crate::common::ids::ServerId;
use crate::gateway::{Caller, Gateway};
use crate::protocol::mcp::meta;
use crate::registry::Server;

/// How long a server that is starting may delay a list of several. Clients that listen for changes
/// are notified when it is ready.
pub(super) const START_WAIT: Duration = Duration::from_secs(3);

/// Servers with their tools.
pub(super) type ServersWithTools = Vec<(Arc<Server>, Arc<ToolSet>)>;

/// The servers that a list leaves out. A client must not take their items for gone.
#[derive(Default)]
pub(super) struct LeftOut {
    /// Their process does not run, and the list starts none.
    pub(super) not_running: Vec<ServerId>,
    pub(super) unavailable: Vec<Arc<Server>>,
    /// Each session has a process of its own there, and the client has no session.
    pub(super) needs_session: Vec<ServerId>,
}

/// The tools of one server.
enum Found {
    Tools(Arc<Server>, Arc<ToolSet>),
    WithoutTools,
    NotRunning(Arc<Server>),
    Unavailable(Arc<Server>),
}

/// Returns the servers that can serve the caller, and those that it needs a session for. The log
/// names each of these once.
pub(super) fn callable(gateway: &Gateway, caller: &Caller) -> (Vec<Arc<Server>>, LeftOut) {
    let (servers, others): (Vec<_>, Vec<_>) =
        gateway.servers(caller).partition(|server| caller.can_call(server));
    for server in &others {
        if let Server::PerSession(server) = &**server {
            server.say_left_out();
        }
    }
    let needs_session = others.iter().map(|server| server.id().clone()).collect();
    (servers, LeftOut { needs_session, ..LeftOut::default() })
}

/// Returns the tools of all servers that the caller may use and that are available. Starts no
/// process of the caller's own.
pub(super) async fn tools_of_all(
    gateway: &Gateway,
    caller: &Caller,
    arrived: Instant,
) -> (ServersWithTools, LeftOut) {
    let (servers, mut left_out) = callable(gateway, caller);
    let found = servers.into_iter().map(|server| async move {
        if caller.must_start(&server) {
            // Known from an earlier process, if at all.
            return match caller.known_tools(&server) {
                Some(tools) => Found::Tools(server, tools),
                None => Found::NotRunning(server),
            };
        }
        let until = |_: &Backend| arrived + START_WAIT;
        let Ok((backend, ready)) = gateway.ready(caller, server.clone(), until).await else {
            return Found::Unavailable(server);
        };
        if ready.about.capabilities.tools.is_none() {
            return Found::WithoutTools;
        }
        backend.refresh_if_stale(&ready);
        Found::Tools(server, ready.tools.clone())
    });
    let mut servers = vec![];
    for found in join_all(found).await {
        match found {
            Found::Tools(server, tools) => servers.push((server, tools)),
            Found::WithoutTools => {}
            Found::NotRunning(server) => left_out.not_running.push(server.id().clone()),
            Found::Unavailable(server) => left_out.unavailable.push(server),
        }
    }
    (servers, left_out)
}

impl LeftOut {
    /// Returns the `_meta` of the list, if there is any to tell of.
    pub(super) fn meta(&self, gateway: &Gateway, caller: &Caller) -> Option<Value> {
        let mut members = Map::new();
        for (name, servers) in
            [(meta::NOT_LISTED, &self.not_running), (meta::NEEDS_SESSION, &self.needs_session)]
        {
            if !servers.is_empty() {
                let names = servers.iter().map(ServerId::as_str);
                members.insert(name.to_owned(), names.collect());
            }
        }
        if !self.unavailable.is_empty() {
            let session = caller.session.as_ref().map(|owner| owner.session.clone());
            let viewer = Viewer::Caller { caller, session };
            let registry = gateway.registry();
            let view = |server: &Arc<Server>| ServerView::new(registry, server.clone(), &viewer);
            let views: Vec<_> = self.unavailable.iter().map(view).collect();
            members.insert(meta::UNAVAILABLE.to_owned(), json!(views));
        }
        (!members.is_empty()).then_some(members.into())
    }
}
