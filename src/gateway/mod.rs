//! The path every call takes, whichever front end it came through.
//!
//! `Gateway::route` reads from top to bottom: find the server and the tool, take a slot, write the
//! request, wait for the answer. Nothing else reaches a backend.

mod error;
mod record;

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

pub use self::error::{CallError, Executed};
use self::record::Record;
use crate::backend::pending::Answer;
use crate::ids::{CallId, TenantId};
use crate::jsonrpc::RawObject;
use crate::mcp::results::{ToolResultKind, tool_result_kind};
use crate::registry::Registry;
use crate::telemetry::metrics::Metrics;

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Whose limits and rights apply.
    pub tenant: TenantId,
}

/// What is called.
#[derive(Debug)]
pub struct Call {
    /// Names the call in answers and logs.
    pub id: CallId,
    /// The server's id, as the caller wrote it.
    pub server: String,
    /// The tool's name, as the caller wrote it.
    pub tool: String,
    /// Checked, otherwise untouched.
    pub arguments: RawObject,
    /// When it came in.
    pub arrived: Instant,
    /// When its answer is no longer of use.
    pub deadline: Instant,
}

/// A tool's result.
#[derive(Debug)]
pub struct Reply {
    /// The result object as the server wrote it.
    pub result: Bytes,
    /// Whether the tool says of itself that it failed.
    pub is_tool_error: bool,
    /// How long the call waited.
    pub queue: Duration,
    /// How long the server took.
    pub backend: Duration,
}

/// The gateway proper.
pub struct Gateway {
    registry: Registry,
    metrics: Metrics,
}

impl Gateway {
    /// A gateway before these servers.
    pub fn new(registry: Registry, metrics: Metrics) -> Self {
        Self { registry, metrics }
    }

    /// The servers.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// One call from admission to its outcome. Dropping the future gives the call up, and it alone.
    pub async fn call(&self, caller: &Caller, call: Call) -> Result<Reply, CallError> {
        let mut record = Record::new(&self.metrics, call.arrived);
        let outcome = self.route(caller, &call, &mut record).await;
        record.finish(match &outcome {
            Ok(reply) if reply.is_tool_error => "tool_error",
            Ok(_) => "ok",
            Err(error) => error.code(),
        });
        outcome
    }

    async fn route(
        &self,
        caller: &Caller,
        call: &Call,
        record: &mut Record<'_>,
    ) -> Result<Reply, CallError> {
        if call.deadline <= Instant::now() {
            return Err(CallError::DeadlineExceeded { executed: Executed::No });
        }
        let server = self
            .registry
            .get(&call.server)
            .ok_or_else(|| CallError::ServerNotFound { server: call.server.clone() })?;
        let _in_flight = record.at_server(server);

        let place = server.queue().line_up(call.arguments.as_str().len())?;
        let mut ready = server.ready(call.deadline).await?;
        let Some(tool) = ready.tools.get(&call.tool).cloned() else {
            let (server, tool) = (call.server.clone(), call.tool.clone());
            return Err(CallError::ToolNotFound { server, tool });
        };
        record.at_tool(&tool);

        let permit = place.slot(call.deadline).await?;
        // The server may have ended while the call waited for its slot.
        if ready.connection.is_closed() {
            ready = server.ready(call.deadline).await?;
        }
        let sent = Instant::now();
        let queue = sent.duration_since(call.arrived);
        server.metrics().queue_seconds.observe(queue.as_secs_f64());

        let tenant = caller.tenant.clone();
        let ticket = ready.connection.register(tenant, call.id, call.deadline, Some(permit))?;
        ticket.send(ready.dialect.tools_call(ticket.id(), &tool.name_json, &call.arguments))?;
        let answer = ticket.answer().await?;

        let backend = sent.elapsed();
        tool.metrics.record_backend(backend);
        read_answer(answer, queue, backend)
    }
}

fn read_answer(answer: Answer, queue: Duration, backend: Duration) -> Result<Reply, CallError> {
    let result = match answer {
        Answer::Result(result) => result,
        Answer::Error(error) => return Err(CallError::from_server_error(&error)),
    };
    let text =
        std::str::from_utf8(&result).map_err(|_| CallError::protocol("the result is not UTF-8"))?;
    let is_tool_error = match tool_result_kind(text).map_err(CallError::protocol)? {
        ToolResultKind::Complete => false,
        ToolResultKind::ToolError => true,
        ToolResultKind::InputRequired => return Err(CallError::InputRequired),
    };
    Ok(Reply { result, is_tool_error, queue, backend })
}
