use std::sync::atomic::{AtomicBool, Ordering as AtomicOrdering};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::advance;

use super::call_log::{CallLog, Entry};
use super::explanation::Explanation;
use super::recent::RecentCalls;
use super::*;
use crate::common::ids::{CallId, TenantId};

/// A call of a tenant that its own limits have refused.
fn refused(tenant: &str) -> EndedCall {
    EndedCall {
        id: CallId::generate(),
        tenant: TenantId::testing(tenant),
        key: None,
        tags: CallTags { request_id: Some("r-1".to_owned()), labels: vec!["run=7".to_owned()] },
        server: "search".into(),
        target: "query".into(),
        arrived: Timestamp::now(),
        took: Duration::from_millis(3),
        outcome: CallOutcome::Refused,
        code: Some("rate_limited"),
        executed: "no",
        is_own_limit: true,
        attempts: 0,
        queue: Duration::from_millis(3),
        backend: Duration::ZERO,
        bytes_in: 12,
        bytes_out: 0,
        explanation: Explanation::default(),
        traced: None,
        backend_code: None,
    }
}

fn ended(call: EndedCall) -> Event {
    Event::CallEnded(Arc::new(call))
}

#[test]
fn an_event_that_nobody_wants_is_not_made() {
    let (events, is_made) = (Events::default(), AtomicBool::new(false));
    let tell = |kind| {
        events.tell(kind, || {
            is_made.store(true, AtomicOrdering::Relaxed);
            ended(refused("a"))
        });
        is_made.swap(false, AtomicOrdering::Relaxed)
    };
    assert!(!tell(Kinds::NOTABLE));
    let listener = events.listen(Kinds::NOTABLE, 1);
    assert!(tell(Kinds::NOTABLE) && !tell(Kinds::ROUTINE));
    let other = events.listen(Kinds::ROUTINE, 1);
    drop(listener);
    assert!(!tell(Kinds::NOTABLE) && tell(Kinds::ROUTINE));
    drop(other);
    assert!(!tell(Kinds::ALL));
}

#[tokio::test]
async fn a_slow_listener_loses_events_and_is_told_how_many_and_others_lose_none() {
    let events = Events::default();
    let (mut slow, mut quick) = (events.listen(Kinds::ALL, 2), events.listen(Kinds::ALL, 100));
    for _ in 0..7 {
        events.tell(Kinds::NOTABLE, || ended(refused("a")));
    }
    assert_eq!(events.lost(), 5);
    assert_eq!(slow.next().await.lost, 5);
    assert_eq!(slow.next().await.lost, 0);
    events.tell(Kinds::NOTABLE, || ended(refused("b")));
    let Heard { event: Event::CallEnded(call), lost: 0 } = slow.next().await else { panic!() };
    assert_eq!(call.tenant.name().as_str(), "b");
    for _ in 0..8 {
        assert_eq!(quick.next().await.lost, 0);
    }
}

