//! The servers that a list of all servers leaves out, as its `_meta` tells of them.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::McpRequest;
use crate::backend::instance::tools::ToolSet;
use crate::common::ids::ServerId;
use crate::http::rest::server_view::{ServerView, Viewer};
use crate::protocol::mcp::meta;
use crate::registry::Server;

/// The servers that a list leaves out. A client must not take their items for gone.
#[derive(Default)]
pub(super) struct LeftOut {
    /// Their process does not run, and the list starts none.
    pub(super) not_running: Vec<ServerId>,
    pub(super) unavailable: Vec<Arc<Server>>,
}

impl LeftOut {
    /// Returns the `_meta` of the list, if there is any to tell of.
    pub(super) fn meta(&self, request: &McpRequest<'_>) -> Option<Value> {
        let mut members = Map::new();
        if !self.not_running.is_empty() {
            let names = self.not_running.iter().map(ServerId::as_str);
            members.insert(meta::NOT_LISTED.to_owned(), names.collect());
        }
        if !self.unavailable.is_empty() {
            let session = request.caller.session.as_ref().map(|owner| owner.session.clone());
            let viewer = Viewer::Caller { caller: request.caller, session };
            let registry = request.http.app.gateway.registry();
            let view = |server: &Arc<Server>| ServerView::new(registry, server.clone(), &viewer);
            let views: Vec<_> = self.unavailable.iter().map(view).collect();
            members.insert(meta::UNAVAILABLE.to_owned(), json!(views));
        }
        (!members.is_empty()).then_some(members.into())
    }
}

/// The tools of one server, for the list of all.
pub(super) enum Found {
    Tools(Arc<Server>, Arc<ToolSet>),
    WithoutTools,
    NotRunning(Arc<Server>),
    Unavailable(Arc<Server>),
}

impl Found {
    /// Returns the tools that are known from an earlier process, if any.
    pub(super) fn not_running(server: Arc<Server>, known: Option<Arc<ToolSet>>) -> Self {
        match known {
            Some(tools) => Self::Tools(server, tools),
            None => Self::NotRunning(server),
        }
    }
}
