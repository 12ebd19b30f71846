//! Changes at servers, as the notifications that tell clients of them. Also the servers whose
//! changes a stream reports: a reload may add and remove servers while the stream is open.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::watch;

use crate::backend::RunState;
use crate::backend::changes::Changes;
use crate::backend::changes::mailbox::{Change, List, Lists, Mailbox, Notice, UpdateDetails};
use crate::common::ids::ServerId;
use crate::gateway::Caller;
use crate::http::AppState;
use crate::http::mcp::{HttpRequest, Scope, rpc};
use crate::protocol::jsonrpc::members::{MemberChange, Members};
use crate::protocol::mcp::extensions::{self, adds};
use crate::protocol::mcp::{Era, meta, method};
use crate::registry::ChangeSource;

pub(crate) struct ChangeMessages {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) scope: Scope,
    /// Names the `subscriptions/listen` request in each message; legacy streams have none.
    pub(crate) subscription_id: Option<Box<RawValue>>,
    /// The extensions that the client declares.
    pub(crate) declared: Vec<String>,
}

impl ChangeMessages {
    /// Waits for the next change. Cancel-safe.
    pub(crate) async fn next(&self) -> Bytes {
        loop {
            let change = self.mailbox.next().await;
            if let Some(message) = self.of_change(change) {
                return message;
            }
        }
    }

    /// Writes a change; `None` if the client is not told of it.
    fn of_change(&self, change: Change) -> Option<Bytes> {
        Some(match change {
            Change::List(List::Tools) => self.message(method::TOOLS_CHANGED, None),
            Change::List(List::Prompts) => self.message(method::PROMPTS_CHANGED, None),
            Change::List(List::Resources) => self.message(method::RESOURCES_CHANGED, None),
            Change::Resource(server, uri, details) => {
                let uri = self.scope.exposed_uri(server.as_str(), &uri);
                self.message(method::RESOURCE_UPDATED, Some((&uri, &details.unwrap_or_default())))
            }
            Change::Notice(notice) => self.notice(&notice)?,
        })
    }

    /// Writes a notification of an extension, if the client declares one of the server's. Where all
    /// servers are shown, their skills are one list, and other extensions are not carried.
    fn notice(&self, notice: &Notice) -> Option<Bytes> {
        let is_shown = match &self.scope {
            Scope::All => notice.method == extensions::SKILLS_CHANGED,
            Scope::One(_) => true,
            Scope::Toolset(_) => false,
        };
        let mut adds = notice.declared.iter().filter(|name| adds(name, &notice.method));
        if !is_shown || !adds.any(|name| self.declared.contains(name)) {
            return None;
        }
        let params = match (&self.scope, &self.subscription_id) {
            (Scope::All, None) => "{}".to_owned(),
            (Scope::All, Some(id)) => format!("{{{}}}", subscription_meta(id)),
            (_, None) => notice.params.clone(),
            (_, Some(id)) => {
                let params = Members::parse(&notice.params).ok()?;
                let meta = params.get("_meta").map_or("{}", RawValue::get);
                let meta = Members::parse(meta).ok()?;
                let meta =
                    meta.rewrite(|_, _| MemberChange::Keep, &[(meta::SUBSCRIPTION_ID, id.get())]);
                params.rewrite(|_, _| MemberChange::Keep, &[("_meta", &meta)])
            }
        };
        Some(rpc::notification(&notice.method, &params))
    }

    fn message(&self, method: &str, resource: Option<(&str, &UpdateDetails)>) -> Bytes {
        let (mut members, mut meta) = (String::new(), String::new());
        if let Some(id) = &self.subscription_id {
            meta += &format!(",\"{}\":{id}", meta::SUBSCRIPTION_ID);
        }
        if let Some((uri, details)) = resource {
            members += &format!(",\"uri\":{}{}", json!(uri), details.others);
            meta += &details.meta;
        }
        if !meta.is_empty() {
            members += &format!(",\"_meta\":{{{}}}", meta.trim_start_matches(','));
        }
        rpc::notification(method, &format!("{{{}}}", members.trim_start_matches(',')))
    }
}

