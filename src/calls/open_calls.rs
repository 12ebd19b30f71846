//! The kept calls that are under way here: running, waiting to begin, or followed because another
//! gateway runs them. Whoever asks for one of them waits here, not in the store.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::account::Account;
use super::key::{Fingerprint, Scope};
use super::outcome::Outcome;
use super::refusal::Refusal;
use crate::common::ids::{CallId, TenantId};
use crate::common::limit_use::LimitUse;
use crate::store::CallState;

/// All tenants' kept calls under way: a few kilobytes each.
pub(super) const OPEN_MAX: usize = 65_536;
/// Requests that wait for one call, beside its first.
const WAITERS_OF_CALL_MAX: u32 = 64;
/// Requests of one tenant that wait for calls, beside the first of each.
pub(super) const WAITERS_OF_TENANT_MAX: u32 = 1024;
/// Calls rarely wait for each other's lock.
const SHARDS: usize = 16;

/// A call whose record stays as the rules say.
const KEPT: u8 = 0;
/// A call that becomes a task if it is slow; its caller was not told yet.
const UNTOLD: u8 = 1;
/// A call whose caller was told of a task.
const TOLD: u8 = 2;
/// A call that was over before that, so nobody can ask for it.
const FORGOTTEN: u8 = 3;

pub(super) struct OpenCalls {
    len: AtomicUsize,
    by_scope: [Mutex<HashMap<Scope, Arc<OpenCall>>>; SHARDS],
    by_id: [Mutex<HashMap<CallId, Arc<OpenCall>>>; SHARDS],
}

pub struct OpenCall {
    /// The id that it has if it turns out to be new.
    pub(super) id: CallId,
    pub(super) tenant: TenantId,
    pub(super) scope: Option<Scope>,
    /// Of the arguments that it was first asked for with.
    pub(super) fingerprint: Fingerprint,
    pub(super) account: Arc<Account>,
    /// Whether somebody is to be told of the end.
    pub(super) has_callback: bool,
    pub(super) phase: watch::Sender<Phase>,
    /// Whether a request waits for more than the end.
    is_watched: AtomicBool,
    /// One of [`KEPT`], [`UNTOLD`], [`TOLD`] and [`FORGOTTEN`].
    fate: AtomicU8,
    pub(super) cancel: CancellationToken,
    waiters: AtomicU32,
}

/// The progress of an open call.
#[derive(Clone, Debug)]
pub enum Phase {
    /// The store is asked whether the call is new.
    Deciding,
    Open(Identity, CallState),
    Over(Settlement),
}

/// The identity of a call by its record.
#[derive(Clone, Debug)]
pub struct Identity {
    pub id: CallId,
    pub fingerprint: Fingerprint,
    /// In milliseconds since 1970.
    pub expires: i64,
}

/// The end of an open call.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// `None` if there is no record.
    pub identity: Option<Identity>,
    /// Whether the outcome was kept before this request came.
    pub is_replay: bool,
    pub result: Result<Arc<Outcome>, Refusal>,
}

/// Counts a request that waits, until dropped.
struct WaiterPermit(Arc<OpenCall>);

/// A request's claim on the outcome of an open call.
pub struct Ticket {
    pub(super) call: Arc<OpenCall>,
    fingerprint: Fingerprint,
    /// Whether this request has begun the call.
    is_first: bool,
    phase: watch::Receiver<Phase>,
    _waiter: Option<WaiterPermit>,
}

/// The outcome as one request is to be answered.
#[derive(Clone, Debug)]
pub struct Answer {
    pub id: CallId,
    pub outcome: Arc<Outcome>,
    /// Whether this request did not begin the call.
    pub is_replay: bool,
}

/// The result of waiting for a call.
#[derive(Clone, Debug)]
pub enum Waited {
    Answered(Answer),
    /// The call still runs, or waits to begin.
    Open(Identity, CallState),
    /// The store was still being asked.
    Undecided,
}

impl OpenCalls {
    pub(super) fn new() -> Self {
        Self { len: AtomicUsize::new(0), by_scope: Default::default(), by_id: Default::default() }
    }

    /// Returns the open call of this scope; or adds `call`, and returns `None`.
    pub(super) fn find_or_add(
        &self,
        call: &Arc<OpenCall>,
    ) -> Result<Option<Arc<OpenCall>>, Refusal> {
        if let Some(scope) = call.scope {
            let mut shard = self.by_scope[usize::from(scope.first_byte()) % SHARDS].lock();
            match shard.entry(scope) {
                Entry::Occupied(known) => return Ok(Some(known.get().clone())),
                Entry::Vacant(place) => {
                    self.count()?;
                    place.insert(call.clone());
                }
            }
        } else {
            self.count()?;
        }
        self.shard_of(call.id).lock().insert(call.id, call.clone());
        Ok(None)
    }

