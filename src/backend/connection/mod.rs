//! The connection to one instance, shared by all its callers. Outgoing frames wait in one short
//! queue, and each answer finds its call by the id that the gateway issued for it.
//!
//! ```text
//!   CallHandle ── send ──▶ queue ──▶ writer task ──▶ stdin  ┐
//!       ▲                                                   │ server
//!       └── in-flight calls ◀── reader task ◀────── stdout  ┘
//! ```
//!
//! The writer and the reader never wait for each other, so a server that does not read cannot keep
//! its answers from being read. Neither ever waits for a caller. Over HTTP ([`super::http`]) every
//! request has a task of its own.

mod ask_caller;
mod call;
pub mod call_notifications;
mod in_flight;
pub(crate) mod incoming;
pub mod live_calls;
pub(crate) mod liveness;
pub(crate) mod reader;
pub mod request_ids;
mod tenants_seen;

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use self::call::{
    Answer, CallHandle, CallIdentity, CallPermits, CloseReason, DeadlineExtension, NewCall,
    RequestError,
};
use self::in_flight::InFlightCalls;
use self::liveness::Liveness;
use self::request_ids::IdSource;
use super::changes::mailbox::{List, Lists, Notice};
use super::changes::recipients::{Recipients, SessionClient};
use super::http::oauth::TokenSource;
use super::stdio::line_tail::LineTail;
use super::stdio::process::ExitReason;
use super::stdio::writer;
use crate::common::ids::TenantId;
use crate::common::offload::Offload;
use crate::protocol::jsonrpc::Frame;
use crate::protocol::mcp::ProtocolVersion;
use crate::protocol::mcp::extensions::{Declared, SKILLS_CHANGED};
use crate::protocol::mcp::method;
use crate::telemetry::metrics::ServerMetrics;

/// Frames that belong to no call: mostly answers to the server's own requests. However many a
/// server makes, they take no room that calls and their cancellations need.
const MESSAGES_MAX: usize = 256;

pub struct ConnectionOptions {
    /// The generation of the instance.
    pub generation: u64,
    /// Bounds the frames that wait to be written.
    pub max_in_flight: usize,
    /// The longest line that is kept.
    pub line_len_max: usize,
    /// How long an abandoned call keeps its permits.
    pub grace: Duration,
    pub ids: Arc<dyn IdSource>,
    pub recipients: Recipients,
    /// Reports the exit of the server's process, if it has one.
    pub exit: Option<watch::Receiver<Option<ExitReason>>>,
    pub metrics: ServerMetrics,
    /// Runs long computations.
    pub offload: Offload,
}

pub struct Connection {
    generation: u64,
    /// Random, so that no other process has it, not even one of another gateway.
    run: u64,
    pub(super) grace: Duration,
    ids: Arc<dyn IdSource>,
    pub(in crate::backend) in_flight: InFlightCalls,
    outgoing: mpsc::Sender<Outgoing>,
    message_permits: Arc<Semaphore>,
    version: OnceLock<ProtocolVersion>,
    /// The lists whose changes the server announces.
    announced_lists: OnceLock<Lists>,
    /// The extensions that the server declares, once it has greeted.
    pub(super) declared: OnceLock<Declared>,
    has_headers: bool,
    /// Wakes the sweeper when a call is abandoned.
    abandoned: Notify,
    tools_changed: Notify,
    /// Other lists that have changed, and of which nobody was told yet.
    changed_lists: Mutex<Lists>,
    list_changed: Notify,
    pub(super) recipients: Recipients,
    /// Lines of a process that came before its handshake and are no messages.
    pub(super) stray_output: LineTail,
    closed: CancellationToken,
    /// Mirrors `closed` for every call's check, which would take a lock in the token.
    is_closed: AtomicBool,
    pub(super) liveness: Liveness,
    /// The error of new calls, once the connection is retired.
    retired: OnceLock<RequestError>,
    wants_replacement: CancellationToken,
    pub(super) metrics: ServerMetrics,
    pub(super) offload: Offload,
}

