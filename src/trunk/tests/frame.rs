//! Shows that viewers are told what a harness knows, over ten thousand dispatches.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use super::*;
use crate::backend::connection::live_calls::{AttemptInfo, Target};
use crate::backend::queue::WaitingInfo;
use crate::common::ids::{CallId, ServerId, TenantId};
use crate::trunk::snapshot::Clocks;

const DISPATCHES: usize = 10_000;
const INSTANCES: usize = 3;
const SLOTS: usize = 16;
const NAMES: [&str; 5] = ["acme", "globex", "hooli", "initech", "umbrella"];
const HOUR: Duration = Duration::from_secs(3600);

/// A viewer that knows nothing but the messages of the stream.
#[derive(Default)]
struct Viewer {
    cells: BTreeMap<String, Value>,
    line: Vec<Value>,
    head: Value,
}

impl Viewer {
    /// Takes note of a message as the page does (`merge` in `api.js`).
    fn apply(&mut self, message: &Value) {
        let Some(change) = message["servers"].get("std") else { return };
        for (key, cell) in change.get("cells").and_then(Value::as_object).into_iter().flatten() {
            match cell {
                Value::Null => self.cells.remove(key),
                cell => self.cells.insert(key.clone(), cell.clone()),
            };
        }
        if let Some(line) = change.get("line") {
            self.line = line.as_array().unwrap().clone();
        }
        if let Some(head) = change.get("head") {
            self.head = head.clone();
        }
    }

    /// Returns the place of each call on a slot, with its tenant.
    fn places(&self) -> BTreeMap<String, (String, String)> {
        let place = |(key, cell): (&String, &Value)| {
            let text = |at: usize| cell[at].as_str().unwrap().to_owned();
            (text(4), (key.clone(), text(0)))
        };
        self.cells.iter().map(place).collect()
    }

    fn in_line(&self) -> Vec<&str> {
        self.line.iter().map(|waiter| waiter[3].as_str().unwrap()).collect()
    }
}

/// Gives slots in the order of the line, and knows who has them.
struct Harness {
    instances: [Vec<LiveCall>; INSTANCES],
    line: Vec<WaitingCall>,
    random: StdRng,
}

impl Harness {
    fn come(&mut self) {
        let tenant = TenantId::testing(NAMES[self.random.random_range(0..NAMES.len())]);
        let (call, since) = (CallId::generate(), Instant::now());
        let deadline = since + HOUR;
        let info = WaitingInfo { call, target: "tool".into(), tags: None, deadline };
        self.line.push(WaitingCall { tenant, since, is_early: false, info: Some(info) });
    }

    /// Gives a slot of one instance to the first in line, if one is free.
    fn dispatch(&mut self) -> bool {
        let at = self.random.random_range(0..INSTANCES);
        if self.line.is_empty() || self.instances[at].len() == SLOTS {
            return false;
        }
        let WaitingCall { tenant, info, .. } = self.line.remove(0);
        let (target, dispatched) = (Target::Method("tools/call"), Instant::now());
        let attempt = AttemptInfo { target, tags: None, number: 1, dispatched };
        let WaitingInfo { call, deadline, .. } = info.unwrap();
        let (state, attempt) = (LiveState::Running, Some(attempt));
        self.instances[at].push(LiveCall { call, tenant, state, deadline, attempt });
        true
    }

    fn end(&mut self) {
        let at = self.random.random_range(0..INSTANCES);
        if !self.instances[at].is_empty() {
            let which = self.random.random_range(0..self.instances[at].len());
            // The table of calls has no order.
            self.instances[at].swap_remove(which);
        }
    }

    fn snapshot(&self, clocks: Clocks) -> Snapshot {
        let taken = self.instances.iter().map(Vec::len).sum::<usize>();
        let instance = |(number, calls): (usize, &Vec<LiveCall>)| InstanceSnapshot {
            owner: None,
            number,
            state: "ready",
            limit: SLOTS as u32,
            limit_max: SLOTS as u32,
            calls: calls.clone(),
        };
        let server = ServerSnapshot {
            waiting: self.line.len(),
            taken: taken as u32,
            instances: self.instances.iter().enumerate().map(instance).collect(),
            line: self.line.clone(),
            ..ServerSnapshot::new(ServerId::parse("std").unwrap())
        };
        Snapshot::of(clocks, vec![server])
    }

    /// Returns the instance and the tenant of each call on a slot.
    fn on_slots(&self) -> BTreeMap<String, (usize, String)> {
        let calls = self.instances.iter().enumerate();
        let calls = calls.flat_map(|(at, calls)| calls.iter().map(move |call| (at, call)));
        calls
            .map(|(at, call)| (call.call.to_string(), (at, call.tenant.name().to_string())))
            .collect()
    }
}

#[tokio::test]
async fn viewers_know_who_holds_which_slot_and_the_order_of_the_line() {
    let random = StdRng::seed_from_u64(21);
    let mut harness = Harness { instances: Default::default(), line: vec![], random };
    let (clocks, mut framer) = (Clocks::now(), Framer::default());
    let mut before = framer.frame(&harness.snapshot(clocks), (0, 0));
    let mut viewer = Viewer::default();
    viewer.apply(&before.whole());
    let (mut dispatched, mut kept) = (0, BTreeMap::<String, (String, String)>::new());
    while dispatched < DISPATCHES {
        for _ in 0..harness.random.random_range(0..12) {
            match harness.random.random_range(0..3) {
                0 => harness.come(),
                1 => dispatched += usize::from(harness.dispatch()),
                _ => harness.end(),
            }
        }
        while harness.line.len() < 5 {
            harness.come();
        }
        let frame = framer.frame(&harness.snapshot(clocks), (0, 0));
        if let Some(change) = frame.since(&before) {
            viewer.apply(&change);
        }
        before = frame;
        let (seen, known) = (viewer.places(), harness.on_slots());
        // As many squares as calls: no two calls share one, and none is drawn twice.
        assert_eq!((viewer.cells.len(), seen.len()), (known.len(), known.len()));
        for (call, (at, tenant)) in &known {
            let (place, shown) = &seen[call];
            let (instance, slot) = place.split_once('/').unwrap();
            assert_eq!((shown, instance), (tenant, at.to_string().as_str()), "after {dispatched}");
            assert!(slot.parse::<usize>().unwrap() < SLOTS, "{place} after {dispatched}");
            // A call does not jump.
            assert!(kept.get(call).is_none_or(|(before, _)| before == place), "{place}");
        }
        let waits = harness.line.iter().map(|it| it.info.as_ref().unwrap().call.to_string());
        assert_eq!(viewer.in_line(), waits.collect::<Vec<_>>(), "after {dispatched}");
        assert_eq!(viewer.head["taken"], known.len());
        kept = seen;
    }
}
