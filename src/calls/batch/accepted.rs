//! Batches that are answered asynchronously.
//!
//! The record of a batch stays *accepted* until it ends, and has its text. Each of its calls has a
//! record and a key of its own. So another gateway may take the batch over at any time: it runs
//! what is missing, and finds the outcomes of the rest.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::outcome::{ItemOutcome, Problem, write_all};
use super::request::{Batch, CALLS_MAX};
use super::{ItemError, Options, Rights, RunningBatch};
use crate::calls::accepted::{ACCEPTED_BYTES, STORE_PAUSE};
use crate::calls::account::Account;
use crate::calls::keyed::{SettleGuard, identity_of_new, store_is_away};
use crate::calls::open_calls::{Identity, OpenCall, Settlement};
use crate::calls::storing::Part;
use crate::calls::{
    Calls, CallsInner, Details, Fingerprint, Head, IdempotencyKey, Outcome, OutcomeKind, Ran,
    Refusal, Ticket,
};
use crate::common::byte_budget::{BytePermit, NoRoom};
use crate::common::ids::{CallId, ServerId, TenantId};
use crate::gateway::{CallError, Caller};
use crate::store::{CallState, ClaimedCall};

/// The record of a batch names this server, and no tool.
const SERVER: &str = "batch";

/// The part of an asynchronous batch's request that its record keeps, beside its text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchDetails {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<IdempotencyKey>,
    pub tool_errors_fail: bool,
}

/// A batch that is not over.
struct AcceptedBatch {
    text: Bytes,
    details: Details,
    /// When it began at a gateway that is gone, in milliseconds since 1970.
    begun: Option<i64>,
    _place: BatchPlace,
}

/// One of its tenant's batches, and the bytes of its text.
struct BatchPlace {
    _one: OwnedSemaphorePermit,
    _bytes: BytePermit,
}

/// Ends a batch before its calls have ended.
pub(super) struct Stop {
    /// Cancelled when the gateway begins no more calls.
    closing: CancellationToken,
    /// Cancelled by the batch's caller.
    cancel: CancellationToken,
}

/// A tenant, under its present policy.
struct TenantRights {
    calls: Arc<CallsInner>,
    tenant: TenantId,
}

impl Rights for TenantRights {
    async fn caller(&self) -> Result<Caller, Problem> {
        let tenant = self.calls.tenant(&self.tenant);
        let gone = || ItemError::Call(CallError::ServerNotFound { server: String::new() });
        tenant.map(Caller::of).ok_or_else(|| (self.calls.render_item)(gone(), None))
    }
}

impl Stop {
    pub(super) fn is_asked(&self) -> bool {
        self.closing.is_cancelled() || self.cancel.is_cancelled()
    }

    pub(super) async fn asked(&self) {
        tokio::select! {
            () = self.closing.cancelled() => {}
            () = self.cancel.cancelled() => {}
        }
    }

    pub(super) async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }
}

impl Calls {
    /// Accepts a batch, whose text was checked. The ticket waits for its answer.
    pub fn submit_batch(
        &self,
        caller: &Caller,
        text: Bytes,
        details: Details,
    ) -> Result<Ticket, Refusal> {
        let tenant = caller.tenant.id.clone();
        let account = self.0.accounts.of(&tenant);
        let fingerprint = Fingerprint::of(&text);
        let open = OpenCall::new(CallId::generate(), tenant, None, fingerprint, account, false);
        let batch = AcceptedBatch { _place: place(&open, &text)?, text, details, begun: None };
        self.0.open.find_or_add(&open)?;
        let ticket = Ticket::first(open.clone());
        self.0.tasks.spawn(self.0.clone().accept_batch(open, batch));
        Ok(ticket)
    }
}

fn place(open: &OpenCall, text: &Bytes) -> Result<BatchPlace, Refusal> {
    let Account { batches, accepted_bytes, .. } = &*open.account;
    let too_many = |_| Refusal::TooManyAccepted(open.account.batches_use());
    let one = batches.clone().try_acquire_owned().map_err(too_many)?;
    let bytes = accepted_bytes.take(text.len()).map_err(|no_room| match no_room {
        NoRoom::Tenant { .. } => Refusal::TooManyAccepted(accepted_bytes.limit_use(ACCEPTED_BYTES)),
        NoRoom::All { .. } => Refusal::Overloaded,
    })?;
    Ok(BatchPlace { _one: one, _bytes: bytes })
}

impl CallsInner {
    /// Accepts a batch, durably, and runs it. Settles `open` in time.
    async fn accept_batch(self: Arc<Self>, open: Arc<OpenCall>, batch: AcceptedBatch) {
        let guard = SettleGuard::new(self.clone(), open.clone());
        match self.keep_batch(&open, &batch).await {
            Ok(identity) => self.run_batch(&open, identity, batch).await,
            Err(settlement) => self.settle(&open, settlement),
        }
        guard.disarm();
    }

    async fn keep_batch(
        &self,
        open: &OpenCall,
        batch: &AcceptedBatch,
    ) -> Result<Identity, Settlement> {
        self.has_room(open).map_err(Settlement::refused)?;
        let server = ServerId::parse(SERVER).expect("a valid id");
        let mut new = self.new_record(open, &server, "", &batch.details, CallState::Accepted);
        let text = String::from_utf8_lossy(&batch.text).into_owned();
        new.arguments = Some(self.vault.seal(open.id, Part::Arguments, text).await);
        let identity = identity_of_new(open, new.expires);
        match self.writer.insert(new).wait().await {
            Ok(true) => {
                open.account.add(1, 0);
                open.opened(identity.clone(), CallState::Accepted);
                Ok(identity)
            }
            Ok(false) | Err(_) => Err(store_is_away()),
        }
    }

