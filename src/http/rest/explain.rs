//! Writes the explanation of a call: how the gateway decided, step by step.

use serde_json::{Value, json};

use super::recent::record_json;
use crate::common::limit_use::millis_up;
use crate::events::EndedCall;
use crate::events::call_log::in_ms;
use crate::events::explanation::{AttemptRecord, LimitState, QueueWait, Remedy};

/// Writes an explanation. `for_operator` adds whose call it was.
pub(crate) fn explain_json(call: &EndedCall, for_operator: bool) -> Value {
    let explanation = &call.explanation;
    let mut call_json = record_json(call);
    if for_operator {
        call_json["tenant"] = json!(call.tenant.name().as_str());
    }
    json!({
        "call": call_json,
        "limits": explanation.limits.iter().map(limit_json).collect::<Vec<_>>(),
        "queue": explanation.wait.map(wait_json),
        "attempts": explanation.attempts.iter().map(attempt_json).collect::<Vec<_>>(),
        "would_have_passed": explanation.remedies.iter().map(remedy_json).collect::<Vec<_>>(),
    })
}

fn limit_json(limit: &LimitState) -> Value {
    json!({
        "rule": limit.rule.as_str(),
        "scope": limit.scope,
        "used": limit.used,
        "max": limit.max,
        "verdict": limit.verdict.as_str(),
        "frees_in_ms": limit.frees_in.map(in_ms),
        "refused_before": limit.refused_before,
    })
}

/// Writes a remedy: in words, and for a program.
fn remedy_json(remedy: &Remedy) -> Value {
    let mut json = match remedy {
        Remedy::Retry { after } => json!({"retry_after_ms": millis_up(*after)}),
        Remedy::Raise(raises) => {
            let raises = raises.iter().map(|raise| {
                json!({
                    "setting": raise.setting,
                    "scope": raise.scope,
                    "value": raise.value,
                    "more": raise.more,
                    "more_for_all": raise.more_for_all,
                })
            });
            json!({"raise": raises.collect::<Vec<_>>()})
        }
        Remedy::Instances { value, more, .. } => json!({"instances": value, "more": more}),
    };
    json["text"] = json!(remedy.to_string());
    json
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
    let AttemptRecord { instance, choice, after, .. } = attempt;
    let why = match (choice.ready, choice.in_flight) {
        (0 | 1, calls) => format!("the only ready instance; {calls} other calls in flight there"),
        (ready, calls) => format!("the least busy of {ready}: {calls} other calls in flight there"),
    };
    json!({"instance": instance, "dispatched_after_ms": in_ms(*after), "why": why})
}