/// A frame on its way to the server.
pub(crate) enum Outgoing {
    Request {
        id: u64,
        /// The tenant whose call it is. Tenants take turns when frames have to wait.
        tenant: TenantId,
        frame: Frame,
        /// For a server over HTTP.
        headers: Vec<(String, String)>,
        /// The tokens of the call's caller, if callers have their own.
        caller: Option<Arc<TokenSource>>,
    },
    /// A message that expects no answer.
    Message { frame: Frame, _permit: OwnedSemaphorePermit },
    /// Cancels the request `id`, for a reason in words for the server.
    Cancel { id: u64, reason: &'static str },
}

impl Connection {
    /// Starts the writer and the reader. The connection lives until [`Connection::close`] or the
    /// end of either stream.
    pub fn open(
        input: impl AsyncWrite + Unpin + Send + 'static,
        output: impl AsyncRead + Unpin + Send + 'static,
        options: ConnectionOptions,
    ) -> Arc<Self> {
        let (line_len_max, exit) = (options.line_len_max, options.exit.clone());
        let (connection, frames) = Self::new(options, false);
        tokio::spawn(writer::run(connection.clone(), input, frames));
        tokio::spawn(reader::run(connection.clone(), output, line_len_max, exit));
        connection
    }

    /// Returns the number of the process. What a server with a `url` knows is not bound to a
    /// connection: it has 0.
    pub fn run(&self) -> u64 {
        if self.has_headers { 0 } else { self.run }
    }

    /// Makes a connection without a writer and a reader: the caller sends the frames, and passes
    /// what comes back to [`incoming::take_message`]. With `has_headers`, headers repeat arguments
    /// where a tool asks for that.
    pub(super) fn new(
        options: ConnectionOptions,
        has_headers: bool,
    ) -> (Arc<Self>, mpsc::Receiver<Outgoing>) {
        // Room for the frame and the cancellation of each call.
        let (outgoing, frames) = mpsc::channel(2 * options.max_in_flight + MESSAGES_MAX);
        let connection = Arc::new(Self {
            generation: options.generation,
            run: rand::random(),
            grace: options.grace,
            ids: options.ids,
            in_flight: InFlightCalls::default(),
            outgoing,
            message_permits: Arc::new(Semaphore::new(MESSAGES_MAX)),
            version: OnceLock::new(),
            announced_lists: OnceLock::new(),
            declared: OnceLock::new(),
            has_headers,
            abandoned: Notify::new(),
            tools_changed: Notify::new(),
            changed_lists: Mutex::default(),
            list_changed: Notify::new(),
            recipients: options.recipients,
            stray_output: LineTail::default(),
            closed: CancellationToken::new(),
            is_closed: AtomicBool::new(false),
            liveness: Liveness::default(),
            retired: OnceLock::new(),
            wants_replacement: CancellationToken::new(),
            metrics: options.metrics,
            offload: options.offload,
        });
        tokio::spawn(connection.clone().sweep());
        (connection, frames)
    }

    /// Sends a frame that expects no answer. If too many wait already, the frame is dropped: a
    /// server that does not read would not read this one either.
    pub fn notify(&self, frame: Frame) {
        if let Ok(_permit) = self.message_permits.clone().try_acquire_owned() {
            let _ = self.outgoing.try_send(Outgoing::Message { frame, _permit });
        }
    }

