//! Commits transitions of calls in groups. While one transaction runs, further transitions gather,
//! and the next transaction writes all of them.
//!
//! A transaction that fails fails exactly those who wait for it. Ends of calls are written later:
//! nobody else knows them.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use super::open_calls::OPEN_MAX;
use crate::common::ids::CallId;
use crate::store::{
    BegunCall, CallBatch, CallConnection, CallState, EndedCall, NewCall, Outage, Store, StoreError,
    Written,
};

/// Transitions in one transaction; they take some 20 ms.
const BATCH_MAX: usize = 512;
/// Bytes in one transaction, beyond one transition: a few milliseconds of writing.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// Bytes of answers that wait for a store that is away. Beyond it, only their outcomes do.
const UNWRITTEN_BYTES_MAX: usize = 64 << 20;
/// Two for each open call: a record that the store has not confirmed is deleted by another one.
const QUEUED_MAX: usize = 2 * OPEN_MAX;
const RETRY_EVERY: Duration = Duration::from_millis(500);
/// Commits that take this long wait for a disk. The calls that such a commit lets go on have their
/// next transitions soon, and the next commit waits for these for a moment. Otherwise it would
/// begin with the first of them, and all others would wait for two commits.
const GATHER_FROM: Duration = Duration::from_millis(3);
const GATHER: Duration = Duration::from_millis(1);

/// The store did not confirm the transition. Nobody knows whether it took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unconfirmed;

pub(super) enum Transition {
    /// Answered with whether the record is new.
    New(Box<NewCall>, oneshot::Sender<bool>),
    /// Answered with whether the call is this gateway's and has not ended.
    Begun(BegunCall, oneshot::Sender<bool>),
    /// Answered with whether the record was there.
    Ended(Box<EndedCall>, oneshot::Sender<bool>),
    Forgotten(CallId, oneshot::Sender<bool>),
    HandedOver(CallId, oneshot::Sender<bool>),
}

/// Queues transitions.
#[derive(Clone)]
pub(super) struct Writer(mpsc::Sender<Transition>);

/// Writes what is queued.
pub(super) struct WriterTask {
    connection: CallConnection,
    queue: mpsc::Receiver<Transition>,
    /// Taken from the queue, not written yet.
    waiting: Vec<Transition>,
    /// Whether the next commit waits for others to join it.
    gathers: bool,
    outage: Outage,
}

impl Writer {
    pub(super) fn new(store: &Store, owner: Arc<str>, is_full: bool) -> (Self, WriterTask) {
        let (sender, queue) = mpsc::channel(QUEUED_MAX);
        let meanwhile = "calls with an `Idempotency-Key` and asynchronous ones are refused";
        let task = WriterTask {
            connection: store.call_connection(owner, is_full),
            queue,
            waiting: vec![],
            gathers: false,
            outage: Outage::new(store, "records of calls", meanwhile),
        };
        (Self(sender), task)
    }

    /// Queues a transition. Its receiver fails if the store does not confirm it.
    fn send(&self, make: impl FnOnce(oneshot::Sender<bool>) -> Transition) -> Confirmation {
        let (sender, receiver) = oneshot::channel();
        // There is room for two of each open call, and one waits for the other.
        let _ = self.0.try_send(make(sender));
        Confirmation(receiver)
    }

    pub(super) fn insert(&self, call: NewCall) -> Confirmation {
        self.send(|done| Transition::New(Box::new(call), done))
    }

    /// Notes that a call begins, or that a batch does: that one stays accepted.
    pub(super) fn begin(&self, id: CallId, at: i64, state: CallState) -> Confirmation {
        self.send(|done| Transition::Begun(BegunCall { id, at, state }, done))
    }

    /// Writes the end of a call, however long the store is away.
    pub(super) fn end(&self, call: EndedCall) -> Confirmation {
        self.send(|done| Transition::Ended(Box::new(call), done))
    }

    /// Deletes a call that did not run, however long the store is away.
    pub(super) fn forget(&self, id: CallId) -> Confirmation {
        self.send(|done| Transition::Forgotten(id, done))
    }

    /// Leaves an accepted call to any gateway.
    pub(super) fn hand_over(&self, id: CallId) -> Confirmation {
        self.send(|done| Transition::HandedOver(id, done))
    }
}

/// The store's word on one transition.
pub(super) struct Confirmation(oneshot::Receiver<bool>);

impl Confirmation {
    pub(super) async fn wait(&mut self) -> Result<bool, Unconfirmed> {
        (&mut self.0).await.map_err(|_| Unconfirmed)
    }
}

impl Transition {
    fn bytes(&self) -> usize {
        match self {
            Self::New(call, _) => call.arguments.as_ref().map_or(0, String::len),
            Self::Ended(call, _) => call.result.as_ref().map_or(0, String::len),
            Self::Begun(..) | Self::Forgotten(..) | Self::HandedOver(..) => 0,
        }
    }

