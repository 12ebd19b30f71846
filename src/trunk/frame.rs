//! A snapshot in JSON, and the difference between two: the contract with the page and with `top`,
//! described in `docs/internals/live-page.md`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::layout::Places;
use super::snapshot::{InstanceSnapshot, ServerSnapshot, Snapshot};
use crate::backend::connection::live_calls::{LiveCall, LiveState};
use crate::backend::queue::WaitingCall;
use crate::events::CallTags;

/// With more calls than this, a place says only whose call is there, and since when.
const DETAILED_MAX: usize = 2000;

/// The numbers on top of the page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Numbers {
    pub longest_wait_ms: i64,
    pub waiting: usize,
    pub in_flight: usize,
    /// Refused in the last minute: by tenants' own limits, and for other reasons.
    pub refused_own: u64,
    pub refused_other: u64,
}

/// Everything that viewers see at one moment.
#[derive(Default)]
pub struct Frame {
    pub at: i64,
    pub numbers: Numbers,
    /// In the order of their ids.
    servers: BTreeMap<String, ServerFrame>,
}

#[derive(Default)]
struct ServerFrame {
    head: Value,
    instances: Value,
    /// By instance and place: `0/3`.
    cells: HashMap<String, Arc<Value>>,
    line: Value,
}

/// Makes frames; knows the places of calls from one frame to the next.
#[derive(Default)]
pub struct Framer {
    places: HashMap<String, Places>,
}

impl Framer {
    pub fn frame(&mut self, snapshot: &Snapshot, refused: (u64, u64)) -> Frame {
        let calls = |server: &ServerSnapshot| -> usize {
            server.instances.iter().map(|instance| instance.calls.len()).sum()
        };
        let in_flight = snapshot.servers.iter().map(calls).sum();
        let is_detailed = in_flight <= DETAILED_MAX;
        let oldest = snapshot.servers.iter().filter_map(|server| server.oldest).min();
        let wait = oldest.map_or(0, |since| snapshot.now.duration_since(since).as_millis());
        let numbers = Numbers {
            longest_wait_ms: i64::try_from(wait).unwrap_or(i64::MAX),
            waiting: snapshot.servers.iter().map(|server| server.waiting).sum(),
            in_flight,
            refused_own: refused.0,
            refused_other: refused.1,
        };
        let mut before = std::mem::take(&mut self.places);
        let mut servers = BTreeMap::new();
        for server in &snapshot.servers {
            let mut cells = HashMap::new();
            for instance in &server.instances {
                let key = instance.key();
                let place = format!("{}/{key}", server.id);
                let mut places = before.remove(&place).unwrap_or_default();
                let assigned = places.assign(&instance.calls);
                for (call, at) in instance.calls.iter().zip(assigned) {
                    cells.insert(format!("{key}/{at}"), cell(snapshot, call, is_detailed));
                }
                self.places.insert(place, places);
            }
            let line = server.line.iter().map(|call| waiter(snapshot, call)).collect();
            let frame = ServerFrame {
                head: head(snapshot, server),
                instances: instances(server),
                cells,
                line,
            };
            servers.insert(server.id.to_string(), frame);
        }
        Frame { at: snapshot.at(), numbers, servers }
    }
}

impl Frame {
    /// Writes the whole frame.
    pub fn whole(&self) -> Value {
        let servers = self.servers.iter().map(|(id, server)| (id.clone(), server.whole()));
        let servers: serde_json::Map<_, _> = servers.collect();
        json!({"at": self.at, "numbers": self.numbers, "servers": servers})
    }

    /// Writes the difference to an earlier frame; `None` if there is none.
    pub fn since(&self, before: &Self) -> Option<Value> {
        let mut servers = serde_json::Map::new();
        for (id, server) in &self.servers {
            let change = match before.servers.get(id) {
                Some(before) => server.since(before),
                None => Some(server.whole()),
            };
            servers.extend(change.map(|change| (id.clone(), change)));
        }
        for gone in before.servers.keys().filter(|id| !self.servers.contains_key(*id)) {
            servers.insert(gone.clone(), Value::Null);
        }
        let has_numbers = self.numbers != before.numbers;
        if servers.is_empty() && !has_numbers {
            return None;
        }
        let mut change = json!({"at": self.at, "servers": servers});
        if has_numbers {
            change["numbers"] = json!(self.numbers);
        }
        Some(change)
    }
}

