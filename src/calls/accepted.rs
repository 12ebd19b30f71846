//! Asynchronous calls: accepted now, begun when their tenant has a permit. Each tenant's calls
//! begin in turn; one that a limit of its server or tool holds up lets the others pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{sleep, timeout};

use super::CallsInner;
use super::accepted_queue::{ACCEPTED_MAX, AcceptedCall, AcceptedQueue};
use super::account::Account;
use super::follow::{head_of, identity_of};
use super::key::Fingerprint;
use super::keyed::{ROUNDS_MAX, SettleGuard, cancelled_before, identity_of_new, store_is_away};
use super::open_calls::{Identity, OpenCall, Settlement};
use super::outcome::{Outcome, Ran};
use super::refusal::Refusal;
use super::request::{CallRequest, Details};
use super::storing::Part;
use crate::common::byte_budget::{BytePermit, NoRoom};
use crate::gateway::{BeginMark, CallError, Caller};
use crate::protocol::jsonrpc::RawObject;
use crate::store::{CallState, ClaimedCall};
use crate::tenants::limits::{Admission, Cost};

/// The name of the limit of the bytes of calls that wait to begin.
pub(super) const ACCEPTED_BYTES: &str = "accepted_bytes";
/// A permit that other calls of the tenant give back is noticed after this time.
const PERMIT_LOOK: Duration = Duration::from_millis(50);
/// The longest pause of a call that a narrower limit of its tenant's holds up.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The pause after the store was away.
pub(super) const STORE_PAUSE: Duration = Duration::from_millis(500);

/// The mark of an accepted call.
struct AcceptedMark {
    open: Arc<OpenCall>,
    identity: Identity,
    calls: Arc<CallsInner>,
    has_begun: AtomicBool,
}

impl BeginMark for AcceptedMark {
    fn begin(&self) -> BoxFuture<'_, Result<(), CallError>> {
        Box::pin(async {
            if self.has_begun.load(Ordering::Acquire) {
                return Ok(());
            }
            let mut begun =
                self.calls.writer.begin(self.open.id, self.calls.clock.now(), CallState::Begun);
            match begun.wait().await {
                Ok(true) => {
                    self.open.opened(self.identity.clone(), CallState::Begun);
                    self.has_begun.store(true, Ordering::Release);
                    Ok(())
                }
                Ok(false) => Err(CallError::Withdrawn),
                Err(_) => Err(CallError::NotRecorded("it does not answer".to_owned())),
            }
        })
    }
}

impl CallsInner {
    /// Accepts a call, durably, or follows the one that has its key. Settles `open` in time.
    pub(super) async fn accept(
        self: Arc<Self>,
        open: Arc<OpenCall>,
        caller: Caller,
        request: CallRequest,
    ) {
        let guard = SettleGuard::new(self.clone(), open.clone());
        match self.try_accept(&open, &caller, request).await {
            Ok(call) => self.enqueue(call),
            Err(settlement) => self.settle(&open, settlement),
        }
        guard.disarm();
    }

    async fn try_accept(
        self: &Arc<Self>,
        open: &Arc<OpenCall>,
        caller: &Caller,
        mut request: CallRequest,
    ) -> Result<AcceptedCall, Settlement> {
        for _ in 0..ROUNDS_MAX {
            let permit = self.has_room(open).and_then(|()| self.take_place(open, &request));
            let refusal = match permit {
                Ok(permit) => {
                    let arguments = request.arguments.as_str();
                    let mut new = self.new_call(open, &request, CallState::Accepted);
                    let sealed = self.vault.seal(open.id, Part::Arguments, arguments.to_owned());
                    new.arguments = Some(sealed.await);
                    let identity = identity_of_new(open, new.expires);
                    match self.writer.insert(new).wait().await {
                        Ok(true) => {
                            open.account.add(1, 0);
                            open.opened(identity.clone(), CallState::Accepted);
                            let open = open.clone();
                            // The accepted bytes have it now.
                            request.held = None;
                            return Ok(AcceptedCall { open, identity, request, _bytes: permit });
                        }
                        Ok(false) => None,
                        Err(_) => return Err(store_is_away()),
                    }
                }
                Err(refusal) => Some(refusal),
            };
            let record = match open.scope {
                Some(_) => self.record_of_key(open, caller).await,
                None => Ok(None),
            };
            match (record, refusal) {
                (Ok(Some(record)), _) => self.follow(open, caller, &request, record).await?,
                (Ok(None), Some(refusal)) => return Err(Settlement::refused(refusal)),
                (Ok(None), None) => {}
                (Err(_), _) => return Err(store_is_away()),
            }
        }
        Err(Settlement::refused(Refusal::Overloaded))
    }

