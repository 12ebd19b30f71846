//! The stream that a legacy session opens with `GET`: changes at servers, and messages of the
//! session's own servers that belong to no request.

use std::sync::Arc;

use bytes::Bytes;

use super::{own_backends, session_not_found, with_rate_status};
use crate::backend::changes::mailbox::Lists;
use crate::backend::changes::recipients::SessionClient;
use crate::backend::connection::call_notifications::{CallNotification, CallNotifications};
use crate::common::ids::ServerId;
use crate::gateway::CallError;
use crate::http::mcp::HttpRequest;
use crate::http::mcp::rpc::RpcError;
use crate::http::mcp::session::{Registered, Session};
use crate::http::mcp::stream::changes::{ChangeMessages, VisibleServers, is_ready};
use crate::http::sse;
use crate::protocol::mcp::{Era, extensions};

pub(super) struct SessionStream {
    changes: ChangeMessages,
    notifications: CallNotifications,
    servers: VisibleServers,
    stream: Registered,
}

impl SessionStream {
    pub(super) fn open(http: &HttpRequest, session: &Arc<Session>) -> Result<Self, RpcError> {
        if !session.is_owned_here() {
            return Err(session_not_found());
        }
        let (caller, quota) = (&http.caller, &http.app.stream_quota);
        let is_visible = |server: &ServerId| caller.sees(server.as_str());
        session.retain_subscriptions(is_visible);
        let mut servers = VisibleServers::new(http, caller, Lists::ALL, Era::Legacy);
        let mut open = || {
            for backend in own_backends(http, session).iter().filter(|it| is_visible(it.id())) {
                session.subscribe(backend.changes(), servers.lists(backend.id()), quota)?;
            }
            subscribe_to_added(session, &mut servers)?;
            session.open_stream(quota)
        };
        let (stream, notifications) = open().map_err(|error| with_rate_status(error, caller))?;
        let (mailbox, scope) = (session.mailbox.clone(), http.scope.clone());
        let declared = extensions::declared_by_client(session.capabilities());
        let changes = ChangeMessages { mailbox, scope, subscription_id: None, declared };
        Ok(Self { changes, notifications, servers, stream })
    }
}

/// Subscribes a session to servers that were added. Returns the lists of those that are ready: they
/// will not announce their lists any more.
fn subscribe_to_added(session: &Session, servers: &mut VisibleServers) -> Result<Lists, CallError> {
    let mut ready = Lists::default();
    for (source, lists) in servers.added() {
        session.subscribe(&source.changes, lists, &servers.app.stream_quota)?;
        if is_ready(&source) {
            ready = ready.or(lists);
        }
    }
    Ok(ready)
}

impl sse::MessageSource for SessionStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            tokio::select! {
                biased;
                // First, so that a server that never stops talking does not keep the stream open.
                changed = self.servers.changed() => self.changes.mailbox.lists_changed(changed?),
                () = self.stream.session.ended() => return None,
                // Closed when a newer stream has replaced this one, and gets the changes instead.
                event = self.notifications.recv() => match event? {
                    CallNotification::Message(message) => return Some(message),
                    _ => unreachable!("all others go to their own request"),
                },
                message = self.changes.next() => return Some(message),
            }
            // Never fails: a session with a stream has its permit.
            if let Ok(ready) = subscribe_to_added(&self.stream.session, &mut self.servers) {
                self.changes.mailbox.lists_changed(ready);
            }
        }
    }
}
