//! One session of a legacy client: what has to be remembered of it between its requests.
//!
//! Most of a session is in its token ([`self::sessions`]). What is here belongs to this process: requests that
//! may be cancelled, streams, subscriptions, and questions of servers that wait for the client's answer.

mod client;
pub(crate) mod ended_sessions;
pub(crate) mod forward_to_owner;
pub(crate) mod session_rate;
pub(crate) mod sessions;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::stream::stream_quota::{Seat, Seats};
use crate::backend::changes::mailbox::{Lists, Mailbox};
use crate::backend::changes::{Changes, Subscription};
use crate::backend::connection::Connection;
use crate::backend::connection::call_notifications::{CallNotification, CallNotifications, NotificationListener};
use crate::cluster::Peer;
use crate::common::ids::{ServerId, SessionId, TenantId};
use crate::gateway::CallError;
use crate::protocol::jsonrpc::Frame;
use crate::protocol::mcp::LogLevel;

/// Requests of one session that can be cancelled, at once.
const RUNNING_MAX: usize = 4096;

/// How long changes are kept for a client without a stream.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// Why nothing more can be remembered.
pub(crate) fn too_many_seats() -> CallError {
    CallError::busy("too many streams are open, or sessions remembered; end some of them (DELETE)")
}

/// Where a session was opened. What belongs to one process alone is there only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// In this process.
    Here,
    /// In a replica that can be asked.
    At(Peer),
    /// In a process that cannot be asked, or is no more.
    Lost,
}

/// One session.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) tenant: TenantId,
    /// What the client can do: a JSON object.
    capabilities: String,
    pub(crate) home: Home,
    /// Until when its token is good, in seconds since 1970.
    pub(crate) expires: u64,
    /// What has changed and not been told yet.
    pub(crate) mailbox: Arc<Mailbox>,
    state: Mutex<State>,
    ended: CancellationToken,
}

struct State {
    /// Taken with the first thing that must be remembered.
    seat: Option<Seat>,
    log_level: Option<LogLevel>,
    /// By the id the client gave them.
    running: HashMap<String, (u64, CancellationToken)>,
    /// The streams of requests that are being answered, the newest last.
    listeners: Vec<(u64, NotificationListener)>,
    /// The stream that is nobody's answer.
    standing: Option<(u64, NotificationListener)>,
    /// With the lists that it hears of.
    subscriptions: HashMap<ServerId, (Lists, Arc<Subscription>)>,
    questions: HashMap<u64, (Weak<Connection>, Box<RawValue>)>,
    next: u64,
    /// Requests that are being looked at now.
    entered: usize,
    used: Instant,
}

impl Session {
    pub(crate) fn new(
        id: SessionId,
        tenant: TenantId,
        capabilities: String,
        home: Home,
        expires: u64,
    ) -> Self {
        let (state, ended) = (Mutex::new(State::new()), CancellationToken::new());
        Self { id, tenant, capabilities, home, expires, mailbox: Arc::default(), state, ended }
    }

    /// Whether this process opened it.
    pub(crate) fn is_ours(&self) -> bool {
        self.home == Home::Here
    }

    /// Whether there is nothing that its token does not say.
    pub(crate) fn is_blank(&self) -> bool {
        let state = self.state.lock();
        let is_unused = state.running.is_empty() && state.listeners.is_empty();
        is_unused && state.seat.is_none() && !self.ended.is_cancelled()
    }

