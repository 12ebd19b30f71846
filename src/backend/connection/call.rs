//! One call of a connection: its identity and its permits, from its registration to its outcome.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::call_notifications::NotificationSender;
use super::in_flight::InFlightCall;
use super::live_calls::AttemptInfo;
use super::{Connection, Outgoing};
use crate::backend::http::oauth::TokenSource;
use crate::backend::instance::pool::InstancePermit;
use crate::backend::queue::SlotPermit;
use crate::backend::stdio::process::ExitReason;
use crate::common::ids::{CallId, TenantId};
use crate::protocol::jsonrpc::Frame;
use crate::tenants::limits::Admission;

/// A call to be registered with [`Connection::register`].
pub struct NewCall {
    pub tenant: TenantId,
    pub call: CallId,
    pub deadline: Instant,
    pub deadline_extension: Option<DeadlineExtension>,
    pub listener: Option<NotificationSender>,
    /// `None` for requests of the gateway itself.
    pub permits: Option<CallPermits>,
    /// `None` for requests of the gateway itself.
    pub attempt: Option<AttemptInfo>,
}

impl NewCall {
    /// Makes a request of the gateway itself.
    pub fn gateway(deadline: Instant) -> Self {
        Self {
            tenant: TenantId::gateway(),
            call: CallId::generate(),
            deadline,
            deadline_extension: None,
            listener: None,
            permits: None,
            attempt: None,
        }
    }
}

/// Lets progress extend the deadline of a call: by `step` from each notification on, up to `until`.
#[derive(Clone, Copy, Debug)]
pub struct DeadlineExtension {
    pub step: Duration,
    pub until: Instant,
}

/// The three permits of one attempt at a call, held while a server may be working on it.
///
/// From the registration on the in-flight table owns them, not the caller. So a caller that hangs
/// up gives nothing back. The permits are dropped when the server answers, when the grace period of
/// an abandoned call ends, or when the connection is closed.
///
/// Fields are dropped in the order of their declaration. The slot comes last, because dropping it
/// wakes the next call in the queue, and that call needs what the other two give back.
pub struct CallPermits {
    /// Counts the call against its instance's limit.
    pub instance: InstancePermit,
    /// Counts the call against its tenant's limits. All attempts at a call share one admission.
    pub tenant: Arc<Admission>,
    /// Occupies one of the backend's slots.
    pub slot: SlotPermit,
}

/// Identifies a call on one connection. The in-flight table and the caller each keep one, and the
/// two are compared before an answer is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallIdentity {
    pub tenant: TenantId,
    pub call: CallId,
    /// The generation of the instance.
    pub generation: u64,
}

impl CallIdentity {
    /// Makes the identity of a request of the gateway itself.
    pub fn gateway(generation: u64) -> Self {
        Self { tenant: TenantId::gateway(), call: CallId::generate(), generation }
    }
}

/// The caller's side of an in-flight call. Dropping it abandons the call: the server is told to
/// cancel this call, and no other call is affected.
pub struct CallHandle {
    connection: Arc<Connection>,
    id: u64,
    pub(super) identity: CallIdentity,
    deadline: Instant,
    answer: oneshot::Receiver<Delivery>,
    /// Whether the frame was handed to the writer.
    is_queued: bool,
    on_drop: OnDrop,
}

enum OnDrop {
    Nothing,
    /// Abandons the call without telling the server.
    Forget,
    Cancel,
}

impl Connection {
    /// Registers a call and gives it an id. The call is in the table before its frame can be
    /// queued, so no answer can come too early.
    pub fn register(self: &Arc<Self>, call: NewCall) -> Result<CallHandle, RequestError> {
        if let Some(error) = self.retired() {
            return Err(error.clone());
        }
        let NewCall { tenant, call, deadline, deadline_extension, listener, permits, attempt } =
            call;
        let identity = CallIdentity { tenant, call, generation: self.generation };
        let id = self.ids.issue(&identity);
        let (waiter, answer) = oneshot::channel();
        let call = InFlightCall {
            identity: identity.clone(),
            deadline,
            deadline_extension,
            claim: None,
            is_discarded: false,
            waiter: Some(waiter),
            listener,
            permits,
            attempt,
        };
        self.in_flight.insert(id, call)?;
        let (connection, on_drop) = (self.clone(), OnDrop::Cancel);
        Ok(CallHandle { connection, id, identity, deadline, answer, is_queued: false, on_drop })
    }

    /// Sends a request of the gateway itself. If it is abandoned, no cancellation is sent: a server
    /// that has not answered its handshake must not get one.
    pub async fn request(
        self: &Arc<Self>,
        deadline: Instant,
        frame: impl FnOnce(u64) -> Frame,
    ) -> Result<Answer, RequestError> {
        let mut call = self.register(NewCall::gateway(deadline))?;
        call.on_drop = OnDrop::Forget;
        call.send(frame(call.id))?;
        call.answer().await
    }
}

impl CallHandle {
    /// Returns the id to write into the frame.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Queues the frame of the call.
    pub fn send(&mut self, frame: Frame) -> Result<(), RequestError> {
        self.send_with(frame, vec![], None)
    }

