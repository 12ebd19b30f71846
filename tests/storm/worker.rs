//! One of several clients of one tenant: makes its calls one after the other, and looks at each answer.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Deserialize;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use trunkline::gateway::{Ask, Call, CallError, Caller, Gateway, Reply, ToolName};
use trunkline::ids::{CallId, TenantId};
use trunkline::jsonrpc::RawObject;
use trunkline::mcp::requests::CallMeta;
use trunkline::mcp::results::ResultKind;

use crate::plan::{Cancel, Plan, SERVERS};
use crate::report::Tally;
use crate::watchdog::{Watchdog, Workers};

/// The longest pause before a server that is down is tried again, or rather the next one is.
const RETRY_WAIT_MAX: Duration = Duration::from_millis(10);

/// What all workers of a round share.
pub struct Shared {
    pub gateway: Arc<Gateway>,
    pub tally: Arc<Tally>,
    pub watchdog: Arc<Watchdog>,
    pub workers: Arc<Workers>,
}

/// Makes calls 1 to `calls` of one worker.
pub async fn run(shared: Arc<Shared>, tenant: usize, worker: usize, calls: u64) {
    let caller = Caller { tenant: tenant_id(tenant), session: None };
    let round_seed = shared.workers.round_seed;
    let position = &shared.workers.client_ids[tenant * shared.workers.per_tenant + worker];
    for client_id in 1..=calls {
        let plan = Plan::draw(round_seed, tenant, worker, client_id);
        position.store(client_id, Ordering::Relaxed);
        make(&shared, &caller, &plan).await;
        shared.tally.calls.add(1);
        shared.watchdog.step();
    }
    position.store(0, Ordering::Relaxed);
}

/// The name of a tenant.
pub fn tenant_id(tenant: usize) -> TenantId {
    TenantId::parse(&format!("tenant-{tenant}")).expect("a plain name")
}

/// A call to `server`, as planned.
pub fn call(plan: &Plan, server: usize) -> Call {
    let arguments = format!("{{\"mark\":\"{}\"}}", plan.mark);
    let arrived = Instant::now();
    Call {
        id: CallId::new(),
        server: crate::round::server_name(server),
        ask: Ask::Tool {
            name: ToolName::Own("echo".to_owned()),
            arguments: RawObject::parse(arguments.into()).expect("a plain object"),
            mirrored: None,
        },
        others: String::new(),
        meta: CallMeta::default(),
        size: 0,
        listener: None,
        arrived,
        deadline: arrived + plan.timeout,
    }
}

/// Makes one call, with whichever server is up.
async fn make(shared: &Shared, caller: &Caller, plan: &Plan) {
    for server in (plan.server..).map(|server| server % SERVERS) {
        let outcome = {
            let mut answer = pin!(shared.gateway.call(caller, call(plan, server)));
            tokio::select! {
                biased;
                outcome = &mut answer => outcome,
                () = leave(plan.cancel) => return shared.tally.cancelled.add(1),
            }
        };
        match outcome {
            Err(CallError::ServerUnavailable { retry_after, reason }) => {
                shared.tally.unavailable.add(1);
                shared.watchdog.unavailable(reason);
                sleep(retry_after.min(RETRY_WAIT_MAX)).await;
            }
            outcome => return judge(&shared.tally, &plan.mark, outcome),
        }
    }
}

/// Done when the caller goes away.
async fn leave(cancel: Cancel) {
    match cancel {
        Cancel::Never => std::future::pending().await,
        Cancel::After(wait) => sleep(wait).await,
        Cancel::Turns(turns) => {
            for _ in 0..turns {
                yield_now().await;
            }
        }
    }
}

fn judge(tally: &Tally, mark: &str, outcome: Result<Reply, CallError>) {
    match outcome {
        Ok(reply) => {
            let counter = match reply.kind {
                ResultKind::ToolError => &tally.tool_errors,
                _ => &tally.ok,
            };
            counter.add(1);
            compare(tally, mark, read_result(&reply.result));
        }
        Err(CallError::Backend(error)) => {
            tally.server_errors.add(1);
            let data = error.data.as_ref().map_or("", |data| data.get());
            compare(tally, mark, read_error(&error.message, data));
        }
        Err(CallError::DeadlineExceeded { .. }) => tally.expired.add(1),
        Err(CallError::BackendExited { .. }) => tally.ended.add(1),
        Err(CallError::BackendTooLarge) => tally.too_large.add(1),
        Err(CallError::BackendProtocol { .. } | CallError::InputRequired) => tally.protocol.add(1),
        Err(CallError::Overloaded) => tally.refused.add(1),
        // The rest would be our own fault: servers and tools are there, arguments are right.
        Err(error) => tally.fault(format!("the call {mark} failed with {error:?}")),
    }
}

/// Every mark in an answer must be that of the call; an answer that cannot be read is nobody's.
fn compare(tally: &Tally, mark: &str, found: Result<Vec<Cow<'_, str>>, serde_json::Error>) {
    match found {
        Ok(marks) => {
            if let Some(other) = marks.iter().find(|found| *found != mark) {
                tally.mismatch(mark, &format!("the answer to {other}"));
            }
        }
        Err(error) => tally.mismatch(mark, &format!("an answer that cannot be read: {error}")),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult<'a> {
    #[serde(borrow)]
    content: [Text<'a>; 1],
    structured_content: Marks<'a>,
}

#[derive(Deserialize)]
struct Text<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Marks<'a> {
    #[serde(borrow)]
    mark: Cow<'a, str>,
    #[serde(borrow, default)]
    padding: Vec<&'a str>,
}

fn read_result(result: &[u8]) -> Result<Vec<Cow<'_, str>>, serde_json::Error> {
    let ToolResult { content: [Text { text }], structured_content: Marks { mark, padding } } =
        serde_json::from_slice(result)?;
    Ok([text, mark].into_iter().chain(padding.into_iter().map(Cow::Borrowed)).collect())
}

fn read_error<'a>(message: &'a str, data: &'a str) -> Result<Vec<Cow<'a, str>>, serde_json::Error> {
    let data: Marks<'a> = serde_json::from_str(data)?;
    Ok(vec![Cow::Borrowed(message), data.mark])
}