    /// Forgets what would only be told on a stream, when there has been none for a while: a client that comes
    /// back soon misses nothing, and one that does not keeps nothing.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock();
        let watches = |(_, it): &(Lists, Arc<Subscription>)| it.watched_len() > 0;
        let is_left = !state.is_busy() && state.used.elapsed() >= FORGET_AFTER;
        let asked = state.log_level.is_some() || state.subscriptions.values().any(watches);
        if is_left && !asked {
            state.subscriptions.clear();
            state.seat = None;
        }
    }

    /// A request of it comes in.
    pub(crate) fn enter(&self) {
        self.state.lock().entered += 1;
    }

    /// And has been dealt with.
    pub(crate) fn leave(&self) {
        let mut state = self.state.lock();
        state.entered -= 1;
        state.used = Instant::now();
    }

    /// How grave log lines must be, if the client said so.
    pub(crate) fn log_level(&self) -> Option<LogLevel> {
        self.state.lock().log_level
    }

    pub(crate) fn set_log_level(
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
    pub(crate) fn begin(
        self: &Arc<Self>,
        id: &RawValue,
        listener: Option<NotificationListener>,
        cancelled: CancellationToken,
    ) -> InSession {
        let mut state = self.state.lock();
        let number = state.number();
        let id = canonical(id);
        let has_room = state.running.len() < RUNNING_MAX && !state.running.contains_key(&id);
        if has_room {
            state.running.insert(id.clone(), (number, cancelled.clone()));
        }
        if let Some(listener) = listener {
            state.listeners.push((number, listener));
        }
        drop(state);
        // It may have ended since the request came in.
        if self.ended.is_cancelled() {
            cancelled.cancel();
        }
        InSession { session: self.clone(), number, id: has_room.then_some(id) }
    }

    /// The client no longer wants the answer to its request. Tells whether that is being answered here.
    pub(crate) fn cancel(&self, id: &RawValue) -> bool {
        let running = self.state.lock().running.remove(&canonical(id));
        if let Some((_, cancelled)) = &running {
            cancelled.cancel();
        }
        running.is_some()
    }

    /// The stream for what is nobody's answer. A new one takes the place of the old.
    pub(crate) fn stand(
        self: &Arc<Self>,
        seats: &Arc<Seats>,
    ) -> Result<(Standing, CallNotifications), CallError> {
        let (listener, events) = NotificationListener::new(None);
        let mut state = self.state.lock();
        state.sit(&self.tenant, seats)?;
        let number = state.number();
        state.standing = Some((number, listener));
        Ok((Standing { session: self.clone(), number }, events))
    }

    /// Hears of changes at a server from now on: of these lists, and what it watches.
    pub(crate) fn listen_to(
        &self,
        changes: &Arc<Changes>,
        lists: Lists,
        seats: &Arc<Seats>,
    ) -> Result<Arc<Subscription>, CallError> {
        let mut state = self.state.lock();
        state.sit(&self.tenant, seats)?;
        Ok(self.subscription(&mut state, changes, lists))
    }

    fn subscription(
        &self,
        state: &mut State,
        changes: &Arc<Changes>,
        lists: Lists,
    ) -> Arc<Subscription> {
        let server = changes.server();
        // Where its rights are others now, or the process, a new one takes the place of the old.
        if let Some((heard, subscription)) = state.subscriptions.get(server)
            && *heard == lists
            && subscription.belongs_to(changes)
        {
            return subscription.clone();
        }
        let new = changes.subscribe(self.tenant.clone(), self.mailbox.clone(), lists);
        let new = Arc::new(new);
        state.subscriptions.insert(server.clone(), (lists, new.clone()));
        new
    }

    /// Hears no more of servers that are not there for its client any longer.
    pub(crate) fn keep_to(&self, sees: impl Fn(&ServerId) -> bool) {
        self.state.lock().subscriptions.retain(|server, _| sees(server));
    }

    /// The client's answer to a server's question goes to that server. Any other is ignored.
    pub(crate) fn answer(&self, id: &RawValue, answer: Result<&RawValue, &RawValue>) {
        let asked =
            id.get().parse().ok().and_then(|id: u64| self.state.lock().questions.remove(&id));
        if let Some((connection, id)) = asked
            && let Some(connection) = connection.upgrade()
        {
            connection.notify(Frame::answer(&id, answer));
        }
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
            entered: 0,
            used: Instant::now(),
        }
    }

    fn sit(&mut self, tenant: &TenantId, seats: &Arc<Seats>) -> Result<(), CallError> {
        if self.seat.is_none() {
            self.seat = Some(seats.take(tenant).ok_or_else(too_many_seats)?);
        }
        Ok(())
    }

    /// Whether it asks for something, or listens.
    fn is_busy(&self) -> bool {
        self.entered > 0 || !self.listeners.is_empty() || self.standing.is_some()
    }

    /// Whether nothing is under way: no request, whoever waits for it, and no question that may be answered.
    fn is_at_rest(&self) -> bool {
        let is_asked = || self.questions.values().any(|(asker, _)| asker.strong_count() > 0);
        !self.is_busy() && self.running.is_empty() && !is_asked()
    }

    /// Puts a message on one stream of the client's: that of its newest request that has room, else the
    /// standing one. Tells whether there was any.
    fn deliver(&self, message: &Bytes) -> bool {
        let streams = self.listeners.iter().rev().chain(&self.standing);
        streams.into_iter().any(|(_, listener)| listener.send(CallNotification::Message(message.clone())))
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Ids are the same if they are the same value: `"a"` and `"\u0061"` are.
fn canonical(id: &RawValue) -> String {
    match crate::protocol::mcp::params::text_of(id) {
        Some(text) => format!("\"{text}"),
        None => id.get().to_owned(),
    }
}

/// A request that is being answered.
pub(crate) struct InSession {
    session: Arc<Session>,
    number: u64,
    id: Option<String>,
}

impl Drop for InSession {
    fn drop(&mut self) {
        let mut state = self.session.state.lock();
        state.used = Instant::now();
        state.listeners.retain(|(number, _)| *number != self.number);
        if let Some(id) = &self.id
            && state.running.get(id).is_some_and(|(number, _)| *number == self.number)
        {
            state.running.remove(id);
        }
    }
}

/// The open stream for what is nobody's answer.
pub(crate) struct Standing {
    pub(crate) session: Arc<Session>,
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

#[cfg(test)]
#[path = "tests/session.rs"]
mod tests;
