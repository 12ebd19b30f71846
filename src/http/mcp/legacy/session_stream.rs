//! The standing stream of a legacy session: what has changed, and what is nobody's answer.

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::backend::changes::recipients::SessionClient;
use crate::backend::changes::mailbox::Lists;
use crate::backend::connection::call_notifications::{CallNotification, CallNotifications};
use crate::common::ids::ServerId;
use crate::gateway::{CallError, Caller, Rights};
use crate::http::mcp::modern::listen::{Messages, ended};
use crate::http::mcp::session::{Session, Standing};
use crate::http::mcp::stream::sse;
use crate::http::mcp::stream::visible_servers::{Following, is_ready};

/// The lists of a server that a caller may hear of.
pub(crate) fn lists_of(caller: &Caller, server: &ServerId) -> Lists {
    let may_use_all = caller.tenant.may_use_all_of(server.as_str());
    Lists { tools: true, prompts: may_use_all, resources: may_use_all }
}

/// The standing stream of a legacy session.
pub(crate) struct StandingStream {
    changes: Messages,
    events: CallNotifications,
    closing: CancellationToken,
    rights: Rights,
    following: Following,
    standing: Standing,
}

impl StandingStream {
    pub(crate) fn new(standing: Standing, events: CallNotifications, following: Following) -> Self {
        let (mailbox, scope) = (standing.session.mailbox.clone(), following.scope.clone());
        let changes = Messages { mailbox, scope, subscription_id: None };
        let (closing, rights) = (following.front.closing.clone(), following.caller.rights.clone());
        Self { changes, events, closing, rights, following, standing }
    }
}

/// Has a session hear of the servers that it has not heard of yet. Gives the lists of those that are there already,
/// which they will not tell of.
pub(crate) fn listen_to_new(
    session: &Session,
    following: &mut Following,
) -> Result<Lists, CallError> {
    let mut there = Lists::default();
    for source in following.new_ones() {
        let lists = lists_of(&following.caller, source.changes.server());
        session.listen_to(&source.changes, lists, &following.front.seats)?;
        if is_ready(&source) {
            there = there.or(lists);
        }
    }
    Ok(there)
}

impl sse::Source for StandingStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            tokio::select! {
                biased;
                // First: a server that never stops talking does not keep the stream open.
                () = ended(&self.closing, &self.rights) => return None,
                () = self.standing.session.ended() => return None,
                // Closed when a newer stream has taken its place, which then gets the news, too.
                event = self.events.recv() => match event? {
                    CallNotification::Message(message) => return Some(message),
                    _ => unreachable!("all others go to their own request"),
                },
                () = self.following.changed() => {}
                message = self.changes.next() => return Some(message),
            }
            // It does not fail: a session that has a stream has its seat.
            if let Ok(new) = listen_to_new(&self.standing.session, &mut self.following) {
                self.changes.mailbox.lists_changed(new);
            }
        }
    }
}
