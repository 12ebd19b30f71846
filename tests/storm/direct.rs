//! Calls made in this process, straight at the gateway.

use std::pin::pin;
use std::sync::Arc;

use tokio::time::Instant;
use trunkline::common::ids::{CallId, TenantGeneration};
use trunkline::gateway::{Call, CallError, Caller, Gateway, Operation, Reply, ToolName};
use trunkline::protocol::jsonrpc::RawObject;
use trunkline::protocol::mcp::requests::CallMeta;
use trunkline::protocol::mcp::results::ResultKind;
use trunkline::tenants::limits::Cost;

use crate::outcome::Outcome;
use crate::plan::Plan;
use crate::round::server_name;
use crate::worker::{caller, caller_of, leave};

pub struct Direct {
    gateway: Arc<Gateway>,
    caller: Caller,
}

impl Direct {
    pub fn new(gateway: Arc<Gateway>, tenant: usize) -> Self {
        Self { gateway, caller: caller(tenant) }
    }

    /// Removes the tenant and adds another of its name. Servers may still work on calls of the old
    /// one, which had the same ids.
    pub fn remake_tenant(&mut self) {
        let before = self.caller.tenant.clone();
        self.caller = caller_of(before.id.name().clone().of(TenantGeneration::generate()));
        before.removed.cancel();
    }

    pub async fn call(&self, plan: &Plan, server: usize) -> Outcome {
        let call = call(&self.gateway, &self.caller, plan, server);
        let mut answer = pin!(async {
            let admission = self.caller.tenant.admit(Cost::Call).await?;
            self.gateway.call(&self.caller, admission, &call).await
        });
        tokio::select! {
            biased;
            outcome = &mut answer => read(outcome),
            () = leave(plan.cancel) => Outcome::Cancelled,
        }
    }
}

/// Returns a call to `server`, as planned.
pub fn call(gateway: &Gateway, caller: &Caller, plan: &Plan, server: usize) -> Call {
    let server = gateway.server(caller, &server_name(server)).expect("the server is configured");
    let arguments = format!("{{\"mark\":\"{}\"}}", plan.mark);
    let arrived = Instant::now();
    Call {
        id: CallId::generate(),
        server,
        operation: Operation::Tool {
            name: ToolName::Own("echo".to_owned()),
            arguments: RawObject::parse(arguments.into()).expect("a plain object"),
            mirrored: None,
        },
        others: String::new(),
        meta: CallMeta::default(),
        size: 0,
        fairness_key: Default::default(),
        listener: None,
        arrived,
        deadline: arrived + plan.timeout,
        deadline_max: None,
        tags: Default::default(),
        waits_for_limits: false,
        traced: None,
        held: None,
        is_kept: false,
        begin_mark: None,
    }
}

fn read(outcome: Result<Reply, CallError>) -> Outcome {
    match outcome.map_err(CallError::into_last) {
        Ok(reply) => {
            let is_error = reply.kind == ResultKind::ToolError;
            Outcome::Result { result: reply.result, is_error }
        }
        Err(CallError::Backend { error, .. }) => {
            let data = error.data.map(|data| data.get().to_owned()).unwrap_or_default();
            Outcome::ServerError { message: error.message.into(), data }
        }
        Err(CallError::ServerUnavailable { retry_after, reason, .. }) => {
            Outcome::Unavailable { retry_after, reason }
        }
        Err(CallError::DeadlineExceeded { .. }) => Outcome::Expired,
        Err(CallError::BackendExited { .. }) => Outcome::Ended,
        Err(CallError::BackendTooLarge) => Outcome::TooLarge,
        Err(CallError::BackendProtocol { .. } | CallError::InputRequired { .. }) => {
            Outcome::Protocol
        }
        Err(CallError::Overloaded) => Outcome::Refused,
        Err(error) => Outcome::Wrong(format!("failed with {error:?}")),
    }
}