    fn take_place(&self, open: &OpenCall, request: &CallRequest) -> Result<BytePermit, Refusal> {
        let Account { accepted, accepted_bytes, .. } = &*open.account;
        if accepted.len() >= ACCEPTED_MAX {
            return Err(Refusal::TooManyAccepted(accepted.limit_use()));
        }
        let bytes = accepted_bytes.take(request.arguments.byte_len());
        bytes.map_err(|no_room| match no_room {
            NoRoom::Tenant { .. } => {
                Refusal::TooManyAccepted(accepted_bytes.limit_use(ACCEPTED_BYTES))
            }
            NoRoom::All { .. } => Refusal::Overloaded,
        })
    }

    fn enqueue(self: &Arc<Self>, call: AcceptedCall) {
        let account = call.open.account.clone();
        account.accepted.push(call);
        self.serve(&account);
    }

    /// Starts the task that begins a tenant's calls, unless it runs.
    fn serve(self: &Arc<Self>, account: &Arc<Account>) {
        if !account.accepted.is_served.swap(true, Ordering::AcqRel) {
            let serve = self.clone().serve_accepted(account.clone());
            self.tasks.spawn(serve);
        }
    }

    /// Begins a tenant's calls until none waits.
    async fn serve_accepted(self: Arc<Self>, account: Arc<Account>) {
        let queue = &account.accepted;
        loop {
            if self.closing.is_cancelled() {
                return self.hand_over_all(queue).await;
            }
            let Some((lane, call)) = queue.pop() else {
                queue.is_served.store(false, Ordering::Release);
                // One that came meanwhile has seen the task running.
                if queue.len() == 0 || queue.is_served.swap(true, Ordering::AcqRel) {
                    return;
                }
                continue;
            };
            match self.permits_of(&call).await {
                Ok(begin) => {
                    let (calls, account) = (self.clone(), account.clone());
                    self.tasks.spawn(async move {
                        calls.begin_accepted(call, begin).await;
                        account.accepted.ended.notify_one();
                    });
                }
                Err(()) => {
                    queue.put_back(lane, call);
                    tokio::select! {
                        _ = timeout(PERMIT_LOOK, queue.ended.notified()) => {}
                        () = self.closing.cancelled() => {}
                    }
                }
            }
        }
    }

    /// Takes the permits of a call that is to begin, under its tenant's present policy. Fails if a
    /// limit of calls in flight is reached.
    async fn permits_of(&self, call: &AcceptedCall) -> Result<Option<(Caller, Admission)>, ()> {
        let Some(tenant) = self.tenant(&call.open.tenant) else { return Ok(None) };
        let caller = Caller::of(tenant.clone());
        let caller = match &call.request.details.toolset {
            None => caller,
            Some(toolset) => match self.gateway.within(caller, toolset) {
                Ok(caller) => caller,
                Err(_) => return Ok(None),
            },
        };
        let admission = tenant.admit(Cost::PaidCall).await;
        Ok(Some((caller, admission.map_err(drop)?)))
    }

    /// Begins a call with its permits; without, its tenant or its toolset is gone.
    async fn begin_accepted(
        self: Arc<Self>,
        mut call: AcceptedCall,
        permits: Option<(Caller, Admission)>,
    ) {
        let open = call.open.clone();
        let guard = SettleGuard::new(self.clone(), open.clone());
        let Some((caller, admission)) = permits else {
            let server = call.request.server.id().to_string();
            let gone = CallError::ServerNotFound { server };
            self.keep(&open, Ok(Outcome::of_error(&gone, open.id, self.render)), true).await;
            return guard.disarm();
        };
        // Rights and servers may have changed since the call was accepted.
        let result = match self.gateway.server(&caller, call.request.server.id().as_str()) {
            Ok(server) => {
                call.request.server = server;
                let mark = Arc::new(AcceptedMark {
                    open: open.clone(),
                    identity: call.identity.clone(),
                    calls: self.clone(),
                    has_begun: AtomicBool::new(false),
                });
                let request =
                    call.request.call(open.id, Some(mark.clone()), self.gateway.sampler());
                let made = self.gateway.call(&caller, admission, &request);
                let result = tokio::select! {
                    result = made => result,
                    () = open.cancel.cancelled() => {
                        return self.cancelled(guard, &open, &mark).await;
                    }
                };
                if !mark.has_begun.load(Ordering::Acquire)
                    && let Err(error) = &result
                {
                    match error.last() {
                        // A narrower limit of the tenant's, or the store: the call waits on.
                        last if last.is_own_limit()
                            || matches!(last, CallError::NotRecorded(_)) =>
                        {
                            guard.disarm();
                            sleep(last.retry_after().unwrap_or(STORE_PAUSE).min(PAUSE_MAX)).await;
                            return self.enqueue(call);
                        }
                        CallError::ShuttingDown | CallError::BackendStopped => {
                            guard.disarm();
                            return self.hand_over(&open).await;
                        }
                        CallError::Withdrawn => {
                            self.settle_by_record(&open).await;
                            return guard.disarm();
                        }
                        _ => {}
                    }
                }
                result
            }
            Err(error) => Err(error),
        };
        self.keep(&open, Ok(Outcome::of(result, open.id, self.render)), true).await;
        guard.disarm();
    }

