//! A call that is to be kept, as its front end asks for it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::Instant;

use super::batch::accepted::BatchDetails;
use super::key::{Fingerprint, IdempotencyKey};
use crate::backend::connection::call_notifications::NotificationSender;
use crate::backend::queue::FairnessKey;
use crate::common::ids::CallId;
use crate::events::{CallTags, Sampler, TracedRequest};
use crate::gateway::{BeginMark, Call, Held, MirroredHeaders, Operation, ToolName};
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::mcp::method;
use crate::protocol::mcp::requests::CallMeta;
use crate::protocol::mcp::trace::Trace;
use crate::registry::Server;

pub struct CallRequest {
    /// Its id, unless the key has a call already.
    pub id: CallId,
    pub server: Arc<Server>,
    pub tool: String,
    pub arguments: RawObject,
    /// Counts the bytes of the request, until these count elsewhere or the call has ended.
    pub held: Option<Held>,
    pub key: Option<IdempotencyKey>,
    /// Of what the caller sends again in a retry.
    pub fingerprint: Fingerprint,
    /// Passes the server's notifications on to the request that begins the call.
    pub listener: Option<NotificationSender>,
    /// Set for a call over MCP, which may become a task.
    pub mcp: Option<Box<McpPart>>,
    pub details: Details,
}

/// The part of a call over MCP that no record keeps.
#[derive(Clone)]
pub struct McpPart {
    /// The tool as the client names it.
    pub name: ToolName,
    pub mirrored: Option<MirroredHeaders>,
    /// Further members of `params`: `,"name":value` each.
    pub others: String,
    pub meta: CallMeta,
}

/// The part of a request that its record keeps, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Details {
    /// The time that the call has from its beginning.
    pub timeout_ms: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Whether the caller was or will be given the id: it may ask by it.
    #[serde(rename = "async", skip_serializing_if = "is_default")]
    pub is_async: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub fairness_key: FairnessKey,
    /// The URL that is told of the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
    /// The toolset through which the tool is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toolset: Option<String>,
    #[serde(default, deserialize_with = "valid_or_none", skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// Only for an asynchronous batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchDetails>,
}

/// Reads a trace. One that was written by another version is dropped: it must not break the call.
fn valid_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Trace>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Details {
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).expect("details are plain data")
    }

    /// Reads the details of a record. Those of a newer version may have more.
    pub fn stored(json: &str) -> Self {
        serde_json::from_str(json).unwrap_or_default()
    }

    pub(super) fn tags(&self) -> CallTags {
        CallTags { request_id: self.request_id.clone(), labels: self.labels.clone() }
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

impl CallRequest {
    /// Returns the span of the call, if it is to be traced.
    pub(super) fn sample(&self, sampler: Sampler) -> Option<Box<TracedRequest>> {
        sampler.sample(self.details.trace.as_ref(), method::TOOLS_CALL)
    }

    /// Returns the call for the gateway. Its time begins now: a request's own deadline ends the
    /// waiting, not the call.
    pub(super) fn call(
        &self,
        id: CallId,
        begin_mark: Option<Arc<dyn BeginMark>>,
        sampler: Sampler,
    ) -> Call {
        let arrived = Instant::now();
        let arguments = self.arguments.clone();
        let (name, mirrored, others, meta) = match self.mcp.as_deref().cloned() {
            Some(McpPart { name, mirrored, others, meta }) => (name, mirrored, others, meta),
            None => {
                let progress = self.listener.is_some();
                let trace = self.details.trace.clone();
                let meta = CallMeta { progress, trace, ..CallMeta::default() };
                (ToolName::Own(self.tool.clone()), None, String::new(), meta)
            }
        };
        Call {
            id,
            server: self.server.clone(),
            size: arguments.byte_len(),
            held: self.held.clone(),
            operation: Operation::Tool { name, arguments, mirrored },
            others,
            meta,
            listener: self.listener.clone(),
            arrived,
            deadline: arrived + self.details.timeout(),
            deadline_max: None,
            traced: self.sample(sampler),
            fairness_key: self.details.fairness_key,
            tags: self.details.tags(),
            // A keyed call is answered at once; an asynchronous one waits on.
            waits_for_limits: begin_mark.is_some(),
            is_kept: true,
            begin_mark,
        }
    }
}
