//! The call log as log records.

use super::attributes::{Attributes, Resource, SERVER, TENANT};
use super::message::Message;
use super::queue::Record;
use super::spans::{error_type, nanos};
use crate::events::EndedCall;

const INFO: u64 = 9;
const WARN: u64 = 13;

/// Writes an export request. Returns it with the number of its records.
pub(super) fn request(resource: &Resource, records: Vec<Record>) -> (Vec<u8>, u64) {
    let request = resource.request(|scope| {
        for record in &records {
            match record {
                Record::Call(call) => scope.message(2, |log| write_call(log, call)),
                Record::LeftOut { told, lines } => scope.message(2, |log| {
                    let own = lines.of_own_limit;
                    let text = format!("{} lines left out", own + lines.of_others);
                    write_head(log, nanos(*told), WARN, &text, "trunkline.call_log.left_out");
                    let mut attributes = Attributes { of: log, field: 6 };
                    attributes.text(TENANT, lines.tenant.name().as_str());
                    attributes.number("trunkline.left_out.own_limit", own);
                    attributes.number("trunkline.left_out.others", lines.of_others);
                }),
                Record::Event(_) => {}
            }
        }
    });
    (request, records.len() as u64)
}

fn write_head(log: &mut Message, time: u64, severity: u64, text: &str, event: &str) {
    log.fixed64(1, time);
    log.fixed64(11, time);
    log.integer(2, severity);
    log.text(3, if severity == WARN { "WARN" } else { "INFO" });
    log.message(5, |body| body.text(1, text));
    log.text(12, event);
}

fn write_call(log: &mut Message, call: &EndedCall) {
    let ended = nanos(call.arrived) + call.took.as_nanos() as u64;
    let severity = if call.outcome.is_answer() { INFO } else { WARN };
    let outcome = call.code.unwrap_or(call.outcome.as_str());
    let text = format!("{}/{}: {outcome}", call.server, call.target);
    write_head(log, ended, severity, &text, "trunkline.call");
    if let Some(traced) = &call.traced {
        log.fixed32(8, traced.span.flags().into());
        log.bytes(9, &traced.span.trace_id.to_be_bytes());
        log.bytes(10, &traced.span.span_id.get().to_be_bytes());
    }
    let mut attributes = Attributes { of: log, field: 6 };
    attributes.text("trunkline.call.id", &call.id.to_string());
    attributes.text(TENANT, call.tenant.name().as_str());
    attributes.text(SERVER, &call.server);
    attributes.text("gen_ai.tool.name", &call.target);
    attributes.text("trunkline.outcome", call.outcome.as_str());
    if let Some(error) = error_type(call) {
        attributes.text("error.type", &error);
    }
    attributes.text("trunkline.executed", call.executed);
    attributes.number("trunkline.attempts", call.attempts.into());
    attributes.double("trunkline.queue.seconds", call.queue.as_secs_f64());
    attributes.double("trunkline.backend.seconds", call.backend.as_secs_f64());
    attributes.number("trunkline.bytes_in", call.bytes_in);
    attributes.number("trunkline.bytes_out", call.bytes_out);
    if let Some(key) = &call.key {
        attributes.text("trunkline.key.id", key.as_str());
    }
    if let Some(id) = &call.tags.request_id {
        attributes.text("trunkline.request.id", id);
    }
    if !call.tags.labels.is_empty() {
        attributes.texts("trunkline.labels", &call.tags.labels);
    }
}
