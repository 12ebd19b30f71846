//! One run of a server, shared by all its callers: what goes out waits in one short queue, and each answer
//! finds its call by the id that was issued for it.
//!
//! Over pipes one task writes and another reads. They never wait for each other, so a server that does not
//! read cannot keep its answers from being read, and neither ever waits for a caller. Over HTTP
//! ([`super::http`]) every request has a task of its own.

pub(crate) mod answer;
pub(crate) mod call_handle;
pub mod call_notifications;
pub mod in_flight;
pub(crate) mod liveness;
pub(crate) mod overdue;
pub(crate) mod reader;
pub mod request_ids;
pub(crate) mod retirement;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use self::call_handle::Ticket;
use self::in_flight::{Answer, End, Failure, Owner, Pending, Progress, Refused};
use self::liveness::Pulse;
use self::request_ids::IdSource;
use self::retirement::Wishes;
use super::changes::Changes;
use super::changes::audience::{Audience, Client};
use super::changes::mailbox::Lists;
use super::queue::Permit;
use super::stdio::writer;
use crate::common::ids::{CallId, TenantId};
use crate::common::offload::Offload;
use crate::protocol::jsonrpc::Frame;
use crate::protocol::mcp::ProtocolVersion;
use crate::telemetry::metrics::ServerMetrics;

/// Frames beyond those of the calls in flight: mostly answers to the server's own requests. However many it makes, they
/// take no room that calls and their cancellations need.
const MESSAGES_MAX: usize = 256;

/// What a connection needs to know.
pub struct Options {
    /// Which run of the server this is.
    pub generation: u64,
    /// Calls at once; bounds the frames that wait to be written.
    pub max_in_flight: usize,
    /// The longest line that is kept.
    pub line_len_max: usize,
    /// How long an abandoned call keeps its slot.
    pub grace: Duration,
    /// Where ids come from.
    pub ids: Arc<dyn IdSource>,
    /// Who hears what the server says beyond its answers.
    pub audience: Audience,
    /// Where the end of the server's process is told, if it has one.
    pub exit: Option<watch::Receiver<Option<String>>>,
    /// What is counted.
    pub metrics: ServerMetrics,
    /// Runs long computations.
    pub offload: Offload,
}

/// The shared end that callers hold.
pub struct Connection {
    generation: u64,
    grace: Duration,
    ids: Arc<dyn IdSource>,
    pending: Pending,
    outgoing: mpsc::Sender<Outgoing>,
    /// What there may be of messages on their way.
    room_for_messages: Arc<Semaphore>,
    /// The version that the handshake has settled on.
    version: OnceLock<ProtocolVersion>,
    /// The lists of which the server tells unasked.
    lists: OnceLock<Lists>,
    /// Whether arguments are repeated in headers where a tool asks for that.
    has_headers: bool,
    /// Wakes the sweeper when the first call is abandoned.
    abandoned: Notify,
    /// Told when the server's tools have changed.
    tools_changed: Notify,
    audience: Audience,
    closed: CancellationToken,
    /// The same for those who only look, which every call does: the token would make them take a lock.
    is_closed: AtomicBool,
    pulse: Pulse,
    /// What it asks of whoever keeps it.
    pub(super) wishes: Wishes,
    metrics: ServerMetrics,
    pub(super) offload: Offload,
}

/// What is on its way to the server.
pub(crate) enum Outgoing {
    /// A call.
    Request {
        /// The one in the frame.
        id: u64,
        /// The message.
        frame: Frame,
        /// Its arguments, where headers repeat them.
        headers: Vec<(String, String)>,
    },
    /// Something that expects no answer.
    Message {
        /// The message.
        frame: Frame,
        /// What it takes of the room for messages.
        _room: OwnedSemaphorePermit,
    },
    /// The call `id` is no longer wanted.
    Cancel {
        /// Of a request that was sent.
        id: u64,
        /// Why, in words for the server.
        reason: &'static str,
    },
}