#[tokio::test]
async fn a_traced_call_that_ended_well_is_heard_by_those_who_trace() {
    let events = Events::default();
    let (mut traces, mut both) =
        (events.listen(Kinds::TRACED, 9), events.listen(Kinds::TRACED | Kinds::ENDS, 9));
    let recent = Arc::new(RecentCalls::default());
    events.attach(Kinds::NOTABLE, recent.clone());
    events.tell(Kinds::ROUTINE, || ended(refused("plain")));
    events.tell(Kinds::ROUTINE | Kinds::TRACED, || ended(refused("traced")));
    let tenant_of = |heard: Heard| match heard.event {
        Event::CallEnded(call) => call.tenant.name().to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(tenant_of(traces.next().await), "traced");
    assert_eq!(tenant_of(both.next().await), "plain");
    assert_eq!(tenant_of(both.next().await), "traced");
    assert_eq!(recent.bytes(), 0);
}

#[test]
fn a_flood_of_one_tenant_pushes_out_only_its_own_calls_and_memory_is_bounded() {
    let recent = RecentCalls::default();
    let hear = |call: EndedCall| {
        let (tenant, id) = (call.tenant.clone(), call.id);
        recent.hear(&ended(call));
        (tenant, id)
    };
    // Fewer tenants than would fill their shares.
    let quiet: Vec<_> = (0..200).map(|n| hear(refused(&format!("quiet-{n}")))).collect();
    let flood: Vec<_> = (0..200_000).map(|_| hear(refused("flood"))).collect();
    assert!(recent.bytes() <= 16 << 20, "{}", recent.bytes());
    for (tenant, id) in &quiet {
        assert!(recent.find(tenant, *id).is_some(), "{tenant} was pushed out");
    }
    let is_found = |(tenant, id): &(TenantId, CallId)| recent.find(tenant, *id).is_some();
    assert!(flood[flood.len() - 500..].iter().all(is_found));
    assert!(!is_found(&flood[0]));
    // Another tenant's call is not found, and neither is that of the next one of this name.
    assert!(recent.find(&TenantId::testing("flood"), quiet[0].1).is_none());
    assert!(recent.find_any(quiet[0].1).is_some());
    // More tenants than there is memory for: the bound still holds.
    (0..100_000).for_each(|n| _ = hear(refused(&format!("many-{n}"))));
    assert!(recent.bytes() <= 16 << 20, "{}", recent.bytes());
}

#[tokio::test(start_paused = true)]
async fn a_tenant_has_ten_lines_a_second_about_its_own_limits_and_a_count_of_the_rest() {
    let lines: Arc<Mutex<Vec<Value>>> = Arc::default();
    let written = lines.clone();
    let write = move |entry: Entry<'_>| {
        let line = entry.line();
        assert!(line.ends_with(b"}\n"));
        written.lock().push(serde_json::from_slice(&line).unwrap());
    };
    let log = Arc::new(CallLog::new(false, vec![Box::new(write)]));
    let running = log.clone();
    let _running = tokio::spawn(async move { running.run().await });
    tokio::task::yield_now().await;
    for _ in 0..1000 {
        log.hear(&ended(refused("flood")));
    }
    log.hear(&ended(refused("quiet")));
    // A tool's own failure and a success are no failures.
    for outcome in [CallOutcome::Ok, CallOutcome::ToolError] {
        log.hear(&ended(EndedCall { outcome, ..refused("quiet") }));
    }
    for _ in 0..150 {
        log.hear(&ended(EndedCall { is_own_limit: false, ..refused("flood") }));
    }
    let of = |tenant: &str| -> usize {
        lines.lock().iter().filter(|line| line["tenant"] == tenant).count()
    };
    assert_eq!((of("flood"), of("quiet")), (10 + 100, 1));
    // Also if no further call comes.
    advance(Duration::from_secs(2)).await;
    tokio::task::yield_now().await;
    let last = lines.lock().pop().unwrap();
    assert_eq!((&last["left_out_own_limit"], &last["left_out_others"]), (&990.into(), &50.into()));
    log.hear(&ended(refused("flood")));
    let mut line = lines.lock().pop().unwrap();
    for name in ["timestamp", "call"] {
        assert!(line.as_object_mut().unwrap().remove(name).unwrap().is_string());
    }
    let expected = serde_json::json!({
        "target": "call", "request_id": "r-1", "tenant": "flood", "server": "search",
        "tool": "query", "outcome": "error", "code": "rate_limited", "executed": "no",
        "attempts": 0, "queue_ms": 3.0, "backend_ms": 0.0, "bytes_in": 12, "bytes_out": 0,
        "labels": ["run=7"],
    });
    assert_eq!(line, expected);
}

#[test]
fn names_that_callers_invent_are_cut() {
    assert_eq!(call::bounded_name(&"ü".repeat(1000)).len(), 128);
    let long = EndedCall { target: call::bounded_name(&"x".repeat(1 << 20)), ..refused("a") };
    assert!(long.cost() < 2048, "{}", long.cost());
}
