//! Writes the explanation of a call: how the gateway decided, step by step.

use serde_json::{Value, json};

use super::recent::record_json;
use crate::events::EndedCall;
use crate::events::call_log::in_ms;
use crate::events::explanation::{AttemptRecord, QueueWait};

/// Writes an explanation. `for_operator` adds whose call it was.
pub(crate) fn explain_json(call: &EndedCall, for_operator: bool) -> Value {
    let explanation = &call.explanation;
    let mut call_json = record_json(call);
    if for_operator {
        call_json["tenant"] = json!(call.tenant.name().as_str());
    }
    json!({
        "call": call_json,
        "queue": explanation.wait.map(wait_json),
        "attempts": explanation.attempts.iter().map(attempt_json).collect::<Vec<_>>(),
    })
}

fn wait_json(wait: QueueWait) -> Value {
    let QueueWait { after, took, ahead } = wait;
    json!({
        "entered_after_ms": in_ms(after),
        "waited_ms": in_ms(took),
        "ahead": {"own": ahead.own, "others": ahead.others},
        "slots": {"all": ahead.slots, "taken": ahead.taken, "own": ahead.held},
    })
}

fn attempt_json(attempt: &AttemptRecord) -> Value {
    let AttemptRecord { instance, choice, after } = attempt;
    let why = match (choice.ready, choice.in_flight) {
        (0 | 1, calls) => format!("the only ready instance; {calls} other calls in flight there"),
        (ready, calls) => format!("the least busy of {ready}: {calls} other calls in flight there"),
    };
    json!({"instance": instance, "dispatched_after_ms": in_ms(*after), "why": why})
}
