//! One call of a connection, from its registration to its answer.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::answer::{
    Answer, CallIdentity, CloseReason, DeadlineExtension, Delivery, RequestError, WriteState,
};
use super::call_notifications::NotificationListener;
use super::call_permits::CallPermits;
use super::{Connection, Outgoing};
use crate::common::ids::{CallId, TenantId};
use crate::protocol::jsonrpc::Frame;

/// A call to be registered with [`Connection::register`].
pub struct NewCall {
    pub tenant: TenantId,
    pub call: CallId,
    pub deadline: Instant,
    pub deadline_extension: Option<DeadlineExtension>,
    pub listener: Option<NotificationListener>,
    /// `None` for requests of the gateway itself.
    pub permits: Option<CallPermits>,
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
        }
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

impl CallHandle {
    pub(super) fn new(
        connection: Arc<Connection>,
        id: u64,
        identity: CallIdentity,
        deadline: Instant,
        answer: oneshot::Receiver<Delivery>,
    ) -> Self {
        let on_drop = OnDrop::Cancel;
        Self { connection, id, identity, deadline, answer, is_queued: false, on_drop }
    }

    pub(super) fn forget_on_drop(&mut self) {
        self.on_drop = OnDrop::Forget;
    }

    /// Returns the id to write into the frame.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Queues the frame of the call.
    pub fn send(&mut self, frame: Frame) -> Result<(), RequestError> {
        self.send_with(frame, vec![])
    }

    /// Queues the frame of the call, with the arguments that headers repeat.
    pub fn send_with(
        &mut self,
        frame: Frame,
        headers: Vec<(String, String)>,
    ) -> Result<(), RequestError> {
        self.connection.send(Outgoing::Request { id: self.id, frame, headers })?;
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
                    _ => return Err(self.expire()),
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

    fn expire(&mut self) -> RequestError {
        let state = self.abandon("deadline exceeded");
        RequestError::Expired { written: state != WriteState::NotWritten }
    }

    fn abandon(&mut self, reason: &'static str) -> WriteState {
        let cancel = match std::mem::replace(&mut self.on_drop, OnDrop::Nothing) {
            OnDrop::Nothing => return WriteState::Completed,
            OnDrop::Forget => None,
            OnDrop::Cancel => Some(reason),
        };
        self.connection.abandon(self.id, self.is_queued, cancel)
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
