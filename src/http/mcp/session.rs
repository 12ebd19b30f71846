//! One session of a legacy client: what has to be remembered of it between its requests.
//!
//! Most of a session is in its token ([`super::sessions`]). What is here belongs to this process: requests that
//! may be cancelled, streams, subscriptions, and questions of servers that wait for the client's answer.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::rpc;
use super::seats::{Seat, Seats};
use crate::backend::Backend;
use crate::backend::changes::{Lists, Mailbox, Subscription};
use crate::backend::client::{Client, Question};
use crate::backend::connection::Connection;
use crate::backend::during::{Event, Listener};
use crate::gateway::CallError;
use crate::ids::{ServerId, SessionId, TenantId};
use crate::jsonrpc::{Frame, INTERNAL_ERROR};
use crate::mcp::{LogLevel, method};

/// Questions of servers that may wait for one client.
const QUESTIONS_MAX: usize = 64;
/// Requests of one session that can be cancelled, at once.
const RUNNING_MAX: usize = 4096;

/// One session.
pub(super) struct Session {
    pub(super) id: SessionId,
    tenant: TenantId,
    /// What the client can do: a JSON object.
    capabilities: String,
    /// Whether this process opened it. What belongs to one process alone is there only then.
    pub(super) is_ours: bool,
    /// What has changed and not been told yet.
    pub(super) mailbox: Arc<Mailbox>,
    state: Mutex<State>,
    ended: CancellationToken,
}

struct State {
    /// Taken with the first thing that must be remembered.
    seat: Option<Seat>,
    log_level: Option<LogLevel>,
    /// By the id the client gave them.
    running: HashMap<String, CancellationToken>,
    /// The streams of requests that are being answered, the newest last.
    listeners: Vec<(u64, Listener)>,
    /// The stream that is nobody's answer.
    standing: Option<(u64, Listener)>,
    subscriptions: HashMap<ServerId, Arc<Subscription>>,
    questions: HashMap<u64, (Weak<Connection>, Box<RawValue>)>,
    next: u64,
    used: Instant,
}

impl Session {
    pub(super) fn new(
        id: SessionId,
        tenant: TenantId,
        capabilities: String,
        is_ours: bool,
    ) -> Self {
        let (state, ended) = (Mutex::new(State::new()), CancellationToken::new());
        Self { id, tenant, capabilities, is_ours, mailbox: Arc::default(), state, ended }
    }

    /// Cancelled when the session has ended.
    pub(super) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Whether there is nothing that its token does not say.
    pub(super) fn is_blank(&self) -> bool {
        let state = self.state.lock();
        state.seat.is_none() && state.running.is_empty() && state.listeners.is_empty()
    }

    /// How grave log lines must be, if the client said so.
    pub(super) fn log_level(&self) -> Option<LogLevel> {
        self.state.lock().log_level
    }

    pub(super) fn set_log_level(
        &self,
        level: LogLevel,
        seats: &Arc<Seats>,
    ) -> Result<(), CallError> {
        let mut state = self.state.lock();
        state.sit(&self.tenant, seats)?;
        state.log_level = Some(level);
        Ok(())
    }

    /// Remembers a request, so that it can be cancelled and heard from, until the guard is dropped. One whose id
    /// is in use already cannot be cancelled.
    pub(super) fn begin(
        self: &Arc<Self>,
        id: &RawValue,
        listener: Option<Listener>,
        cancelled: CancellationToken,
    ) -> InSession {
        let mut state = self.state.lock();
        let number = state.number();
        let id = canonical(id);
        let has_room = state.running.len() < RUNNING_MAX && !state.running.contains_key(&id);
        if has_room {
            state.running.insert(id.clone(), cancelled);
        }
        if let Some(listener) = listener {
            state.listeners.push((number, listener));
        }
        InSession { session: self.clone(), number, id: has_room.then_some(id) }
    }

    /// The client no longer wants the answer to its request.
    pub(super) fn cancel(&self, id: &RawValue) {
        if let Some(cancelled) = self.state.lock().running.remove(&canonical(id)) {
            cancelled.cancel();
        }
    }

    /// The stream for what is nobody's answer. A new one takes the place of the old.
    pub(super) fn stand(
        self: &Arc<Self>,
        seats: &Arc<Seats>,
    ) -> Result<(Standing, tokio::sync::mpsc::Receiver<Event>), CallError> {
        let (listener, events) = Listener::new(None);
        let mut state = self.state.lock();
        state.sit(&self.tenant, seats)?;
        let number = state.number();
        state.standing = Some((number, listener));
        Ok((Standing { session: self.clone(), number }, events))
    }

    /// Hears of changes at a server from now on.
    pub(super) fn follow(
        &self,
        backend: &Backend,
        seats: &Arc<Seats>,
    ) -> Result<Arc<Subscription>, CallError> {
        let mut state = self.state.lock();
        state.sit(&self.tenant, seats)?;
        let subscription = state.subscriptions.entry(backend.id().clone()).or_insert_with(|| {
            Arc::new(backend.changes().subscribe(self.mailbox.clone(), Lists::ALL))
        });
        Ok(subscription.clone())
    }

