//! The body of a callback: names the call and its outcome, never its arguments or its result.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::calls::outcome::{Head, OUTCOME_UNKNOWN, OutcomeKind, Ran};
use crate::common::ids::CallId;

/// The part that is known when the call is accepted. Kept in the store as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalledTool {
    pub server: String,
    pub tool: String,
    pub labels: Vec<String>,
    pub request_id: Option<String>,
    /// In milliseconds since 1970.
    pub created: i64,
}

#[derive(Serialize)]
struct Event<'a> {
    r#type: &'static str,
    /// When the call has ended.
    timestamp: Option<Timestamp>,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    id: String,
    server: &'a str,
    tool: &'a str,
    outcome: OutcomeKind,
    executed: Ran,
    code: Option<&'a str>,
    attempts: u32,
    created: Option<Timestamp>,
    ended: Option<Timestamp>,
    labels: &'a [String],
    request_id: Option<&'a str>,
}

impl CalledTool {
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a called tool is plain data")
    }

    /// Returns the body. `head` and `ended` are of the record; no head: nobody knows how the call
    /// ended.
    pub fn body(&self, id: CallId, head: Option<Head>, ended: i64) -> String {
        let unknown = || Head::without_answer(OUTCOME_UNKNOWN, Ran::Unknown);
        let head = head.unwrap_or_else(unknown);
        let ended = Timestamp::from_millisecond(ended).ok();
        let data = Data {
            id: id.to_string(),
            server: &self.server,
            tool: &self.tool,
            outcome: head.outcome,
            executed: head.executed,
            code: head.code.as_deref(),
            attempts: head.attempts,
            created: Timestamp::from_millisecond(self.created).ok(),
            ended,
            labels: &self.labels,
            request_id: self.request_id.as_deref(),
        };
        let event = Event { r#type: "call.ended", timestamp: ended, data };
        serde_json::to_string(&event).expect("an event is plain data")
    }
}
