//! One call of a connection, from its registration to its answer.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::call_notifications::Listener;
use super::in_flight::{Answer, Delivery, End, Failure, Owner, Patience, Progress};
use super::{Connection, Outgoing};
use crate::protocol::jsonrpc::Frame;

/// One registered call. Dropping it abandons the call: the server is told, and nobody else is touched.
pub struct Ticket {
    connection: Arc<Connection>,
    id: u64,
    pub(crate) owner: Owner,
    deadline: Instant,
    answer: oneshot::Receiver<Delivery>,
    /// Whether the writer has its frame, or will.
    is_queued: bool,
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
    pub(crate) fn new(
        connection: Arc<Connection>,
        id: u64,
        owner: Owner,
        deadline: Instant,
        answer: oneshot::Receiver<Delivery>,
    ) -> Self {
        let on_drop = OnDrop::Cancel("the caller went away");
        Self { connection, id, owner, deadline, answer, is_queued: false, on_drop }
    }

    /// When it is given up, the server is not told.
    pub(crate) fn forget_on_drop(&mut self) {
        self.on_drop = OnDrop::Forget;
    }

    /// The id to write into the frame.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// From now on `listener` hears what the server says about the call.
    pub fn listen(&self, listener: Listener) {
        self.connection.pending().listen(self.id, listener);
    }

    /// From now on progress moves the deadline.
    pub fn be_patient(&self, patience: Patience) {
        self.connection.pending().be_patient(self.id, patience);
    }

    /// Queues the call's frame.
    pub fn send(&mut self, frame: Frame) -> Result<(), Failure> {
        self.send_with(frame, vec![])
    }

    /// The same with the headers that repeat its arguments.
    pub fn send_with(
        &mut self,
        frame: Frame,
        headers: Vec<(String, String)>,
    ) -> Result<(), Failure> {
        self.connection.send(Outgoing::Request { id: self.id, frame, headers })?;
        self.is_queued = true;
        Ok(())
    }

    /// Waits for the answer until the deadline.
    pub async fn answer(mut self) -> Result<Answer, Failure> {
        let delivery = loop {
            match timeout_at(self.deadline, &mut self.answer).await {
                Ok(delivery) => break delivery,
                // Progress may have moved it.
                Err(_) => match self.connection.pending().deadline(self.id) {
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
        delivery.outcome
    }

    fn expire(&mut self) -> Failure {
        let cancel = match std::mem::replace(&mut self.on_drop, OnDrop::Nothing) {
            OnDrop::Cancel(_) => Some("deadline exceeded"),
            OnDrop::Forget | OnDrop::Nothing => None,
        };
        let progress = self.connection.abandon(self.id, self.is_queued, cancel);
        Failure::Expired { written: progress != Progress::NotWritten }
    }

    /// The one thing that must never happen. The connection cannot be trusted any more.
    fn mixup(&self) -> Failure {
        self.connection.metrics().identity_alarms.inc();
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
        let cancel = match self.on_drop {
            OnDrop::Nothing => return,
            OnDrop::Forget => None,
            OnDrop::Cancel(reason) => Some(reason),
        };
        self.connection.abandon(self.id, self.is_queued, cancel);
    }
}
