//! A session as its own servers' client: what it is asked and told by them.

use std::pin::Pin;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Session, State, canonical};
use crate::backend::changes::Changes;
use crate::backend::changes::recipients::{SessionClient, ServerRequest};
use crate::backend::changes::mailbox::Lists;
use crate::backend::connection::Connection;
use crate::http::mcp::rpc;
use crate::protocol::jsonrpc::{Frame, INTERNAL_ERROR};
use crate::protocol::mcp::{LogLevel, method};

/// Questions of servers that may wait for one client.
pub(super) const QUESTIONS_MAX: usize = 64;

impl Session {
    fn end_with(&self, state: &mut State) {
        self.ended.cancel();
        for (_, cancelled) in state.running.drain().map(|(_, running)| running) {
            cancelled.cancel();
        }
        state.listeners.clear();
        state.standing = None;
        state.subscriptions.clear();
        state.seat = None;
    }

    /// Whoever enters after this sees that it has ended.
    fn end_if(&self, may_end: impl FnOnce(&State) -> bool) -> bool {
        let mut state = self.state.lock();
        let may_end = may_end(&state);
        if may_end {
            self.end_with(&mut state);
        }
        may_end
    }
}

impl SessionClient for Session {
    fn capabilities(&self) -> &str {
        &self.capabilities
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
        (!state.is_busy()).then_some(state.used)
    }

    fn inactive_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.is_at_rest().then_some(state.used)
    }

    fn end(&self) {
        self.end_with(&mut self.state.lock());
    }

    fn end_if_inactive(&self) -> bool {
        self.end_if(State::is_at_rest)
    }

    fn end_if_no_request(&self) -> bool {
        self.end_if(|state| state.entered == 0 && state.running.is_empty())
    }

    fn forward_request(&self, question: ServerRequest) {
        let ServerRequest { connection, id, method, params } = question;
        let params = params.as_ref().map_or("{}".into(), |params| String::from_utf8_lossy(params));
        let mut state = self.state.lock();
        // Those of processes that are gone wait for nothing.
        state.questions.retain(|_, (asker, _)| asker.strong_count() > 0);
        let number = state.number();
        let message = Frame::request(number, &method, &[&params]).into_bytes();
        let is_asked =
            state.questions.len() < QUESTIONS_MAX && state.deliver(&Bytes::from(message));
        if is_asked {
            state.questions.insert(number, (connection, id));
            return;
        }
        drop(state);
        if let Some(connection) = connection.upgrade() {
            let why =
                "the client cannot be asked: it has no stream open, or too many questions already";
            connection.notify(Frame::error(Some(&id), INTERNAL_ERROR, why, None));
        }
    }

    fn cancel_request(&self, connection: &Weak<Connection>, id: &RawValue) {
        let mut state = self.state.lock();
        let is_it = |(asker, theirs): &(Weak<Connection>, Box<RawValue>)| {
            asker.ptr_eq(connection) && canonical(theirs) == canonical(id)
        };
        let number =
            state.questions.iter().find(|(_, asked)| is_it(asked)).map(|(number, _)| *number);
        let Some(number) = number else { return };
        state.questions.remove(&number);
        let params = format!("{{\"requestId\":{number}}}");
        state.deliver(&rpc::notification(method::CANCELLED, &params));
    }

    fn notify(&self, method: &str, params: Option<Bytes>) {
        let params = params.as_ref().map_or("{}".into(), |params| String::from_utf8_lossy(params));
        self.state.lock().deliver(&rpc::notification(method, &params));
    }

    fn log(&self, level: LogLevel, params: Bytes) {
        let state = self.state.lock();
        if state.log_level.is_none_or(|lowest| level >= lowest) {
            let params = String::from_utf8_lossy(&params);
            state.deliver(&rpc::notification(method::LOG_MESSAGE, &params));
        }
    }
}
