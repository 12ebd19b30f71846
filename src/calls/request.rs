//! A call that is to be kept, as its front end asks for it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::batch::accepted::BatchDetails;
use super::key::{Fingerprint, IdempotencyKey};
use crate::backend::connection::call_notifications::NotificationSender;
use crate::backend::queue::FairnessKey;
use crate::common::ids::CallId;
use crate::events::CallTags;
use crate::gateway::{BeginMark, Call, Operation, ToolName};
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::mcp::requests::CallMeta;
use crate::registry::Server;

pub struct CallRequest {
    /// Its id, unless the key has a call already.
    pub id: CallId,
    pub server: Arc<Server>,
    pub tool: String,
    pub arguments: RawObject,
    pub key: Option<IdempotencyKey>,
    /// Of what the caller sends again in a retry.
    pub fingerprint: Fingerprint,
    /// Passes the server's notifications on to the request that begins the call.
    pub listener: Option<NotificationSender>,
    pub details: Details,
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
    /// The caller's trace, as members of `_meta`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trace: String,
    /// Only for an asynchronous batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchDetails>,
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
    /// Returns the call for the gateway. Its time begins now: a request's own deadline ends the
    /// waiting, not the call.
    pub(super) fn call(&self, id: CallId, begin_mark: Option<Arc<dyn BeginMark>>) -> Call {
        let arrived = Instant::now();
        let (name, arguments) = (ToolName::Own(self.tool.clone()), self.arguments.clone());
        Call {
            id,
            server: self.server.clone(),
            size: arguments.as_str().len(),
            operation: Operation::Tool { name, arguments, mirrored: None },
            others: String::new(),
            meta: CallMeta {
                progress: self.listener.is_some(),
                others: self.details.trace.clone(),
                ..CallMeta::default()
            },
            listener: self.listener.clone(),
            arrived,
            deadline: arrived + self.details.timeout(),
            deadline_max: None,
            fairness_key: self.details.fairness_key,
            tags: self.details.tags(),
            // A keyed call is answered at once; an asynchronous one waits on.
            waits_for_limits: begin_mark.is_some(),
            begin_mark,
        }
    }
}
