//! One session of a legacy client: what must be remembered of it between its requests.
//!
//! Most of a session is in its token ([`sessions`]). Its state here belongs to this process:
//! requests that may be cancelled, streams, subscriptions, and requests of servers to the client.

mod ask_store;
mod client;
pub(crate) mod forward_to_owner;
mod opened_tokens;
mod questions;
mod registered;
mod revoked_sessions;
mod session_token;
pub(crate) mod sessions;

pub(crate) use self::ask_store::QUERIES_MAX;
pub(super) use self::questions::{QuestionId, Replica};
pub(crate) use self::registered::Registered;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::questions::OpenQuestions;
use super::stream::stream_quota::{StreamPermit, StreamQuota};
use crate::backend::changes::mailbox::{Lists, Mailbox};
use crate::backend::changes::{Changes, Subscription};
use crate::backend::connection::Connection;
use crate::backend::connection::call_notifications::{
    CallNotification, CallNotifications, NotificationSender, Passed,
};
use crate::cluster::Peer;
use crate::common::byte_budget::TenantBytes;
use crate::common::ids::{ServerId, SessionId, TenantId};
use crate::gateway::CallError;
use crate::protocol::jsonrpc::Frame;
use crate::protocol::mcp::params::text_of;
use crate::protocol::mcp::questions::Askable;
use crate::protocol::mcp::{LogLevel, ProtocolVersion};
use crate::tenants::Tenant;

/// The most requests of one session that can be cancelled.
const RUNNING_MAX: usize = 4096;
/// How long changes are kept for a client without a stream.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// The fate of a message to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Done,
    /// The client's streams have no room.
    NoRoom,
    /// The client reads no stream.
    NoStream,
}

/// The replica that opened a session. Only there are its processes, streams and subscriptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OwnerReplica {
    This,
    Other(Peer),
    /// A process that cannot be reached, or has ended.
    Unreachable,
}

pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) tenant: TenantId,
    /// The client's capabilities: a JSON object.
    capabilities: String,
    /// The questions that the client can be asked, as they are declared to modern servers.
    askable: Option<(Askable, String)>,
    pub(crate) version: ProtocolVersion,
    pub(crate) owner: OwnerReplica,
    /// When its token expires, in seconds since 1970.
    pub(crate) expires: u64,
    /// Counts messages that wait.
    unsent: Arc<TenantBytes>,
    /// Changes that the client has not been sent yet.
    pub(crate) mailbox: Arc<Mailbox>,
    state: Mutex<SessionState>,
    ended: CancellationToken,
}

struct SessionState {
    /// Taken with the first thing that must be remembered.
    permit: Option<StreamPermit>,
    log_level: Option<LogLevel>,
    /// Requests that can be cancelled, by the client's ids.
    running: HashMap<String, (u64, CancellationToken)>,
    /// The streams of requests that are being answered, the newest last.
    request_streams: Vec<(u64, NotificationSender)>,
    /// The stream that `GET` opened.
    session_stream: Option<(u64, NotificationSender)>,
    subscriptions: HashMap<ServerId, (Lists, Arc<Subscription>)>,
    /// Whether the client was given lists that leave out servers of its own.
    has_missed_lists: bool,
    /// Messages of the session's own servers that wait for a stream.
    unheard: Option<(NotificationSender, CallNotifications)>,
    /// Requests of the session's own servers: who asked, under which id.
    server_requests: HashMap<u64, (Weak<Connection>, Box<RawValue>)>,
    questions: OpenQuestions,
    last_number: u64,
    /// HTTP requests that are being handled.
    open_requests: usize,
    last_used: Instant,
}

impl Session {
    /// Opens a session, which ends with its tenant.
    pub(crate) fn new(
        id: SessionId,
        tenant: &Tenant,
        version: ProtocolVersion,
        capabilities: String,
        owner: OwnerReplica,
        expires: u64,
    ) -> Self {
        let askable = Askable::of(&capabilities);
        let askable = askable.is_some().then(|| (askable, askable.declare()));
        Self {
            id,
            tenant: tenant.id.clone(),
            capabilities,
            askable,
            version,
            owner,
            expires,
            unsent: tenant.held.unsent.clone(),
            mailbox: Arc::new(Mailbox::new(tenant.held.unsent.clone())),
            state: Mutex::new(SessionState::new()),
            ended: tenant.removed.child_token(),
        }
    }