    /// Fails all calls with `reason` and closes the server's input.
    pub fn close(&self, reason: &CloseReason) {
        self.in_flight.close(reason);
        self.is_closed.store(true, Ordering::Release);
        self.closed.cancel();
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub fn close_reason(&self) -> Option<CloseReason> {
        self.in_flight.close_reason()
    }

    /// Returns the number of in-flight calls, abandoned ones included.
    pub fn in_flight_len(&self) -> usize {
        self.in_flight.len()
    }

    /// Waits until the connection is closed.
    pub async fn closed(&self) -> CloseReason {
        self.closed.cancelled().await;
        self.close_reason().unwrap_or(CloseReason::Stopped)
    }

    /// Refuses new calls from now on, and asks for a replacement. In-flight calls go on.
    pub fn retire(&self, reason: impl Into<Cow<'static, str>>, detail: String) {
        let _ = self.retired.set(RequestError::Unreached { reason: reason.into(), detail });
        self.wants_replacement.cancel();
    }

    /// Returns a token that is cancelled when the connection should be replaced.
    pub fn wants_replacement(&self) -> &CancellationToken {
        &self.wants_replacement
    }

    /// Returns the error of new calls, once the connection is retired.
    pub fn retired(&self) -> Option<&RequestError> {
        self.retired.get()
    }

    /// Returns whether headers repeat arguments ([`CallHandle::send_with`]).
    pub fn has_headers(&self) -> bool {
        self.has_headers
    }

    /// Returns the protocol version, once the handshake has settled on one.
    pub(super) fn version(&self) -> Option<ProtocolVersion> {
        self.version.get().copied()
    }

    pub(super) fn set_version(&self, version: ProtocolVersion) {
        let _ = self.version.set(version);
    }

    pub(super) fn set_announced_lists(&self, lists: Lists) {
        let _ = self.announced_lists.set(lists);
    }

    /// Treats as changed whatever the server may have announced while nobody listened.
    pub(super) fn note_missed_changes(&self) {
        let lists = self.announced_lists.get().copied().unwrap_or_default();
        if lists.tools {
            self.note_tools_changed();
        }
        self.recipients.changes.lists_may_have_changed(lists);
        self.recipients.changes.resources_may_have_changed();
    }

    /// Has the tools, and the skills of a pinned server, listed again.
    pub(crate) fn note_tools_changed(&self) {
        self.tools_changed.notify_one();
    }

    /// Tells listeners that the server's skills are others now, if it has any.
    pub(super) fn tell_skills_changed(&self) {
        if let Some(declared) = self.declared.get().filter(|it| it.has(method::SKILLS_LIST)) {
            let (method, params) = (SKILLS_CHANGED.to_owned(), "{}".to_owned());
            let notice = Notice { method, params, declared: declared.names().clone() };
            self.recipients.changes.notified(&notice);
        }
    }

    /// Waits until the server's tools have changed. An earlier change ends the wait at once, if
    /// nobody waited then.
    pub async fn tools_changed(&self) {
        self.tools_changed.notified().await;
    }

    /// Notes that a list other than the tools has changed.
    fn note_list_changed(&self, list: List) {
        *self.changed_lists.lock().flag_mut(list) = true;
        self.list_changed.notify_one();
    }

    /// Waits until lists other than the tools have changed, and takes them. Cancel safe.
    pub(super) async fn changed_lists(&self) -> Lists {
        loop {
            let changed = self.list_changed.notified();
            let lists = std::mem::take(&mut *self.changed_lists.lock());
            if lists != Lists::default() {
                return lists;
            }
            changed.await;
        }
    }

    /// Returns the client that has this connection to itself.
    pub(super) fn client(&self) -> Option<&dyn SessionClient> {
        self.recipients.client.as_deref()
    }

    fn send(&self, outgoing: Outgoing) -> Result<(), RequestError> {
        self.outgoing.try_send(outgoing).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => RequestError::Busy,
            mpsc::error::TrySendError::Closed(_) => {
                let reason = self.close_reason().unwrap_or(CloseReason::Stopped);
                RequestError::Closed { reason, written: false }
            }
        })
    }

    /// Removes abandoned calls whose grace period has ended without an answer.
    async fn sweep(self: Arc<Self>) {
        let _close = CloseOnDrop::new(&self, "its abandoned calls are not removed any more");
        loop {
            let (is_overdue, next) = self.in_flight.expire(Instant::now());
            if is_overdue {
                self.liveness.overdue.notify_one();
            }
            let wait = async {
                match next {
                    Some(grace_end) => sleep_until(grace_end).await,
                    None => self.abandoned.notified().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.closed.cancelled() => return,
            }
        }
    }
}

/// Closes the connection when a part of it ends, even by a panic: without that part, calls would
/// wait in vain. The first reason to close stays.
pub(super) struct CloseOnDrop {
    connection: Arc<Connection>,
    reason: &'static str,
}

impl CloseOnDrop {
    pub(super) fn new(connection: &Arc<Connection>, reason: &'static str) -> Self {
        Self { connection: connection.clone(), reason }
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.connection.close(&CloseReason::Lost(self.reason.into()));
    }
}

#[cfg(test)]
#[path = "tests/connection.rs"]
mod tests;
