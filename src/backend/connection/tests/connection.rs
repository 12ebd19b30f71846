//! The connection, with the test as its server, over very small pipes.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::*;
use crate::backend::changes::mailbox::{Change, Mailbox};
use crate::backend::queue::{Queue, QueueError, QueueOptions, SlotPermit};
use crate::backend::testing::{self, GRACE, LINE_LEN_MAX, PIPE_LEN, Peer};
use crate::common::ids::{ServerId, TenantId};
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::mcp::ProtocolVersion;
use crate::protocol::mcp::requests::{CallMeta, Dialect, discover};

fn connect(pipe_len: usize) -> (Arc<Connection>, Peer) {
    testing::connect(pipe_len, Recipients::new(ServerId::parse("test").unwrap(), None))
}

fn in_secs(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

async fn acquire(queue: &Arc<Queue>, deadline: Instant) -> Result<SlotPermit, QueueError> {
    queue.enqueue(&TenantId::gateway(), 1, 0).acquire(Duration::ZERO, deadline).await
}

/// Starts a call with a mark among its arguments.
fn call(
    connection: &Arc<Connection>,
    mark: &str,
    deadline: Instant,
) -> tokio::task::JoinHandle<Result<Answer, RequestError>> {
    let arguments = RawObject::parse(json!({"mark": mark}).to_string().into()).unwrap();
    let mut call = connection.register(NewCall::gateway(deadline)).unwrap();
    let dialect = Dialect::new(ProtocolVersion::LATEST_LEGACY);
    let frame = dialect.tools_call(call.id(), "\"t\"", &arguments, "", &CallMeta::default());
    call.send(frame).unwrap();
    tokio::spawn(call.answer())
}

fn result(value: &Value) -> Result<Answer, RequestError> {
    Ok(Answer::Result(value.to_string().into()))
}

fn mark_of(request: &Value) -> Value {
    request["params"]["arguments"]["mark"].clone()
}

#[tokio::test(start_paused = true)]
async fn answers_in_any_order_reach_their_own_callers() {
    let (connection, mut peer) = connect(256);
    let calls: Vec<_> =
        (0..4).map(|n| call(&connection, &format!("call {n}"), in_secs(5))).collect();
    let mut requests = vec![];
    for _ in 0..4 {
        requests.push(peer.receive().await);
    }
    for request in [2, 0, 3, 1].map(|n| &requests[n]) {
        peer.answer(&request["id"], mark_of(request)).await;
    }
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap(), result(&json!(format!("call {n}"))));
    }
    assert_eq!(connection.in_flight_len(), 0);
}

#[tokio::test(start_paused = true)]
async fn however_many_requests_a_server_makes_there_is_room_for_calls() {
    let (connection, mut peer) = connect(256);
    // It reads nothing meanwhile, so that the answers to it have to wait.
    for id in 0..4 * MESSAGES_MAX {
        peer.send(json!({"id": id, "method": "ping"})).await;
    }
    let called = call(&connection, "a", in_secs(60));
    let request = loop {
        let message = peer.receive().await;
        if message["method"] == "tools/call" {
            break message;
        }
    };
    peer.answer(&request["id"], json!("a")).await;
    assert_eq!(called.await.unwrap(), result(&json!("a")));
}