/// Writes the `_meta` that names the `subscriptions/listen` request of a message.
pub(crate) fn subscription_meta(id: &RawValue) -> String {
    format!("\"_meta\":{{\"{}\":{}}}", meta::SUBSCRIPTION_ID, id.get())
}

/// The servers that an endpoint shows to a caller, kept current. Processes of the caller's session
/// are not among them. Listening to a server does not start it.
pub(crate) struct VisibleServers {
    pub(crate) app: Arc<AppState>,
    pub(crate) caller: Caller,
    scope: Scope,
    is_in_session: bool,
    /// The lists that the client wants to be told of.
    wanted: Lists,
    changed: watch::Receiver<u64>,
    /// As of the last call of `added`. A server that was removed and added again has new changes.
    known: HashMap<ServerId, Arc<Changes>>,
}

impl VisibleServers {
    pub(crate) fn new(http: &HttpRequest, caller: &Caller, wanted: Lists, era: Era) -> Self {
        Self {
            is_in_session: era == Era::Legacy,
            app: http.app.clone(),
            caller: caller.clone(),
            scope: http.scope.clone(),
            wanted,
            changed: http.app.gateway.registry().changed(),
            known: HashMap::new(),
        }
    }

    /// Returns the lists of a server that the client wants and may see.
    pub(crate) fn lists(&self, server: &ServerId) -> Lists {
        let Lists { tools, prompts, resources, extensions } = self.wanted;
        let whole = self.caller.may_use_all_of(server.as_str());
        let (prompts, resources) = (prompts && whole, resources && whole);
        Lists { tools, prompts, resources, extensions: extensions && whole }
    }

    /// Returns the servers that were added since the last call, with their [`lists`](Self::lists);
    /// the first time, all servers.
    pub(crate) fn added(&mut self) -> Vec<(ChangeSource, Lists)> {
        self.changed.borrow_and_update();
        let servers = self.app.gateway.servers(&self.caller);
        let shown = servers.filter(|server| self.scope.shows(server.id()));
        let tenant = &self.caller.tenant.id;
        let now: Vec<_> =
            shown.filter_map(|server| server.source(tenant, self.is_in_session)).collect();
        let of_now =
            |source: &ChangeSource| (source.changes.server().clone(), source.changes.clone());
        let before = std::mem::replace(&mut self.known, now.iter().map(of_now).collect());
        let is_known = |source: &ChangeSource| {
            let known = before.get(source.changes.server());
            known.is_some_and(|known| Arc::ptr_eq(known, &source.changes))
        };
        let with_lists = |source: ChangeSource| {
            let lists = self.lists(source.changes.server());
            (source, lists)
        };
        now.into_iter().filter(|source| !is_known(source)).map(with_lists).collect()
    }

    /// Waits until servers may have been added, or the caller's toolset may have changed. Returns
    /// the lists that are others now, whatever servers say; `None` when the stream must close: the
    /// gateway shuts down, or the caller's rights have changed. Cancel-safe.
    pub(crate) async fn changed(&mut self) -> Option<Lists> {
        tokio::select! {
            biased;
            () = self.app.closing.cancelled() => None,
            () = self.caller.credential.ended() => None,
            changed = self.changed.changed() => match changed {
                Ok(()) => self.follow_toolset(),
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Follows the caller's toolset after a reload. `None` if it is gone.
    fn follow_toolset(&mut self) -> Option<Lists> {
        let Some(before) = &self.caller.toolset else { return Some(Lists::default()) };
        let now = self.app.gateway.within(self.caller.clone(), before.id().as_str()).ok()?;
        let is_same = now.toolset.as_ref().is_some_and(|now| Arc::ptr_eq(now, before));
        self.caller = now;
        let tools = self.wanted.tools && !is_same;
        Some(Lists { tools, ..Lists::default() })
    }
}

/// Returns whether a server is ready already, so that it will not announce its lists any more.
pub(crate) fn is_ready(source: &ChangeSource) -> bool {
    source.backend.as_ref().is_some_and(|backend| matches!(backend.state(), RunState::Ready(_)))
}
