//! Runs a call with an idempotency key, or finds out what became of it. The task goes on if its
//! request hangs up.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::CallsInner;
use super::callback::event::CalledTool;
use super::open_calls::{Identity, OpenCall, Phase, Settlement};
use super::outcome::{CANCELLED, Head, OUTCOME_UNKNOWN, Outcome, Ran};
use super::record::{Keeping, keeping};
use super::refusal::Refusal;
use super::request::{CallRequest, Details};
use super::storing::StoredText;
use super::writer::Confirmation;
use crate::common::ids::{CallId, ServerId};
use crate::gateway::{CallError, Caller, RefusedCall};
use crate::store::{CallState, EndedCall, NewCall, NewCallback};
use crate::tenants::limits::{Admission, Cost};

/// A key whose record comes and goes this often while it is read is somebody's race.
pub(super) const ROUNDS_MAX: u32 = 8;
/// How long answers wait for their outcome to be kept.
const SETTLE_WAIT: Duration = Duration::from_secs(3);
/// The longest pause between looks at a call that another gateway runs, or at the store.
pub(super) const LOOK_MAX: Duration = Duration::from_millis(500);
/// The first attempt at a call may run for this long after it was given up.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// A long answer is written in parts; each failure is retried so often.
const PARTS_TRIES: u32 = 10;

/// Why a call does not go on here.
pub(super) type Refused = Settlement;

impl CallsInner {
    /// Runs the call of a key that nobody has, or follows the one that has it. Settles `open`.
    pub(super) async fn run_keyed(
        self: Arc<Self>,
        open: Arc<OpenCall>,
        caller: Caller,
        request: CallRequest,
    ) {
        let guard = SettleGuard::new(self.clone(), open.clone());
        match self.admit_keyed(&open, &caller, &request).await {
            Ok(admission) => self.run(&open, &caller, &request, admission).await,
            Err(settlement) => self.settle(&open, settlement),
        }
        guard.disarm();
    }

    /// Marks the call as begun. Returns its permits, or the settlement of a call that is not new.
    async fn admit_keyed(
        &self,
        open: &Arc<OpenCall>,
        caller: &Caller,
        request: &CallRequest,
    ) -> Result<Admission, Refused> {
        for _ in 0..ROUNDS_MAX {
            // A tenant at a bound of its own may still ask for calls that it made before.
            let (admission, refusal) = match self.hold(open, caller, request).await {
                Ok(admission) => (Some(admission), None),
                Err(refusal) => (None, Some(refusal)),
            };
            if let Some(admission) = admission {
                let new = self.new_call(open, request, CallState::Begun);
                let identity = identity_of_new(open, new.expires);
                match self.writer.insert(new).wait().await {
                    Ok(true) => {
                        open.account.add(1, 0);
                        open.opened(identity, CallState::Begun);
                        return Ok(admission);
                    }
                    Ok(false) => drop(admission),
                    Err(_) => return Err(store_is_away()),
                }
            }
            match (self.record_of_key(open, caller).await, refusal) {
                (Ok(Some(record)), _) => self.follow(open, caller, request, record).await?,
                (Ok(None), Some(refusal)) => return Err(refusal),
                // Forgotten since: its first call did not run.
                (Ok(None), None) => {}
                (Err(_), _) => return Err(store_is_away()),
            }
        }
        Err(Settlement::refused(Refusal::Overloaded))
    }

    /// Takes the permit of a call that begins; it was charged before.
    async fn hold(
        &self,
        open: &OpenCall,
        caller: &Caller,
        request: &CallRequest,
    ) -> Result<Admission, Settlement> {
        self.has_room(open).map_err(Settlement::refused)?;
        let admission = caller.tenant.admit(Cost::PaidCall).await;
        admission.map_err(|refusal| {
            let error = CallError::from(refusal);
            self.tell_refused(open, caller, request, &error);
            self.failed(open.id, &error)
        })
    }

    /// Returns the settlement of a call that was refused before it had a record.
    pub(super) fn failed(&self, call: CallId, error: &CallError) -> Settlement {
        let outcome = Arc::new(Outcome::of_error(error, call, self.render));
        Settlement { identity: None, is_replay: false, result: Ok(outcome) }
    }