#[tokio::test(start_paused = true)]
async fn one_timeout_leaves_the_others_untouched_and_cancels_that_call_alone() {
    let (connection, mut peer) = connect(4096);
    let slow = call(&connection, "slow", in_secs(1));
    let quick = call(&connection, "quick", in_secs(30));
    let (slow_request, quick_request) = (peer.receive().await, peer.receive().await);
    assert_eq!(slow.await.unwrap(), Err(RequestError::Expired { written: true }));

    let cancel = peer.receive().await;
    assert_eq!(cancel["method"], "notifications/cancelled");
    assert_eq!(cancel["params"]["requestId"], slow_request["id"]);

    // Its late answer goes to nobody; the other call gets its own.
    peer.answer(&slow_request["id"], json!("too late")).await;
    peer.answer(&quick_request["id"], json!("in time")).await;
    assert_eq!(quick.await.unwrap(), result(&json!("in time")));
    assert_eq!(connection.metrics.late_answers.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_cancels_its_call() {
    let (connection, mut peer) = connect(4096);
    let leaving = call(&connection, "leaving", in_secs(30));
    let request = peer.receive().await;
    leaving.abort();
    let cancel = peer.receive().await;
    assert_eq!(cancel["method"], "notifications/cancelled");
    assert_eq!(cancel["params"]["requestId"], request["id"]);
    assert_eq!(connection.metrics.cancelled.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_call_keeps_its_permits_until_the_answer_or_the_end_of_grace() {
    let (connection, mut peer) = connect(4096);
    let queue = Queue::new(1, QueueOptions::default());
    for answered in [true, false] {
        let permit = acquire(&queue, in_secs(1)).await.unwrap();
        let permits = Some(CallPermits::for_test(permit).await);
        let call = NewCall { permits, ..NewCall::gateway(in_secs(60)) };
        let mut call = connection.register(call).unwrap();
        call.send(Dialect::new(ProtocolVersion::LATEST).tools_list(call.id(), None)).unwrap();
        let request = peer.receive().await;
        drop(call);
        peer.receive().await; // the cancellation
        assert!(acquire(&queue, in_secs(1)).await.is_err(), "the slot was free too early");
        let freed_by = if answered {
            peer.answer(&request["id"], json!({})).await;
            Instant::now() + Duration::from_millis(1)
        } else {
            Instant::now() + GRACE
        };
        let permit = acquire(&queue, freed_by).await;
        assert!(permit.is_ok(), "answered: {answered}: the slot was not freed");
    }
}

#[tokio::test(start_paused = true)]
async fn when_the_server_exits_nobody_waits_and_later_calls_are_refused_with_the_reason() {
    let (connection, mut peer) = connect(4096);
    let calls: Vec<_> = (0..10).map(|n| call(&connection, &n.to_string(), in_secs(3600))).collect();
    peer.receive().await;
    let began = Instant::now();
    drop(peer);
    for call in calls {
        assert!(matches!(
            call.await.unwrap(),
            Err(RequestError::Closed { reason: CloseReason::Lost(_), .. })
        ));
    }
    assert!(began.elapsed() < Duration::from_secs(1));
    connection.closed().await;
    let late = connection.register(NewCall::gateway(in_secs(1)));
    assert!(matches!(late, Err(RequestError::Closed { written: false, .. })));
}

#[tokio::test(start_paused = true)]
async fn late_unknown_and_duplicate_answers_are_dropped_and_counted() {
    let (connection, mut peer) = connect(4096);
    let first = call(&connection, "first", in_secs(30));
    let request = peer.receive().await;
    for id in [json!(1), json!("x")] {
        peer.answer(&id, json!({})).await;
    }
    peer.answer(&request["id"], json!(1)).await;
    peer.answer(&request["id"], json!(2)).await;
    assert_eq!(first.await.unwrap(), result(&json!(1)));
    let second = call(&connection, "second", in_secs(30));
    let request = peer.receive().await;
    peer.answer(&request["id"], json!(3)).await;
    assert_eq!(second.await.unwrap(), result(&json!(3)));
    assert_eq!(connection.metrics.unknown_answers.get(), 2);
    assert_eq!(connection.metrics.late_answers.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn garbage_is_dropped_and_counted_and_split_messages_are_put_together() {
    let (connection, mut peer) = connect(64);
    let waiting = call(&connection, "x", in_secs(30));
    let request = peer.receive().await;
    peer.write("npm notice: a new version\n\n[1]\n\u{0}\u{1}{{{\n").await;
    let answer = format!(
        "{}\n",
        json!({"jsonrpc": "2.0", "id": request["id"], "result": {"text": "grüße"}})
    );
    for byte in answer.as_bytes() {
        peer.output.write_all(&[*byte]).await.unwrap();
    }
    assert_eq!(waiting.await.unwrap(), result(&json!({"text": "grüße"})));
    assert_eq!(connection.metrics.garbage_lines.get(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_answer_over_the_limit_fails_its_own_call_alone() {
    let (connection, mut peer) = connect(4096);
    let large = call(&connection, "large", in_secs(30));
    let small = call(&connection, "small", in_secs(30));
    let (large_request, small_request) = (peer.receive().await, peer.receive().await);
    peer.answer(&large_request["id"], json!("x".repeat(LINE_LEN_MAX))).await;
    peer.answer(&small_request["id"], json!("y")).await;
    assert_eq!(large.await.unwrap(), Err(RequestError::TooLarge));
    assert_eq!(small.await.unwrap(), result(&json!("y")));
}

#[tokio::test(start_paused = true)]
async fn an_overlong_answer_without_an_id_gives_the_connection_up() {
    let (connection, mut peer) = connect(4096);
    let waiting = call(&connection, "x", in_secs(30));
    peer.write(&format!("{}\n", "x".repeat(LINE_LEN_MAX + 1))).await;
    assert!(matches!(
        waiting.await.unwrap(),
        Err(RequestError::Closed { reason: CloseReason::Protocol(_), .. })
    ));
}

/// The server writes before it reads, we write before we read, and both write more than the pipes
/// hold. If reading had to wait for writing, this would deadlock.
#[tokio::test(start_paused = true)]
async fn both_pipes_full_in_both_directions_do_not_deadlock() {
    let (connection, mut peer) = connect(256);
    let calls: Vec<_> = (0..32)
        .map(|n| call(&connection, &format!("{n}:{}", "x".repeat(2000)), in_secs(60)))
        .collect();
    let server = async {
        for _ in 0..32 {
            let request = peer.receive().await;
            // Not one byte is read while this is being written.
            peer.answer(
                &request["id"],
                json!({"mark": mark_of(&request), "fill": "y".repeat(5000)}),
            )
            .await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), server)
        .await
        .expect("deadlock: reading waits for writing");
    for (n, call) in calls.into_iter().enumerate() {
        let Ok(Answer::Result(answer)) = call.await.unwrap() else { panic!("call {n} failed") };
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer["mark"].as_str().unwrap().starts_with(&format!("{n}:")));
    }
}

/// A server that never reads fills our pipe; its output is still read.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_read_can_still_answer() {
    let (connection, mut peer) = connect(256);
    let first = call(&connection, "first", in_secs(60));
    let request = peer.receive().await;
    let stuck: Vec<_> = (0..8).map(|_| call(&connection, &"x".repeat(1000), in_secs(60))).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    peer.answer(&request["id"], json!("still here")).await;
    assert_eq!(first.await.unwrap(), result(&json!("still here")));
    assert!(stuck.iter().all(|call| !call.is_finished()));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_deadline_passes_before_it_is_written_is_not_executed() {
    let (connection, mut peer) = connect(64);
    let blocking = call(&connection, &"x".repeat(10_000), in_secs(60));
    // Let the writer take that one and get stuck with it.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let waiting = call(&connection, "never written", in_secs(1));
    assert_eq!(waiting.await.unwrap(), Err(RequestError::Expired { written: false }));
    let request = peer.receive().await;
    peer.answer(&request["id"], json!(1)).await;
    assert_eq!(blocking.await.unwrap(), result(&json!(1)));
    let last = call(&connection, "last", in_secs(5));
    assert_eq!(mark_of(&peer.receive().await), "last", "the expired call was written after all");
    last.abort();
}

#[tokio::test(start_paused = true)]
async fn requests_of_the_server_are_answered_at_once() {
    let (connection, mut peer) = connect(4096);
    peer.write("{\"jsonrpc\":\"2.0\",\"id\":\"r1\",\"method\":\"roots/list\"}\n").await;
    peer.write("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\"}\n").await;
    let refused = peer.receive().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("r1"), &json!(-32601)));
    assert_eq!(peer.receive().await, json!({"jsonrpc": "2.0", "id": 7, "result": {}}));
    assert_eq!(connection.metrics.refused_requests.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn line_breaks_in_arguments_cannot_make_a_second_frame() {
    let (connection, mut peer) = connect(4096);
    let smuggled = "{\"a\":1,\n{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"tools/call\"}\n}";
    assert!(RawObject::parse(smuggled.into()).is_err());
    let spread = "{\"a\":\r\n{\"jsonrpc\":\"2.0\",\n\"id\":9,\"method\":\"x\"}\n}";
    let arguments = RawObject::parse(spread.into()).unwrap();
    let mut call = connection.register(NewCall::gateway(in_secs(5))).unwrap();
    call.send(Dialect::new(ProtocolVersion::LATEST).tools_call(
        call.id(),
        "\"t\"",
        &arguments,
        "",
        &CallMeta::default(),
    ))
    .unwrap();
    let request = peer.receive().await;
    assert_eq!(request["params"]["arguments"], serde_json::from_str::<Value>(spread).unwrap());
    drop(call);
    assert_eq!(
        peer.receive().await["method"],
        "notifications/cancelled",
        "something was smuggled in between"
    );
}

/// The last line of defence: if the table and the caller disagree on the identity of a call, nobody
/// gets the answer.
#[tokio::test(start_paused = true)]
async fn an_answer_of_another_call_is_withheld_and_closes_the_connection() {
    let (connection, mut peer) = connect(4096);
    let mut call = connection.register(NewCall::gateway(in_secs(5))).unwrap();
    call.send(Dialect::new(ProtocolVersion::LATEST).tools_list(call.id(), None)).unwrap();
    let request = peer.receive().await;
    call.identity = CallIdentity::gateway(1);
    peer.answer(&request["id"], json!("somebody else's")).await;
    assert_eq!(call.answer().await, Err(RequestError::IdentityMismatch));
    assert_eq!(connection.metrics.identity_alarms.get(), 1);
    assert!(matches!(connection.closed().await, CloseReason::Protocol(_)));
    let mut rest = String::new();
    peer.input.into_inner().read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "", "the server's input was not closed");
}

#[tokio::test(start_paused = true)]
async fn missed_changes_are_told_of_the_lists_that_the_server_announces() {
    for (lists, has_tools) in [
        (Lists { tools: true, prompts: true, ..Lists::default() }, true),
        (Lists { prompts: true, resources: true, ..Lists::default() }, false),
    ] {
        let recipients = Recipients::new(ServerId::parse("test").unwrap(), None);
        let (changes, mailbox) = (recipients.changes.clone(), Arc::new(Mailbox::default()));
        let _heard = changes.subscribe(TenantId::gateway(), mailbox.clone(), Lists::ALL);
        let (connection, _peer) = testing::connect(256, recipients);
        connection.set_announced_lists(lists);
        connection.note_missed_changes();
        let mut told = Lists::default();
        while let Ok(change) = timeout(Duration::ZERO, mailbox.next()).await {
            let Change::List(list) = change else { panic!("{change:?}") };
            *told.flag_mut(list) = true;
        }
        assert_eq!(told, lists);
        let is_listed = timeout(Duration::ZERO, connection.tools_changed()).await.is_ok();
        assert_eq!(is_listed, has_tools);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retired_connection_completes_its_calls_and_takes_no_others() {
    let (connection, mut peer) = connect(PIPE_LEN);
    let call = call(&connection, "first", in_secs(5));
    let request = peer.receive().await;
    assert!(!connection.wants_replacement().is_cancelled());
    connection.retire("it is gone", "first".to_owned());
    connection.retire("it is gone", "second".to_owned());
    assert!(connection.wants_replacement().is_cancelled() && !connection.is_closed());
    let refused =
        RequestError::Unreached { reason: "it is gone".into(), detail: "first".to_owned() };
    assert_eq!(connection.request(in_secs(5), discover).await, Err(refused));
    peer.answer(&request["id"], json!({})).await;
    assert_eq!(call.await.unwrap(), result(&json!({})));
}
