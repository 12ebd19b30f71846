//! A session as the client of its own servers, which may send it requests and notifications.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Delivery, Session, SessionState, canonical};
use crate::backend::changes::Changes;
use crate::backend::changes::mailbox::Lists;
use crate::backend::changes::recipients::{ServerRequest, SessionClient};
use crate::backend::connection::Connection;
use crate::backend::connection::call_notifications::{
    CallNotification, NotificationSender, Passed,
};
use crate::http::mcp::rpc;
use crate::protocol::jsonrpc::{Frame, INTERNAL_ERROR};
use crate::protocol::mcp::{LogLevel, method};

/// The most requests of servers that may wait for one client.
pub(super) const SERVER_REQUESTS_MAX: usize = 64;

impl Session {
    /// Ends the session if it may end. A request that starts after this sees that it has ended.
    fn end_if(&self, may_end: impl FnOnce(&SessionState) -> bool) -> bool {
        let mut state = self.state.lock();
        if !may_end(&state) {
            return false;
        }
        self.ended.cancel();
        for (_, cancelled) in state.running.drain().map(|(_, running)| running) {
            cancelled.cancel();
        }
        state.request_streams.clear();
        state.session_stream = None;
        state.unheard = None;
        state.subscriptions.clear();
        state.permit = None;
        true
    }
}

impl Session {
    /// Delivers a message that belongs to no request. While the client reads no stream, the message
    /// waits for the next one.
    fn deliver_or_keep(&self, state: &mut SessionState, message: &Bytes) -> Passed {
        match state.deliver(message) {
            Delivery::Done => Passed::On,
            Delivery::NoRoom => Passed::Dropped(1),
            Delivery::NoStream if self.has_ended() => Passed::Unwanted,
            Delivery::NoStream => {
                let new = || NotificationSender::new(None, Some(self.unsent.clone()));
                let (unheard, _) = state.unheard.get_or_insert_with(new);
                unheard.send(CallNotification::Message(message.clone()))
            }
        }
    }
}

impl SessionClient for Session {
    fn capabilities(&self) -> &str {
        &self.capabilities
    }

    fn has_missed_lists(&self) -> bool {
        self.state.lock().has_missed_lists
    }

    fn follow_changes(&self, changes: &Arc<Changes>) {
        self.subscription(&mut self.state.lock(), changes, Lists::ALL);
    }

    fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    fn ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.ended.cancelled())
    }

    fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        (!state.is_busy()).then_some(state.last_used)
    }

    fn inactive_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.is_inactive().then_some(state.last_used)
    }

    fn silent_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        (!state.has_request()).then_some(state.last_used)
    }

    fn end(&self) {
        self.end_if(|_| true);
    }

    fn end_if_inactive(&self) -> bool {
        self.end_if(SessionState::is_inactive)
    }

    fn end_if_no_request(&self) -> bool {
        self.end_if(|state| !state.has_request())
    }

    fn forward_request(&self, request: ServerRequest) {
        let ServerRequest { connection, id, method, params } = request;
        let params = text(params.as_ref());
        let mut state = self.state.lock();
        // Requests of processes that have exited need no response.
        state.server_requests.retain(|_, (asker, _)| asker.strong_count() > 0);
        let number = state.next_number();
        let message = Frame::request(number, &method, &[&params]).into_bytes();
        let is_asked = state.server_requests.len() < SERVER_REQUESTS_MAX
            && state.deliver(&Bytes::from(message)) == Delivery::Done;
        if is_asked {
            state.server_requests.insert(number, (connection, id));
            return;
        }
        drop(state);
        if let Some(connection) = connection.upgrade() {
            let why =
                "the client cannot be asked: it has no open stream, or too many requests wait";
            connection.notify(Frame::error(Some(&id), INTERNAL_ERROR, why, None));
        }
    }

    fn cancel_request(&self, connection: &Weak<Connection>, id: &RawValue) {
        let mut state = self.state.lock();
        let mut cancelled = state.server_requests.extract_if(|_, (asker, theirs)| {
            asker.ptr_eq(connection) && canonical(theirs) == canonical(id)
        });
        let Some((number, _)) = cancelled.next() else { return };
        drop(cancelled);
        let params = format!("{{\"requestId\":{number}}}");
        state.deliver(&rpc::notification(method::CANCELLED, &params));
    }

    fn notify(&self, method: &str, params: Option<Bytes>) -> Passed {
        let message = rpc::notification(method, &text(params.as_ref()));
        self.deliver_or_keep(&mut self.state.lock(), &message)
    }

    fn log(&self, level: LogLevel, params: Bytes) -> Passed {
        let mut state = self.state.lock();
        if state.log_level.is_some_and(|lowest| level < lowest) {
            return Passed::Unwanted;
        }
        let message = rpc::notification(method::LOG_MESSAGE, &text(Some(&params)));
        self.deliver_or_keep(&mut state, &message)
    }
}

fn text(params: Option<&Bytes>) -> Cow<'_, str> {
    params.map_or("{}".into(), |params| String::from_utf8_lossy(params))
}