    fn count(&self) -> Result<(), Refusal> {
        if self.len.fetch_add(1, Ordering::Relaxed) < OPEN_MAX {
            return Ok(());
        }
        self.len.fetch_sub(1, Ordering::Relaxed);
        Err(Refusal::Overloaded)
    }

    pub(super) fn by_scope(&self, scope: Scope) -> Option<Arc<OpenCall>> {
        self.by_scope[usize::from(scope.first_byte()) % SHARDS].lock().get(&scope).cloned()
    }

    pub(super) fn by_id(&self, id: CallId) -> Option<Arc<OpenCall>> {
        self.shard_of(id).lock().get(&id).cloned()
    }

    pub(super) fn remove(&self, call: &OpenCall) {
        // First: whoever finds no call with this id may use its key again.
        if let Some(scope) = call.scope {
            let mut shard = self.by_scope[usize::from(scope.first_byte()) % SHARDS].lock();
            if shard.get(&scope).is_some_and(|known| known.id == call.id) {
                shard.remove(&scope);
            }
        }
        if self.shard_of(call.id).lock().remove(&call.id).is_some() {
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn shard_of(&self, id: CallId) -> &Mutex<HashMap<CallId, Arc<OpenCall>>> {
        &self.by_id[usize::from(id.last_byte()) % SHARDS]
    }
}

impl OpenCall {
    pub(super) fn new(
        id: CallId,
        tenant: TenantId,
        scope: Option<Scope>,
        fingerprint: Fingerprint,
        account: Arc<Account>,
        has_callback: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            tenant,
            scope,
            fingerprint,
            account,
            has_callback,
            phase: watch::Sender::new(Phase::Deciding),
            is_watched: AtomicBool::new(false),
            fate: AtomicU8::new(KEPT),
            cancel: CancellationToken::new(),
            waiters: AtomicU32::new(0),
        })
    }

    /// Makes this a call whose record is forgotten unless it becomes a task.
    pub(super) fn may_become_task(&self) {
        self.fate.store(UNTOLD, Ordering::Release);
    }

    /// Returns whether nobody will ask for the call, which has ended. None can become a task then.
    pub(super) fn is_forgotten(&self) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.fate.compare_exchange(UNTOLD, FORGOTTEN, success, failure).is_ok()
    }

    pub(super) fn opened(&self, identity: Identity, state: CallState) {
        self.phase.send_if_modified(|phase| {
            *phase = Phase::Open(identity, state);
            // Most calls have one request, which waits for the end: it is not woken.
            self.is_watched.load(Ordering::Relaxed)
        });
    }

    /// Has the requests woken when the call begins. Called before the phase is read: whoever
    /// changes it later sees this, since the phase has a lock.
    fn watch(&self) {
        self.is_watched.store(true, Ordering::Relaxed);
    }

    /// Waits for the end of the call.
    pub(super) async fn over(&self) -> Option<Settlement> {
        let mut phase = self.phase.subscribe();
        let over = phase.wait_for(|phase| matches!(phase, Phase::Over(_))).await.ok()?;
        if let Phase::Over(settlement) = &*over { Some(settlement.clone()) } else { None }
    }

    /// Returns whether nobody waits for the call any more.
    pub(super) fn is_left(&self) -> bool {
        self.phase.receiver_count() == 0
    }

    fn wait(self: &Arc<Self>) -> Result<WaiterPermit, Refusal> {
        let of_call = self.waiters.fetch_add(1, Ordering::Relaxed);
        let of_tenant = self.account.waiters.fetch_add(1, Ordering::Relaxed);
        let permit = WaiterPermit(self.clone());
        if of_call < WAITERS_OF_CALL_MAX && of_tenant < WAITERS_OF_TENANT_MAX {
            return Ok(permit);
        }
        // Without this request, which counts as long as the permit lives.
        let limit = match of_call < WAITERS_OF_CALL_MAX {
            true => self.account.waiters_use(of_tenant),
            false => LimitUse::reached("waiting_requests_of_call", WAITERS_OF_CALL_MAX as usize),
        };
        Err(Refusal::TooManyWaiters(limit))
    }
}

impl Drop for WaiterPermit {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::Relaxed);
        self.0.account.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Settlement {
    pub(super) fn refused(refusal: Refusal) -> Self {
        Self { identity: None, is_replay: false, result: Err(refusal) }
    }
}