    fn tell_refused(
        &self,
        open: &OpenCall,
        caller: &Caller,
        request: &CallRequest,
        error: &CallError,
    ) {
        self.gateway.tell_refused(RefusedCall {
            id: open.id,
            caller,
            tags: request.details.tags(),
            server: request.server.id().as_str(),
            target: &request.tool,
            arrived: Instant::now(),
            deadline: Some(Instant::now() + request.details.timeout()),
            size: request.arguments.byte_len(),
            code: error.code(),
            error: Some(error),
            traced: request.sample(self.gateway.sampler()),
        });
    }

    pub(super) fn has_room(&self, open: &OpenCall) -> Result<(), Refusal> {
        let records = open.account.records_use(&self.config);
        if Some(records.used) < records.value {
            return Ok(());
        }
        Err(Refusal::TooManyRecords(records))
    }

    pub(super) fn new_call(
        &self,
        open: &OpenCall,
        request: &CallRequest,
        state: CallState,
    ) -> NewCall {
        self.new_record(open, request.server.id(), &request.tool, &request.details, state)
    }

    pub(super) fn new_record(
        &self,
        open: &OpenCall,
        server: &ServerId,
        tool: &str,
        details: &Details,
        state: CallState,
    ) -> NewCall {
        let created = self.clock.now();
        let ttl = i64::try_from(self.config.ttl.as_millis()).unwrap_or(i64::MAX / 2);
        NewCall {
            id: open.id,
            tenant: open.tenant.clone(),
            scope: open.scope.map(|scope| scope.text()),
            fingerprint: open.fingerprint.as_str().to_owned(),
            server: server.clone(),
            tool: tool.to_owned(),
            state,
            owner: self.owners.me.clone(),
            request: details.json(),
            arguments: None,
            labels: details.labels.clone(),
            callback: new_callback(server, tool, details, created),
            created,
            expires: created + ttl,
        }
    }

    /// Makes the call, keeps its outcome, and settles it.
    async fn run(
        &self,
        open: &Arc<OpenCall>,
        caller: &Caller,
        request: &CallRequest,
        admission: Admission,
    ) {
        let call = request.call(open.id, None, self.gateway.sampler());
        let result = tokio::select! {
            result = self.gateway.call(caller, admission, &call) => {
                Ok(Outcome::of(result, open.id, self.render))
            }
            // Dropping the call cancels it.
            () = open.cancel.cancelled() => Err(Refusal::Cancelled { executed: Ran::Unknown }),
        };
        drop(call);
        self.keep(open, result, request.details.is_async).await;
    }

    /// Keeps what must be kept of an ended call, and settles it.
    pub(super) async fn keep(
        &self,
        open: &Arc<OpenCall>,
        result: Result<Outcome, Refusal>,
        has_known_id: bool,
    ) {
        let executed = match &result {
            Ok(outcome) => outcome.head.executed,
            Err(refusal) => refusal.executed(),
        };
        let keeping = match open.is_forgotten() {
            true => Keeping::Nothing,
            false => keeping(executed, has_known_id),
        };
        let mut confirmation = match keeping {
            Keeping::Nothing => self.writer.forget(open.id),
            Keeping::Outcome | Keeping::WithoutKey => {
                let ended = self.ended(open, &result, keeping == Keeping::WithoutKey).await;
                open.account.add(0, ended.result_len);
                self.writer.end(ended)
            }
        };
        if keeping == Keeping::Nothing {
            open.account.add(-1, 0);
        }
        let identity = match &*open.phase.borrow() {
            Phase::Open(identity, _) => Some(identity.clone()),
            Phase::Deciding | Phase::Over(_) => None,
        };
        let result = result.map(Arc::new);
        let settlement = Settlement { identity, is_replay: false, result };
        if timeout(SETTLE_WAIT, confirmation.wait()).await.is_ok_and(|kept| kept.is_ok()) {
            return self.settle(open, settlement);
        }
        self.settle_later(open, settlement, keeping, confirmation).await;
    }