impl Connection {
    /// Starts talking: `input` is what the server reads, `output` what it writes. The connection lives
    /// until [`Connection::close`] or the end of either stream; then [`Connection::closed`] is done.
    pub fn open(
        input: impl AsyncWrite + Unpin + Send + 'static,
        output: impl AsyncRead + Unpin + Send + 'static,
        options: Options,
    ) -> Arc<Self> {
        let (line_len_max, exit) = (options.line_len_max, options.exit.clone());
        let (connection, frames) = Self::new(options, false);
        tokio::spawn(writer::run(connection.clone(), input, frames));
        tokio::spawn(reader::run(connection.clone(), output, line_len_max, exit));
        connection
    }

    /// A connection, and what goes out through it. Whoever takes that brings the answers to
    /// [`reader::take_message`].
    pub(super) fn new(
        options: Options,
        has_headers: bool,
    ) -> (Arc<Self>, mpsc::Receiver<Outgoing>) {
        let frames_max = 2 * options.max_in_flight + MESSAGES_MAX;
        let (outgoing, frames) = mpsc::channel(frames_max);
        let connection = Arc::new(Self {
            generation: options.generation,
            grace: options.grace,
            ids: options.ids,
            pending: Pending::default(),
            outgoing,
            room_for_messages: Arc::new(Semaphore::new(MESSAGES_MAX)),
            version: OnceLock::new(),
            lists: OnceLock::new(),
            has_headers,
            abandoned: Notify::new(),
            tools_changed: Notify::new(),
            audience: options.audience,
            closed: CancellationToken::new(),
            is_closed: AtomicBool::new(false),
            pulse: Pulse::default(),
            wishes: Wishes::default(),
            metrics: options.metrics,
            offload: options.offload,
        });
        tokio::spawn(connection.clone().sweep());
        (connection, frames)
    }

    /// Registers a call and gives it an id. Its slot exists before its frame is queued, so that no
    /// answer can come too early, and goes with the ticket.
    pub fn register(
        self: &Arc<Self>,
        tenant: TenantId,
        call: CallId,
        deadline: Instant,
        permit: Option<Permit>,
    ) -> Result<Ticket, Failure> {
        if let Some(failure) = self.retired() {
            return Err(failure.clone());
        }
        let owner = Owner { tenant, call, generation: self.generation };
        let id = self.ids.issue(&owner);
        let (waiter, answer) = oneshot::channel();
        match self.pending.insert(id, owner.clone(), deadline, permit, waiter) {
            Ok(()) => Ok(Ticket::new(self.clone(), id, owner, deadline, answer)),
            Err(Refused::Closed(end)) => Err(Failure::Ended { end, written: false }),
            Err(Refused::IdInUse) => Err(Failure::Mixup),
        }
    }

    /// A request of the gateway's own. Given up, it is only forgotten: a server that has not answered its
    /// handshake must not be sent a cancellation.
    pub async fn request(
        self: &Arc<Self>,
        deadline: Instant,
        frame: impl FnOnce(u64) -> Frame,
    ) -> Result<Answer, Failure> {
        let mut ticket = self.register(TenantId::gateway(), CallId::generate(), deadline, None)?;
        ticket.forget_on_drop();
        let frame = frame(ticket.id());
        ticket.send(frame)?;
        ticket.answer().await
    }

    /// Sends a frame that expects no answer. If too many wait already it is not sent: whoever does not
    /// read would not read this either.
    pub fn notify(&self, frame: Frame) {
        if let Ok(_room) = self.room_for_messages.clone().try_acquire_owned() {
            let _ = self.outgoing.try_send(Outgoing::Message { frame, _room });
        }
    }