    async fn cancelled(&self, guard: SettleGuard, open: &Arc<OpenCall>, mark: &AcceptedMark) {
        let has_begun = mark.has_begun.load(Ordering::Acquire);
        let executed = if has_begun { Ran::Unknown } else { Ran::No };
        self.keep(open, Err(Refusal::Cancelled { executed }), true).await;
        guard.disarm();
    }

    /// Settles a call that another gateway has, or that was cancelled before it began.
    pub(super) async fn settle_by_record(&self, open: &Arc<OpenCall>) {
        let settlement = match self.store.call(&open.tenant, open.id).await {
            Ok(Some(record)) if record.state == CallState::Ended => {
                let head = head_of(&record);
                self.replay(&record, head).await
            }
            Ok(Some(record)) => {
                let refused = Settlement::refused(Refusal::StillRunning(record.id));
                Settlement { identity: Some(identity_of(&record)), ..refused }
            }
            Ok(None) => Settlement::refused(Refusal::Cancelled { executed: Ran::No }),
            Err(_) => store_is_away(),
        };
        self.settle(open, settlement);
    }

    async fn hand_over_all(&self, queue: &AcceptedQueue) {
        while let Some((_, call)) = queue.pop() {
            self.hand_over(&call.open).await;
        }
    }

    /// Leaves a call to another gateway, or to the next run of this one.
    pub(super) async fn hand_over(&self, open: &Arc<OpenCall>) {
        let _ = timeout(STORE_PAUSE, self.writer.hand_over(open.id).wait()).await;
        self.settle(open, Settlement::refused(Refusal::StillRunning(open.id)));
    }

    /// Takes a waiting call out of its queue, and ends it.
    pub(super) async fn cancel_waiting(&self, open: &Arc<OpenCall>) -> bool {
        let found = open.account.accepted.take(open.id);
        if found.is_some() {
            let executed = cancelled_before().executed;
            self.keep(open, Err(Refusal::Cancelled { executed }), true).await;
        }
        found.is_some()
    }

    /// Takes up a call of a gateway that is gone.
    pub(super) async fn take_up(self: &Arc<Self>, claimed: ClaimedCall) {
        if Details::stored(&claimed.request).batch.is_some() {
            return self.take_up_batch(claimed).await;
        }
        let ClaimedCall { id, tenant, server, tool, arguments, .. } = claimed;
        let details = Details::stored(&claimed.request);
        let (account, fingerprint) =
            (self.accounts.of(&tenant), Fingerprint::stored(claimed.fingerprint));
        let has_callback = details.callback.is_some();
        let open = OpenCall::new(id, tenant, None, fingerprint, account, has_callback);
        let Ok(None) = self.open.find_or_add(&open) else { return };
        let arguments = self.vault.open(id, Part::Arguments, arguments).await;
        let arguments = arguments.and_then(|arguments| RawObject::parse(arguments).ok());
        let (Some(arguments), Some(server)) = (arguments, self.gateway.registry().get(&server))
        else {
            let gone = CallError::ServerNotFound { server };
            return self
                .keep(&open, Ok(Outcome::of_error(&gone, open.id, self.render)), true)
                .await;
        };
        let fingerprint = open.fingerprint.clone();
        let request = CallRequest {
            id,
            server,
            tool,
            arguments,
            held: None,
            key: None,
            fingerprint,
            listener: None,
            mcp: None,
            details,
        };
        let Ok(permit) = open.account.accepted_bytes.take(request.arguments.byte_len()) else {
            // Too many at once: another gateway may have room, or this one later.
            return self.hand_over(&open).await;
        };
        let identity = identity_of_new(&open, claimed.expires);
        open.opened(identity.clone(), CallState::Accepted);
        self.enqueue(AcceptedCall { open, identity, request, _bytes: permit });
    }
}