    /// Takes up a batch of a gateway that is gone.
    pub(in crate::calls) async fn take_up_batch(self: &Arc<Self>, claimed: ClaimedCall) {
        let ClaimedCall { id, tenant, fingerprint, request, arguments, begun, expires, .. } =
            claimed;
        let account = self.accounts.of(&tenant);
        let fingerprint = Fingerprint::stored(fingerprint);
        let open = OpenCall::new(id, tenant, None, fingerprint, account, false);
        let Ok(None) = self.open.find_or_add(&open) else { return };
        let Some(text) = self.vault.open(id, Part::Arguments, arguments).await else {
            // Sealed by a key that is gone.
            return self.keep(&open, Err(Refusal::ResultGone), true).await;
        };
        let Ok(place) = place(&open, &text) else {
            // Too many at once: another gateway may have room, or this one later.
            return self.hand_over(&open).await;
        };
        let details = Details::stored(&request);
        let (calls, batch) = (self.clone(), AcceptedBatch { text, details, begun, _place: place });
        let identity = identity_of_new(&open, expires);
        open.opened(identity.clone(), CallState::Accepted);
        self.tasks.spawn(async move {
            let guard = SettleGuard::new(calls.clone(), open.clone());
            calls.run_batch(&open, identity, batch).await;
            guard.disarm();
        });
    }

    /// Runs an accepted batch when its tenant's other ones leave room.
    async fn run_batch(
        self: Arc<Self>,
        open: &Arc<OpenCall>,
        identity: Identity,
        batch: AcceptedBatch,
    ) {
        let stop = Stop { closing: self.closing.clone(), cancel: open.cancel.clone() };
        let turn = tokio::select! {
            turn = open.account.batch_turns.acquire() => Some(turn),
            () = stop.asked() => None,
        };
        let mut executed = Ran::No;
        if turn.is_some() && self.begin_batch(open, &stop).await {
            open.opened(identity, CallState::Begun);
            executed = Ran::Unknown;
            if let Some(outcome) = self.make_batch(open, batch, stop).await {
                return self.keep(open, Ok(outcome), true).await;
            }
        }
        if open.cancel.is_cancelled() {
            return self.keep(open, Err(Refusal::Cancelled { executed }), true).await;
        }
        if self.closing.is_cancelled() {
            return self.hand_over(open).await;
        }
        // Another gateway has it.
        self.settle_by_record(open).await;
    }

    /// Notes that the batch runs, however long the store is away. Returns whether it may.
    async fn begin_batch(&self, open: &OpenCall, stop: &Stop) -> bool {
        loop {
            let mut begun = self.writer.begin(open.id, self.clock.now(), CallState::Accepted);
            if let Ok(may_run) = begun.wait().await {
                return may_run;
            }
            tokio::select! {
                () = sleep(STORE_PAUSE) => {}
                () = stop.asked() => return false,
            }
        }
    }

    /// Returns the answer to a batch, unless it was stopped.
    async fn make_batch(
        self: &Arc<Self>,
        open: &OpenCall,
        batch: AcceptedBatch,
        stop: Stop,
    ) -> Option<Outcome> {
        let AcceptedBatch { text, mut details, begun, _place } = batch;
        let len = text.len();
        let parse = move || Batch::parse(&text, CALLS_MAX);
        let mut parsed = match self.gateway.offload().run_if_long(len, parse).await {
            Ok(parsed) => parsed,
            // Accepted by a gateway of another version.
            Err(error) => {
                let error = CallError::InvalidRequest(error.to_string());
                return Some(Outcome::of_error(&error, open.id, self.render));
            }
        };
        let BatchDetails { key, tool_errors_fail } = details.batch.take().unwrap_or_default();
        // Without a key of its caller's, the calls have one that only this batch has.
        let key = Some(key.unwrap_or_else(|| IdempotencyKey::of_batch(open.id)));
        details.is_async = false;
        let rights = TenantRights { calls: self.clone(), tenant: open.tenant.clone() };
        if let Some(tenant) = self.tenant(&open.tenant) {
            parsed.limit_concurrency(&tenant);
        }
        let options = Options { key, details, tool_errors_fail, wait: None };
        let calls = Calls(self.clone());
        let arrived = self.clock.instant(begun.unwrap_or_else(|| self.clock.now()));
        let running = RunningBatch::new(&calls, rights, parsed, options, arrived);
        let running = running.asynchronous(stop, open.account.batch_results.clone());
        let mut outcomes: Vec<Option<ItemOutcome>> =
            running.batch.calls.iter().map(|_| None).collect();
        running.run(|call, outcome| outcomes[call] = Some(outcome)).await;
        let outcomes: Option<Vec<_>> = outcomes.into_iter().collect();
        let is_stopped = running.stop.as_ref().is_some_and(Stop::is_asked);
        let outcomes = outcomes.filter(|_| !is_stopped)?;
        let head = Head {
            status: running.options.status(&outcomes),
            outcome: OutcomeKind::Ok,
            executed: Ran::Yes,
            code: None,
            attempts: 0,
            queue_us: 0,
            backend_us: 0,
        };
        let ids = running.batch.calls.into_iter().map(|call| call.id).collect();
        let pieces: Vec<Bytes> = write_all(ids, outcomes).collect();
        let body = pieces.concat().into();
        Some(Outcome { head, body, held: None, retry_after: None })
    }
}