    /// Ends the connection: all calls fail with `end`, the server's input is closed.
    pub fn close(&self, end: &End) {
        self.pending.close(end);
        self.is_closed.store(true, Ordering::Release);
        self.closed.cancel();
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Why the connection has ended, if it has.
    pub fn end(&self) -> Option<End> {
        self.pending.end()
    }

    /// Done when the connection has ended; tells why.
    pub async fn closed(&self) -> End {
        self.closed.cancelled().await;
        self.pending.end().unwrap_or(End::Stopped)
    }

    /// Whether arguments are repeated in headers, where a tool asks for that ([`Ticket::send_with`]).
    pub fn has_headers(&self) -> bool {
        self.has_headers
    }

    /// The version that the handshake has settled on.
    pub(super) fn version(&self) -> Option<ProtocolVersion> {
        self.version.get().copied()
    }

    /// From here on both sides speak `version`.
    pub(super) fn settle(&self, version: ProtocolVersion) {
        let _ = self.version.set(version);
    }

    /// From here on the server tells of these lists unasked.
    pub(super) fn expect(&self, lists: Lists) {
        let _ = self.lists.set(lists);
    }

    /// What it would have told of is no longer known: it may have, to nobody.
    pub(super) fn note_missed(&self) {
        let lists = self.lists.get().copied().unwrap_or_default();
        if lists.tools {
            self.note_tools_changed();
        }
        self.changes().lists_may_have_changed(lists);
        self.changes().resources_may_have_changed();
    }

    /// Done when the server has said that its tools have changed, since this was last asked.
    pub async fn tools_changed(&self) {
        self.tools_changed.notified().await;
    }

    /// Slots taken, abandoned calls included.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Its signs of life.
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    pub(super) fn token(&self) -> &CancellationToken {
        &self.closed
    }

    pub(super) fn pending(&self) -> &Pending {
        &self.pending
    }

    pub(super) fn ids(&self) -> &dyn IdSource {
        &*self.ids
    }

    pub(super) fn metrics(&self) -> &ServerMetrics {
        &self.metrics
    }

    pub(super) fn changes(&self) -> &Changes {
        &self.audience.changes
    }

    pub(super) fn client(&self) -> Option<&dyn Client> {
        self.audience.client.as_deref()
    }

    pub(super) fn note_tools_changed(&self) {
        self.tools_changed.notify_one();
    }

    pub(super) fn grace(&self) -> Duration {
        self.grace
    }

    /// Queues a call. If too many wait already it is not sent.
    pub(super) fn send(&self, outgoing: Outgoing) -> Result<(), Failure> {
        match self.outgoing.try_send(outgoing) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Failure::Busy),
            Err(mpsc::error::TrySendError::Closed(_)) => {
                let end = self.pending.end().unwrap_or(End::Stopped);
                Err(Failure::Ended { end, written: false })
            }
        }
    }

    pub(super) fn abandon(
        &self,
        id: u64,
        is_queued: bool,
        cancel: Option<&'static str>,
    ) -> Progress {
        let progress = self.pending.abandon(id, is_queued, Instant::now() + self.grace);
        if progress == Progress::Written {
            if let Some(reason) = cancel {
                self.metrics.cancelled.inc();
                let _ = self.outgoing.try_send(Outgoing::Cancel { id, reason });
            }
            self.abandoned.notify_one();
        }
        progress
    }

    /// Frees the slots of abandoned calls that the server never answers.
    async fn sweep(self: Arc<Self>) {
        loop {
            let (is_overdue, next) = self.pending.expire(Instant::now());
            if is_overdue {
                self.pulse.note_overdue();
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

/// Bodies up to this size are copied out of the read buffer, so that a slow caller holding a small answer
/// does not keep a large buffer alive; larger ones share it.
const COPY_LEN_MAX: usize = 8 * 1024;

/// `part` of `line` as bytes of its own.
pub(super) fn detach(line: &Bytes, part: &str) -> Bytes {
    if part.len() <= COPY_LEN_MAX {
        Bytes::copy_from_slice(part.as_bytes())
    } else {
        line.slice_ref(part.as_bytes())
    }
}

#[cfg(test)]
#[path = "tests/connection.rs"]
mod tests;