impl ServerFrame {
    fn whole(&self) -> Value {
        let cells: serde_json::Map<_, _> =
            self.cells.iter().map(|(key, cell)| (key.clone(), (**cell).clone())).collect();
        json!({"head": self.head, "instances": self.instances, "cells": cells, "line": self.line})
    }

    fn since(&self, before: &Self) -> Option<Value> {
        let mut change = serde_json::Map::new();
        for (name, now, then) in [
            ("head", &self.head, &before.head),
            ("instances", &self.instances, &before.instances),
            ("line", &self.line, &before.line),
        ] {
            if now != then {
                change.insert(name.to_owned(), now.clone());
            }
        }
        let mut cells = serde_json::Map::new();
        for (key, cell) in &self.cells {
            if before.cells.get(key) != Some(cell) {
                cells.insert(key.clone(), (**cell).clone());
            }
        }
        for gone in before.cells.keys().filter(|key| !self.cells.contains_key(*key)) {
            cells.insert(gone.clone(), Value::Null);
        }
        if !cells.is_empty() {
            change.insert("cells".to_owned(), Value::Object(cells));
        }
        (!change.is_empty()).then_some(Value::Object(change))
    }
}

impl InstanceSnapshot {
    /// Names the instance within its server.
    fn key(&self) -> String {
        match &self.owner {
            Some(owner) => format!("{owner}:{}", self.number),
            None => self.number.to_string(),
        }
    }
}

fn head(snapshot: &Snapshot, server: &ServerSnapshot) -> Value {
    json!({
        "state": server.state,
        "reason": server.reason,
        "since": server.since.map(|since| since.as_millisecond()),
        "paused": server.is_paused,
        "slots": server.slots,
        "kept": server.kept,
        "kept_free": server.kept_free,
        "taken": server.taken,
        "waiting": server.waiting,
        "oldest": server.oldest.map(|since| snapshot.millis(since)),
        "more_instances": server.more_instances,
    })
}

fn instances(server: &ServerSnapshot) -> Value {
    let view = |instance: &InstanceSnapshot| {
        json!({
            "key": instance.key(),
            "n": instance.number,
            "owner": instance.owner,
            "state": instance.state,
            "limit": instance.limit,
            "max": instance.limit_max,
        })
    };
    server.instances.iter().map(view).collect()
}

/// Writes a call on a slot: tenant, state, begin, deadline; then id, tool, number of the attempt,
/// labels.
fn cell(snapshot: &Snapshot, call: &LiveCall, is_detailed: bool) -> Arc<Value> {
    let state = match call.state {
        LiveState::Queued => "q",
        LiveState::Running => "r",
        LiveState::Abandoned => "a",
    };
    let attempt = call.attempt.as_ref();
    let begun = attempt.map_or(snapshot.now, |attempt| attempt.dispatched);
    let (begun, deadline) = (snapshot.millis(begun), snapshot.millis(call.deadline));
    let tenant = call.tenant.name().as_str();
    Arc::new(match attempt {
        Some(attempt) if is_detailed => json!([
            tenant,
            state,
            begun,
            deadline,
            call.call.to_string(),
            attempt.target.name(),
            attempt.number,
            labels(attempt.tags.as_deref()),
        ]),
        _ => json!([tenant, state, begun, deadline]),
    })
}

/// Writes a waiting call: tenant, since when, deadline, id, tool, labels, and 1 if it waits for the
/// server's start.
fn waiter(snapshot: &Snapshot, call: &WaitingCall) -> Value {
    let tenant = call.tenant.name().as_str();
    let since = snapshot.millis(call.since);
    match &call.info {
        Some(info) => json!([
            tenant,
            since,
            snapshot.millis(info.deadline),
            info.call.to_string(),
            info.target,
            labels(info.tags.as_deref()),
            u8::from(call.is_early),
        ]),
        None => json!([tenant, since]),
    }
}

fn labels(tags: Option<&CallTags>) -> &[String] {
    tags.map_or(&[], |tags| tags.labels.as_slice())
}

#[cfg(test)]
#[path = "tests/frame.rs"]
mod tests;