impl Ticket {
    pub(super) fn first(call: Arc<OpenCall>) -> Self {
        let (phase, fingerprint) = (call.phase.subscribe(), call.fingerprint.clone());
        Self { call, fingerprint, is_first: true, phase, _waiter: None }
    }

    pub(super) fn attached(call: Arc<OpenCall>, fingerprint: Fingerprint) -> Result<Self, Refusal> {
        let waiter = Some(call.wait()?);
        // It may have other arguments, which is known before the end.
        call.watch();
        let phase = call.phase.subscribe();
        Ok(Self { call, fingerprint, is_first: false, phase, _waiter: waiter })
    }

    /// Waits for the end of the call, at most until `deadline`.
    pub async fn wait(&mut self, deadline: Instant) -> Result<Waited, Refusal> {
        loop {
            let seen = self.look()?;
            if matches!(seen, Waited::Answered(_)) {
                return Ok(seen);
            }
            match timeout_at(deadline, self.phase.changed()).await {
                Ok(Ok(())) => {}
                // The sender is part of the call that this ticket holds.
                Ok(Err(_)) | Err(_) => return self.look(),
            }
        }
    }

    fn look(&mut self) -> Result<Waited, Refusal> {
        let phase = self.phase.borrow_and_update().clone();
        match phase {
            Phase::Deciding => Ok(Waited::Undecided),
            Phase::Open(identity, state) => {
                self.must_match(&identity)?;
                Ok(Waited::Open(identity, state))
            }
            Phase::Over(settlement) => self.answer(settlement),
        }
    }

    /// Waits for the outcome of the call. The deadline ends the waiting, not the call.
    pub async fn outcome(&mut self, deadline: Instant) -> Result<Answer, Refusal> {
        match self.wait(deadline).await? {
            Waited::Answered(answer) => Ok(answer),
            Waited::Open(identity, _) => Err(Refusal::StillRunning(identity.id)),
            Waited::Undecided => Err(Refusal::Undecided),
        }
    }

    /// Makes the call a task, whose record is kept. Returns false if it has ended: then there is an
    /// outcome in a moment.
    pub fn hand_over(&self) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.call.fate.compare_exchange(UNTOLD, TOLD, success, failure).is_ok()
    }

    /// Cancels the call, whoever else waits for it.
    pub fn cancel(&self) {
        self.call.cancel.cancel();
    }

    /// Waits until the store has decided whether the call is new, at most until `deadline`.
    pub async fn decided(&mut self, deadline: Instant) -> Result<Waited, Refusal> {
        self.call.watch();
        let is_decided = |phase: &Phase| !matches!(phase, Phase::Deciding);
        let _ = timeout_at(deadline, self.phase.wait_for(is_decided)).await;
        self.wait(Instant::now()).await
    }

    /// Returns whether another request has begun the call, here or elsewhere.
    pub fn is_retry(&self) -> bool {
        let is_own = match &*self.phase.borrow() {
            Phase::Deciding => true,
            Phase::Open(identity, _) => identity.id == self.call.id,
            Phase::Over(settlement) => !settlement.is_replay,
        };
        !(self.is_first && is_own)
    }

    /// Returns the identity of the call that this request has begun, and its state.
    pub fn begun(&self) -> Option<(Identity, CallState)> {
        if self.is_retry() {
            return None;
        }
        match &*self.phase.borrow() {
            Phase::Deciding => None,
            Phase::Open(identity, state) => Some((identity.clone(), *state)),
            Phase::Over(settlement) => Some((settlement.identity.clone()?, CallState::Ended)),
        }
    }

    /// Returns the id of a call that was over before this request came, if there is a record of it.
    pub fn replayed(&self) -> Option<CallId> {
        match &*self.phase.borrow() {
            Phase::Over(settlement) if self.is_retry() => {
                let identity = settlement.identity.as_ref()?;
                (identity.fingerprint == self.fingerprint).then_some(identity.id)
            }
            _ => None,
        }
    }

    fn must_match(&self, identity: &Identity) -> Result<(), Refusal> {
        if identity.fingerprint == self.fingerprint { Ok(()) } else { Err(Refusal::Mismatch) }
    }

    fn answer(&self, settlement: Settlement) -> Result<Waited, Refusal> {
        if let Some(identity) = &settlement.identity {
            self.must_match(identity)?;
        }
        let id = settlement.identity.map_or(self.call.id, |identity| identity.id);
        let is_replay = settlement.is_replay || !self.is_first;
        Ok(Waited::Answered(Answer { id, outcome: settlement.result?, is_replay }))
    }
}
