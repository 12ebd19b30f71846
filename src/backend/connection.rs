//! One run of a server, shared by all its callers: requests go out through one writer task, answers come
//! back through one reader task, and each answer finds its call by the id that was issued for it.
//!
//! The two tasks never wait for each other, so a server that does not read cannot keep its answers from
//! being read, and neither ever waits for a caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::changes::Changes;
use super::client::{Audience, Client};
use super::during::Listener;
use super::pending::{
    Answer, Delivery, End, NoAnswer, Owner, Patience, Pending, Progress, Refused,
};
use super::pulse::Pulse;
use super::queue::Permit;
use super::request_ids::IdSource;
use super::{reader, writer};
use crate::ids::{CallId, TenantId};
use crate::jsonrpc::Frame;
use crate::mcp::requests;
use crate::telemetry::metrics::ServerMetrics;

/// Frames beyond those of the calls in flight: cancellations, and answers to the server's own requests.
const CONTROL_FRAMES_MAX: usize = 64;

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
}

/// The shared end that callers hold.
pub struct Connection {
    generation: u64,
    grace: Duration,
    ids: Arc<dyn IdSource>,
    pending: Pending,
    outgoing: mpsc::Sender<Outgoing>,
    /// Wakes the sweeper when the first call is abandoned.
    abandoned: Notify,
    /// Told when the server's tools have changed.
    tools_changed: Notify,
    audience: Audience,
    closed: CancellationToken,
    /// The same for those who only look, which every call does: the token would make them take a lock.
    is_closed: AtomicBool,
    pulse: Pulse,
    metrics: ServerMetrics,
}

/// A frame on its way to the writer, with the id of the call it belongs to.
pub(super) struct Outgoing {
    pub(super) id: Option<u64>,
    pub(super) frame: Frame,
}

/// Why a request got no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection ended.
    Ended {
        /// Why.
        end: End,
        /// Whether the server may have seen the request.
        written: bool,
    },
    /// The deadline passed.
    Expired {
        /// Whether the server may have seen the request.
        written: bool,
    },
    /// The answer was over the size limit.
    TooLarge,
    /// Too many frames wait to be written.
    Busy,
    /// The answer belonged to another call. It was withheld and the connection closed.
    Mixup,
}