    fn add_to<'a>(&'a self, batch: &mut CallBatch<'a>) {
        match self {
            Self::New(call, _) => batch.new.push(call),
            Self::Begun(call, _) => batch.begun.push(*call),
            Self::Ended(call, _) => batch.ended.push(call),
            Self::Forgotten(id, _) => batch.forgotten.push(*id),
            Self::HandedOver(id, _) => batch.handed_over.push(*id),
        }
    }

    fn confirm(self, written: &Written) {
        let (done, took_place) = match self {
            Self::New(call, done) => (done, written.new.contains(&call.id)),
            Self::Begun(call, done) => (done, written.begun.contains(&call.id)),
            Self::Ended(call, done) => (done, written.ended.contains(&call.id)),
            Self::Forgotten(_, done) | Self::HandedOver(_, done) => (done, true),
        };
        // Whoever waited may have left.
        let _ = done.send(took_place);
    }

    /// Returns the transition that must follow one that was not confirmed.
    fn after_failure(self) -> Option<Self> {
        match self {
            // The record may be there, and its call will not run.
            Self::New(call, _) => Some(Self::Forgotten(call.id, oneshot::channel().0)),
            // Whoever waits tries again, or ends the call.
            Self::Begun(..) => None,
            kept @ (Self::Ended(..) | Self::Forgotten(..) | Self::HandedOver(..)) => Some(kept),
        }
    }
}

impl WriterTask {
    /// Writes until the future is dropped, which loses nothing.
    pub(super) async fn run(&mut self) {
        loop {
            if self.waiting.is_empty() {
                self.queue.recv_many(&mut self.waiting, BATCH_MAX).await;
            }
            if mem::take(&mut self.gathers) {
                sleep(GATHER).await;
            }
            // Also beside ends that could not be written before.
            self.take_queued();
            if !self.write().await {
                sleep(RETRY_EVERY).await;
            }
        }
    }

    /// Writes all that is queued, once.
    pub(super) async fn flush(&mut self) {
        self.take_queued();
        while !self.waiting.is_empty() && self.write().await {
            self.take_queued();
        }
        if !self.waiting.is_empty() {
            let lost = self.waiting.len();
            tracing::error!(lost, "the ends of calls could not be written: they count as unknown");
        }
    }

    fn take_queued(&mut self) {
        while self.waiting.len() < BATCH_MAX
            && let Ok(transition) = self.queue.try_recv()
        {
            self.waiting.push(transition);
        }
    }

    /// Writes as many transitions as fit into one transaction. Returns whether the store took them.
    async fn write(&mut self) -> bool {
        let (mut fits, mut bytes) = (0, 0);
        for transition in &self.waiting {
            bytes += transition.bytes();
            if fits > 0 && bytes > BATCH_BYTES_MAX {
                break;
            }
            fits += 1;
        }
        let rest = self.waiting.split_off(fits.min(BATCH_MAX));
        let transitions = mem::replace(&mut self.waiting, rest);
        let is_written = self.commit(transitions).await;
        if !is_written {
            self.drop_results();
        }
        is_written
    }

    async fn commit(&mut self, transitions: Vec<Transition>) -> bool {
        let mut batch = CallBatch::default();
        transitions.iter().for_each(|transition| transition.add_to(&mut batch));
        let began = Instant::now();
        match self.connection.write(&batch).await {
            Ok(written) => {
                self.outage.note(Ok(()));
                self.gathers = transitions.len() > 1 && began.elapsed() >= GATHER_FROM;
                transitions.into_iter().for_each(|transition| transition.confirm(&written));
                true
            }
            // A value of one of them, which must not stop the others.
            Err(StoreError::InvalidValue(_)) if transitions.len() > 1 => {
                let mut transitions = transitions.into_iter();
                while let Some(transition) = transitions.next() {
                    if !Box::pin(self.commit(vec![transition])).await {
                        self.waiting.extend(transitions);
                        return false;
                    }
                }
                true
            }
            Err(StoreError::InvalidValue(cause)) => {
                tracing::error!(%cause, "the store refuses the record of a call");
                self.waiting.extend(transitions.into_iter().filter_map(without_result));
                true
            }
            Err(error) => {
                self.outage.note::<()>(Err(error));
                self.waiting.extend(transitions.into_iter().filter_map(Transition::after_failure));
                false
            }
        }
    }

    /// Gives up the oldest results beyond the bound.
    fn drop_results(&mut self) {
        let mut bytes: usize = self.waiting.iter().map(Transition::bytes).sum();
        for transition in &mut self.waiting {
            if bytes <= UNWRITTEN_BYTES_MAX {
                return;
            }
            bytes -= transition.bytes();
            if let Transition::Ended(call, _) = transition {
                (call.result, call.result_len) = (None, 0);
            }
        }
    }
}

/// Returns the end of a call without the answer that the store refuses, if it has one.
fn without_result(transition: Transition) -> Option<Transition> {
    match transition {
        Transition::Ended(mut call, done) if call.result.is_some() => {
            (call.result, call.result_len) = (None, 0);
            Some(Transition::Ended(call, done))
        }
        _ => None,
    }
}