    pub(crate) fn is_owned_here(&self) -> bool {
        self.owner == OwnerReplica::This
    }

    /// Returns whether its token says all about it.
    pub(crate) fn is_blank(&self) -> bool {
        let state = self.state.lock();
        let is_unused = state.running.is_empty() && state.request_streams.is_empty();
        is_unused && state.permit.is_none() && !self.ended.is_cancelled()
    }

    /// Drops what would only be sent on a stream, if there has been no stream for a while. A client
    /// that comes back soon misses nothing, and one that does not holds nothing.
    pub(crate) fn forget_unheard(&self) {
        let mut state = self.state.lock();
        let watches = |(_, it): &(Lists, Arc<Subscription>)| it.watched_len() > 0;
        let is_left = !state.is_busy() && state.last_used.elapsed() >= FORGET_AFTER;
        let must_stay = state.log_level.is_some() || state.subscriptions.values().any(watches);
        if is_left && !must_stay {
            state.subscriptions.clear();
            state.unheard = None;
            state.permit = None;
        }
    }

    pub(crate) fn request_started(&self) {
        self.state.lock().open_requests += 1;
    }

    pub(crate) fn request_finished(&self) {
        let mut state = self.state.lock();
        state.open_requests -= 1;
        state.last_used = Instant::now();
    }

    /// Returns the lowest level of log lines that the client wants, if it set one.
    pub(crate) fn log_level(&self) -> Option<LogLevel> {
        self.state.lock().log_level
    }

    pub(crate) fn set_log_level(
        &self,
        level: LogLevel,
        quota: &Arc<StreamQuota>,
    ) -> Result<(), CallError> {
        let mut state = self.state.lock();
        state.take_permit(&self.tenant, quota)?;
        state.log_level = Some(level);
        Ok(())
    }

    /// Notes that the client was given a list that leaves out servers of its own. Without a permit
    /// the client has no stream on which it could hear of them.
    pub(crate) fn note_missed_list(&self, quota: &Arc<StreamQuota>) {
        let mut state = self.state.lock();
        if state.take_permit(&self.tenant, quota).is_ok() {
            state.has_missed_lists = true;
        }
    }

    /// Registers a request, so that it can be cancelled, and its stream can carry messages. A
    /// request whose id is in use already cannot be cancelled.
    pub(crate) fn register(
        self: &Arc<Self>,
        id: &RawValue,
        listener: Option<NotificationSender>,
        cancelled: CancellationToken,
    ) -> Registered {
        let mut state = self.state.lock();
        let number = state.next_number();
        let id = canonical(id);
        let can_cancel = state.running.len() < RUNNING_MAX && !state.running.contains_key(&id);
        if can_cancel {
            state.running.insert(id.clone(), (number, cancelled.clone()));
        }
        if let Some(listener) = listener {
            state.send_unheard(&listener);
            state.request_streams.push((number, listener));
        }
        drop(state);
        // The session may have ended since the request came in.
        if self.ended.is_cancelled() {
            cancelled.cancel();
        }
        Registered { session: self.clone(), number, id: can_cancel.then_some(id) }
    }

    /// Cancels a request of the client's. Returns whether it runs here.
    pub(crate) fn cancel(&self, id: &RawValue) -> bool {
        let running = self.state.lock().running.remove(&canonical(id));
        if let Some((_, cancelled)) = &running {
            cancelled.cancel();
        }
        running.is_some()
    }

    /// Opens the session's stream. A new one replaces the old.
    pub(crate) fn open_stream(
        self: &Arc<Self>,
        quota: &Arc<StreamQuota>,
    ) -> Result<(Registered, CallNotifications), CallError> {
        let (listener, notifications) = NotificationSender::new(None, Some(self.unsent.clone()));
        let mut state = self.state.lock();
        state.take_permit(&self.tenant, quota)?;
        state.send_unheard(&listener);
        let number = state.next_number();
        state.session_stream = Some((number, listener));
        Ok((Registered { session: self.clone(), number, id: None }, notifications))
    }