    /// The client's answer to a server's question goes to that server. Any other is ignored.
    pub(super) fn answer(&self, id: &RawValue, answer: Result<&RawValue, &RawValue>) {
        let asked =
            id.get().parse().ok().and_then(|id: u64| self.state.lock().questions.remove(&id));
        if let Some((connection, id)) = asked
            && let Some(connection) = connection.upgrade()
        {
            connection.notify(Frame::answer(&id, answer));
        }
    }

    /// Puts a message on one stream of the client's: that of its newest request that has room, else the
    /// standing one. Tells whether there was any.
    fn deliver(&self, message: &Bytes) -> bool {
        let state = self.state.lock();
        let requests = state.listeners.iter().rev().chain(&state.standing);
        requests.into_iter().any(|(_, listener)| listener.hear(Event::Message(message.clone())))
    }
}

impl State {
    fn new() -> Self {
        Self {
            seat: None,
            log_level: None,
            running: HashMap::new(),
            listeners: Vec::new(),
            standing: None,
            subscriptions: HashMap::new(),
            questions: HashMap::new(),
            next: 0,
            used: Instant::now(),
        }
    }

    fn sit(&mut self, tenant: &TenantId, seats: &Arc<Seats>) -> Result<(), CallError> {
        if self.seat.is_none() {
            self.seat = Some(seats.take(tenant).ok_or(CallError::Overloaded)?);
        }
        Ok(())
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Ids are the same if they are the same value: `"a"` and `"\u0061"` are.
fn canonical(id: &RawValue) -> String {
    match crate::mcp::params::text_of(id) {
        Some(text) => format!("\"{text}"),
        None => id.get().to_owned(),
    }
}

impl Client for Session {
    fn capabilities(&self) -> &str {
        &self.capabilities
    }

    fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        let is_busy = !state.listeners.is_empty() || state.standing.is_some();
        if is_busy { None } else { Some(state.used) }
    }

    fn end(&self) {
        self.ended.cancel();
        let mut state = self.state.lock();
        for (_, cancelled) in state.running.drain() {
            cancelled.cancel();
        }
        state.listeners.clear();
        state.standing = None;
        state.subscriptions.clear();
        state.seat = None;
    }

    fn ask(&self, question: Question) {
        let Question { connection, id, method, params } = question;
        let number = {
            let mut state = self.state.lock();
            let number = state.number();
            if state.questions.len() < QUESTIONS_MAX {
                state.questions.insert(number, (connection.clone(), id.clone()));
            }
            number
        };
        let params = params.as_ref().map_or("{}".into(), |params| String::from_utf8_lossy(params));
        let message = Frame::request(number, &method, &[&params]).into_bytes();
        let is_kept = self.state.lock().questions.contains_key(&number);
        if is_kept && self.deliver(&message.into()) {
            return;
        }
        self.state.lock().questions.remove(&number);
        if let Some(connection) = connection.upgrade() {
            let why = "the client has no stream open on which it could be asked";
            connection.notify(Frame::error(Some(&id), INTERNAL_ERROR, why, None));
        }
    }

    fn withdraw(&self, connection: &Weak<Connection>, id: &RawValue) {
        let mut state = self.state.lock();
        let is_it = |(asker, theirs): &(Weak<Connection>, Box<RawValue>)| {
            asker.ptr_eq(connection) && canonical(theirs) == canonical(id)
        };
        let number =
            state.questions.iter().find(|(_, asked)| is_it(asked)).map(|(number, _)| *number);
        let Some(number) = number else { return };
        state.questions.remove(&number);
        drop(state);
        self.deliver(&rpc::notification(method::CANCELLED, &format!("{{\"requestId\":{number}}}")));
    }

    fn tell(&self, method: &str, params: Option<Bytes>) {
        let params = params.as_ref().map_or("{}".into(), |params| String::from_utf8_lossy(params));
        self.deliver(&rpc::notification(method, &params));
    }
}

/// A request that is being answered.
pub(super) struct InSession {
    session: Arc<Session>,
    number: u64,
    id: Option<String>,
}

impl Drop for InSession {
    fn drop(&mut self) {
        let mut state = self.session.state.lock();
        state.used = Instant::now();
        state.listeners.retain(|(number, _)| *number != self.number);
        if let Some(id) = &self.id {
            state.running.remove(id);
        }
    }
}

/// The open stream for what is nobody's answer.
pub(super) struct Standing {
    pub(super) session: Arc<Session>,
    number: u64,
}

impl Drop for Standing {
    fn drop(&mut self) {
        let mut state = self.session.state.lock();
        state.used = Instant::now();
        if state.standing.as_ref().is_some_and(|(number, _)| *number == self.number) {
            state.standing = None;
        }
    }
}