    /// Answers those who wait, although the store has not confirmed the outcome yet. The call stays
    /// open until it has: no retry may run it.
    async fn settle_later(
        &self,
        open: &Arc<OpenCall>,
        settlement: Settlement,
        keeping: Keeping,
        mut confirmation: Confirmation,
    ) {
        let now = match keeping {
            // The truth, whatever the store says.
            Keeping::Nothing => settlement,
            Keeping::Outcome | Keeping::WithoutKey => {
                let refusal = Refusal::StoreUnavailable { executed: Ran::Unknown };
                Settlement { result: Err(refusal), ..settlement }
            }
        };
        open.phase.send_replace(Phase::Over(now));
        let _ = confirmation.wait().await;
        self.open.remove(open);
    }

    async fn ended(
        &self,
        open: &OpenCall,
        result: &Result<Outcome, Refusal>,
        frees_key: bool,
    ) -> EndedCall {
        let nothing = StoredText { inline: None, parts: 0, len: 0 };
        let (head, text) = match result {
            Ok(outcome) => (outcome.head.clone(), self.store_answer(open, outcome).await),
            Err(refusal) => (Head::without_answer(refusal.code(), refusal.executed()), nothing),
        };
        self.ended_with(open, &head, text, frees_key)
    }

    pub(super) fn ended_with(
        &self,
        open: &OpenCall,
        head: &Head,
        text: StoredText,
        frees_key: bool,
    ) -> EndedCall {
        EndedCall {
            id: open.id,
            tenant: open.tenant.clone(),
            owner: self.owners.me.clone(),
            at: self.clock.now(),
            head: head.json(),
            result: text.inline,
            result_len: text.len,
            parts: text.parts,
            frees_key,
            has_callback: open.has_callback,
        }
    }

    /// Writes a long answer beside its record. One that cannot be written is lost; that the call
    /// ran is not.
    async fn store_answer(&self, open: &OpenCall, outcome: &Outcome) -> StoredText {
        for _ in 0..PARTS_TRIES {
            match self.vault.put_answer(open.id, &outcome.body).await {
                Ok(text) => return text,
                Err(error) => tracing::debug!(%error, call = %open.id, "a result is not kept yet"),
            }
            sleep(LOOK_MAX).await;
        }
        tracing::warn!(call = %open.id, "a result could not be kept");
        StoredText { inline: None, parts: 0, len: 0 }
    }

    /// Ends an open call: whoever comes now is answered by the store.
    pub(super) fn settle(&self, open: &OpenCall, settlement: Settlement) {
        self.open.remove(open);
        open.phase.send_replace(Phase::Over(settlement));
        if open.has_callback {
            self.callbacks.look();
        }
    }
}

fn new_callback(
    server: &ServerId,
    tool: &str,
    details: &Details,
    created: i64,
) -> Option<NewCallback> {
    let url = details.callback.clone()?;
    let called = CalledTool {
        server: server.to_string(),
        tool: tool.to_owned(),
        labels: details.labels.clone(),
        request_id: details.request_id.clone(),
        created,
    };
    Some(NewCallback { url, about: called.json() })
}

/// Returns the identity of a call whose record is `open`'s.
pub(super) fn identity_of_new(open: &OpenCall, expires: i64) -> Identity {
    Identity { id: open.id, fingerprint: open.fingerprint.clone(), expires }
}

pub(super) fn store_is_away() -> Settlement {
    Settlement::refused(Refusal::StoreUnavailable { executed: Ran::No })
}

/// Ends a call as unknown if its task panics, so that nobody waits for it for ever.
pub(super) struct SettleGuard(Option<(Arc<CallsInner>, Arc<OpenCall>)>);

impl SettleGuard {
    pub(super) fn new(calls: Arc<CallsInner>, open: Arc<OpenCall>) -> Self {
        Self(Some((calls, open)))
    }

    pub(super) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for SettleGuard {
    fn drop(&mut self) {
        let Some((calls, open)) = self.0.take() else { return };
        let head = Head::without_answer(OUTCOME_UNKNOWN, Ran::Unknown);
        let text = StoredText { inline: None, parts: 0, len: 0 };
        let _ = calls.writer.end(calls.ended_with(&open, &head, text, false));
        calls.settle(&open, Settlement::refused(Refusal::OutcomeUnknown));
    }
}

/// The head of a call that was cancelled before it began.
pub(super) fn cancelled_before() -> Head {
    Head::without_answer(CANCELLED, Ran::No)
}