    /// Subscribes to a server's changes: to these lists, and to the resources that are watched.
    pub(crate) fn subscribe(
        &self,
        changes: &Arc<Changes>,
        lists: Lists,
        quota: &Arc<StreamQuota>,
    ) -> Result<Arc<Subscription>, CallError> {
        let mut state = self.state.lock();
        state.take_permit(&self.tenant, quota)?;
        Ok(self.subscription(&mut state, changes, lists))
    }

    fn subscription(
        &self,
        state: &mut SessionState,
        changes: &Arc<Changes>,
        lists: Lists,
    ) -> Arc<Subscription> {
        let server = changes.server();
        // A new one replaces the old if the tenant's rights or the process have changed.
        if let Some((subscribed, subscription)) = state.subscriptions.get(server)
            && *subscribed == lists
            && subscription.belongs_to(changes)
        {
            return subscription.clone();
        }
        let new = Arc::new(changes.subscribe(self.tenant.clone(), self.mailbox.clone(), lists));
        state.subscriptions.insert(server.clone(), (lists, new.clone()));
        new
    }

    /// Drops the subscriptions to servers that no longer exist for the client.
    pub(crate) fn retain_subscriptions(&self, is_visible: impl Fn(&ServerId) -> bool) {
        self.state.lock().subscriptions.retain(|server, _| is_visible(server));
    }

    /// Sends the client's response to the server that asked. A response to no request is ignored.
    pub(crate) fn respond_to_server(&self, id: &RawValue, response: Result<&RawValue, &RawValue>) {
        let number = id.get().parse().ok();
        let request = number.and_then(|it: u64| self.state.lock().server_requests.remove(&it));
        if let Some((connection, id)) = request
            && let Some(connection) = connection.upgrade()
        {
            connection.notify(Frame::answer(&id, response));
        }
    }
}

impl SessionState {
    fn new() -> Self {
        Self {
            permit: None,
            log_level: None,
            running: HashMap::new(),
            request_streams: Vec::new(),
            session_stream: None,
            subscriptions: HashMap::new(),
            has_missed_lists: false,
            unheard: None,
            server_requests: HashMap::new(),
            questions: OpenQuestions::new(),
            last_number: 0,
            open_requests: 0,
            last_used: Instant::now(),
        }
    }

    fn take_permit(
        &mut self,
        tenant: &TenantId,
        quota: &Arc<StreamQuota>,
    ) -> Result<(), CallError> {
        if self.permit.is_none() {
            self.permit = Some(quota.take(tenant)?);
        }
        Ok(())
    }

    /// Returns whether the client waits for a response, or listens.
    fn is_busy(&self) -> bool {
        let has_stream = !self.request_streams.is_empty() || self.session_stream.is_some();
        self.open_requests > 0 || has_stream
    }

    /// Returns whether a request is under way, even if nobody waits for it.
    fn has_request(&self) -> bool {
        self.open_requests > 0 || !self.running.is_empty() || !self.request_streams.is_empty()
    }

    /// Returns whether nothing is under way: no request, even if nobody waits for it, no stream,
    /// and no request of a server that the client may answer.
    fn is_inactive(&self) -> bool {
        let is_asked = || self.server_requests.values().any(|(asker, _)| asker.strong_count() > 0);
        !self.is_busy() && !self.has_request() && !is_asked()
    }

    /// Sends a message on one stream of the client's: that of its newest request with room, else
    /// the session's.
    fn deliver(&self, message: &Bytes) -> Delivery {
        let mut is_read = false;
        for (_, listener) in self.request_streams.iter().rev().chain(&self.session_stream) {
            if listener.send(CallNotification::Message(message.clone())) == Passed::On {
                return Delivery::Done;
            }
            is_read |= listener.is_read();
        }
        if is_read { Delivery::NoRoom } else { Delivery::NoStream }
    }

    /// Sends the messages that waited for a stream.
    fn send_unheard(&mut self, listener: &NotificationSender) {
        let Some((_, mut unheard)) = self.unheard.take() else { return };
        while let Some(message) = unheard.try_recv() {
            listener.send(message);
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

/// Returns one text for all spellings of an id: `"a"` and `"\u0061"` are the same.
fn canonical(id: &RawValue) -> String {
    match text_of(id) {
        Some(text) => format!("\"{text}"),
        None => id.get().to_owned(),
    }
}

#[cfg(test)]
#[path = "tests/session.rs"]
mod tests;