    /// Queues the frame of the call, with headers and its caller's tokens for a server over HTTP.
    pub(crate) fn send_with(
        &mut self,
        frame: Frame,
        headers: Vec<(String, String)>,
        caller: Option<Arc<TokenSource>>,
    ) -> Result<(), RequestError> {
        let (id, tenant) = (self.id, self.identity.tenant.clone());
        self.connection.send(Outgoing::Request { id, tenant, frame, headers, caller })?;
        self.is_queued = true;
        Ok(())
    }

    /// Waits for the answer until the deadline.
    pub async fn answer(mut self) -> Result<Answer, RequestError> {
        let delivery = loop {
            match timeout_at(self.deadline, &mut self.answer).await {
                Ok(delivery) => break delivery,
                // Progress may have extended the deadline.
                Err(_) => match self.connection.in_flight.deadline(self.id) {
                    Some(later) if later > self.deadline => self.deadline = later,
                    _ => {
                        let state = self.abandon("deadline exceeded");
                        let written = state != WriteState::NotWritten;
                        return Err(RequestError::Expired { written });
                    }
                },
            }
        };
        self.on_drop = OnDrop::Nothing;
        match delivery {
            Ok(delivery) if delivery.identity == self.identity => delivery.outcome,
            // A call is always completed before it is removed, so a lost delivery is a bug, too.
            _ => Err(self.identity_mismatch()),
        }
    }

    /// Abandons the call, unless it has ended. If it was written, the server is told to cancel it
    /// for this reason.
    fn abandon(&mut self, reason: &'static str) -> WriteState {
        let is_cancelled = match std::mem::replace(&mut self.on_drop, OnDrop::Nothing) {
            OnDrop::Nothing => return WriteState::Completed,
            OnDrop::Forget => false,
            OnDrop::Cancel => true,
        };
        let Connection { in_flight, grace, metrics, outgoing, abandoned, .. } = &*self.connection;
        let state = in_flight.abandon(self.id, self.is_queued, Instant::now() + *grace);
        if state == WriteState::Written {
            if is_cancelled {
                metrics.cancelled.inc();
                let _ = outgoing.try_send(Outgoing::Cancel { id: self.id, reason });
            }
            abandoned.notify_one();
        }
        state
    }

    /// Raises the alarm for the one thing that must never happen, and closes the connection, which
    /// cannot be trusted any more.
    fn identity_mismatch(&self) -> RequestError {
        self.connection.metrics.identity_alarms.inc();
        tracing::error!(
            call = %self.identity.call,
            tenant = %self.identity.tenant,
            generation = self.identity.generation,
            "an answer reached the wrong call and was withheld; the server is replaced"
        );
        let reason = CloseReason::Protocol("an answer could not be trusted".into());
        self.connection.close(&reason);
        RequestError::IdentityMismatch
    }
}

impl Drop for CallHandle {
    fn drop(&mut self) {
        self.abandon("the caller went away");
    }
}

/// The answer of a server: the `result` or the `error` member of its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Result(Bytes),
    Error(Bytes),
}

/// Why a request got no answer, in words that callers may see. `written` says whether the server
/// may have received the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("{reason}")]
    Closed { reason: CloseReason, written: bool },
    /// The deadline passed.
    #[error("it did not answer in time")]
    Expired { written: bool },
    /// An operator has cancelled the call.
    #[error("an operator cancelled the call")]
    Cancelled { written: bool },
    #[error("its answer is over the limit (`max_response`)")]
    TooLarge,
    /// Too many frames wait to be written.
    #[error("it does not read its input")]
    Busy,
    /// The answer belonged to another call. It was withheld and the connection closed.
    #[error("its answers cannot be trusted")]
    IdentityMismatch,
    #[error("it answered with the HTTP status {status}")]
    Http { status: u16, retry_after: Option<Duration> },
    /// The request cannot be expressed on this transport, for this reason.
    #[error("{0}")]
    Unsendable(String),
    /// The request was not sent: the tenant has to connect itself to the server first.
    #[error("the tenant has to connect itself to it")]
    NotConnected { server: String, url: String },
    /// The server was not reached, or knew at once that it could not take the call. Callers see
    /// `reason`, the operator sees `detail`.
    #[error("{reason}")]
    Unreached { reason: Cow<'static, str>, detail: String },
}

/// Why a connection was closed. The sentence may be shown to callers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The process exited.
    #[error("{0}")]
    Exited(ExitReason),
    /// The server is out of reach or gave no sign of life, for this reason.
    #[error("{0}")]
    Lost(String),
    /// The server broke the protocol beyond repair.
    #[error("{0}")]
    Protocol(String),
    #[error("the gateway stopped it")]
    Stopped,
}

/// An outcome on its way to the caller, with the identity that the in-flight table has for it.
#[derive(Debug)]
pub struct Delivery {
    pub identity: CallIdentity,
    pub outcome: Result<Answer, RequestError>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Completion {
    Delivered,
    /// The caller has gone.
    Late,
    /// No in-flight call has this id.
    NotInFlight,
}

/// How far a call had come when it was abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteState {
    /// Its frame will not be written.
    NotWritten,
    /// The server may have received it.
    Written,
    Completed,
}