impl Connection {
    /// Starts talking: `input` is what the server reads, `output` what it writes. The connection lives
    /// until [`Connection::close`] or the end of either stream; then [`Connection::closed`] is done.
    pub fn open(
        input: impl AsyncWrite + Unpin + Send + 'static,
        output: impl AsyncRead + Unpin + Send + 'static,
        options: Options,
    ) -> Arc<Self> {
        let frames_max = 2 * options.max_in_flight + CONTROL_FRAMES_MAX;
        let (outgoing, frames) = mpsc::channel(frames_max);
        let connection = Arc::new(Self {
            generation: options.generation,
            grace: options.grace,
            ids: options.ids,
            pending: Pending::default(),
            outgoing,
            abandoned: Notify::new(),
            tools_changed: Notify::new(),
            audience: options.audience,
            closed: CancellationToken::new(),
            is_closed: AtomicBool::new(false),
            pulse: Pulse::default(),
            metrics: options.metrics,
        });
        tokio::spawn(writer::run(connection.clone(), input, frames));
        tokio::spawn(reader::run(connection.clone(), output, options.line_len_max, options.exit));
        tokio::spawn(connection.clone().sweep());
        connection
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
        let owner = Owner { tenant, call, generation: self.generation };
        let id = self.ids.issue(&owner);
        let (waiter, answer) = oneshot::channel();
        match self.pending.insert(id, owner.clone(), deadline, permit, waiter) {
            Ok(()) => {
                let on_drop = OnDrop::Cancel("the caller went away");
                Ok(Ticket { connection: self.clone(), id, owner, deadline, answer, on_drop })
            }
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
        let mut ticket = self.register(TenantId::gateway(), CallId::new(), deadline, None)?;
        ticket.on_drop = OnDrop::Forget;
        let frame = frame(ticket.id);
        ticket.send(frame)?;
        ticket.answer().await
    }

    /// Sends a frame that expects no answer. If too many wait already it is not sent: whoever does not
    /// read would not read this either.
    pub fn notify(&self, frame: Frame) {
        let _ = self.outgoing.try_send(Outgoing { id: None, frame });
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

    fn abandon(&self, id: u64, cancel: Option<&str>) -> Progress {
        let progress = self.pending.abandon(id, Instant::now() + self.grace);
        if progress == Progress::Written {
            if let Some(reason) = cancel {
                self.metrics.cancelled.inc();
                self.notify(requests::cancelled(id, reason));
            }
            self.abandoned.notify_one();
        }
        progress
    }

    /// Frees the slots of abandoned calls that the server never answers.
    async fn sweep(self: Arc<Self>) {
        loop {
            let (unanswered, next) = self.pending.expire(Instant::now());
            if unanswered > 0 {
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

/// One registered call. Dropping it abandons the call: the server is told, and nobody else is touched.
pub struct Ticket {
    connection: Arc<Connection>,
    id: u64,
    owner: Owner,
    deadline: Instant,
    answer: oneshot::Receiver<Delivery>,
    on_drop: OnDrop,
}

/// What dropping a ticket does to its call.
#[derive(Clone, Copy)]
enum OnDrop {
    Nothing,
    Forget,
    Cancel(&'static str),
}

impl Ticket {
    /// The id to write into the frame.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// From now on `listener` hears what the server says about the call.
    pub fn listen(&self, listener: Listener) {
        self.connection.pending.listen(self.id, listener);
    }

    /// From now on progress moves the deadline.
    pub fn be_patient(&self, patience: Patience) {
        self.connection.pending.be_patient(self.id, patience);
    }

    /// Queues the call's frame.
    pub fn send(&self, frame: Frame) -> Result<(), Failure> {
        match self.connection.outgoing.try_send(Outgoing { id: Some(self.id), frame }) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Failure::Busy),
            Err(mpsc::error::TrySendError::Closed(_)) => {
                let end = self.connection.pending.end().unwrap_or(End::Stopped);
                Err(Failure::Ended { end, written: false })
            }
        }
    }

    /// Waits for the answer until the deadline.
    pub async fn answer(mut self) -> Result<Answer, Failure> {
        let delivery = loop {
            match timeout_at(self.deadline, &mut self.answer).await {
                Ok(delivery) => break delivery,
                // Progress may have moved it.
                Err(_) => match self.connection.pending.deadline(self.id) {
                    Some(later) if later > self.deadline => self.deadline = later,
                    _ => return Err(self.expire()),
                },
            }
        };
        self.on_drop = OnDrop::Nothing;
        // Every slot is resolved before it is dropped; a lost one would be a bug of ours.
        let Ok(delivery) = delivery else { return Err(self.mixup()) };
        if delivery.owner != self.owner {
            return Err(self.mixup());
        }
        delivery.outcome.map_err(|no_answer| match no_answer {
            NoAnswer::Ended { end, written } => Failure::Ended { end, written },
            NoAnswer::TooLarge => Failure::TooLarge,
        })
    }

    fn expire(&mut self) -> Failure {
        let cancel = match std::mem::replace(&mut self.on_drop, OnDrop::Nothing) {
            OnDrop::Cancel(_) => Some("deadline exceeded"),
            OnDrop::Forget | OnDrop::Nothing => None,
        };
        let progress = self.connection.abandon(self.id, cancel);
        Failure::Expired { written: progress != Progress::NotWritten }
    }

    /// The one thing that must never happen. The connection cannot be trusted any more.
    fn mixup(&self) -> Failure {
        self.connection.metrics.identity_alarms.inc();
        tracing::error!(
            call = %self.owner.call,
            tenant = %self.owner.tenant,
            generation = self.owner.generation,
            "an answer reached the wrong call and was withheld; the server is replaced"
        );
        self.connection.close(&End::Protocol("an answer could not be trusted".into()));
        Failure::Mixup
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        match self.on_drop {
            OnDrop::Nothing => {}
            OnDrop::Forget => drop(self.connection.abandon(self.id, None)),
            OnDrop::Cancel(reason) => drop(self.connection.abandon(self.id, Some(reason))),
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
#[path = "connection_tests.rs"]
mod tests;
