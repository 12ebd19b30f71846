//! Signs of life of a server played by the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::*;
use crate::backend::changes::recipients::Recipients;
use crate::backend::connection::call_notifications::NotificationSender;
use crate::backend::connection::{Answer, CallPermits, NewCall};
use crate::backend::queue::{Queue, QueueOptions};
use crate::backend::testing::{GRACE, PIPE_LEN, Peer, connect};
use crate::common::ids::{ServerId, TenantId};
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::mcp::ProtocolVersion;
use crate::protocol::mcp::requests::{CallMeta, Dialect};

/// A server that is watched: what is called, what is played, and what the watch says in the end.
struct Watched {
    ready: Arc<Ready>,
    /// Calls have slots of it: only those can be overdue.
    queue: Arc<Queue>,
    peer: Peer,
    verdict: JoinHandle<String>,
    /// Whether calls wait for a slot.
    is_starved: Arc<AtomicBool>,
    /// Whether it was last reported as stalled.
    is_stalled: Arc<AtomicBool>,
    began: Instant,
}

fn watch(pipe_len: usize) -> Watched {
    let id = ServerId::parse("test").unwrap();
    let (connection, peer) = connect(pipe_len, Recipients::new(id, None));
    let dialect = Arc::new(Dialect::new(ProtocolVersion::LATEST_LEGACY));
    let ready = Ready { connection, dialect, about: Arc::default(), tools: Arc::default() };
    let ready = Arc::new(ready);
    let watched = ready.clone();
    let (is_starved, is_stalled) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let (starved, stalled) = (is_starved.clone(), is_stalled.clone());
    let verdict = tokio::spawn(async move {
        let surroundings = Surroundings {
            grace: GRACE,
            usual: USUAL,
            is_starved: &|| starved.load(Ordering::Relaxed),
            report_stalled: &|is_stalled| stalled.store(is_stalled, Ordering::Relaxed),
        };
        failing(&watched, &surroundings).await
    });
    Watched {
        ready,
        queue: Queue::new(64, QueueOptions::default()),
        peer,
        verdict,
        is_starved,
        is_stalled,
        began: Instant::now(),
    }
}

impl Watched {
    /// A tenant calls with arguments of this length.
    async fn call(&self, len: usize, time: Duration) -> JoinHandle<Result<Answer, RequestError>> {
        self.call_as("one", len, time).await
    }

    /// Another tenant does, with short ones.
    async fn another_calls(&self, time: Duration) -> JoinHandle<Result<Answer, RequestError>> {
        self.call_as("another", 1, time).await
    }

    async fn call_as(
        &self,
        tenant: &str,
        len: usize,
        time: Duration,
    ) -> JoinHandle<Result<Answer, RequestError>> {
        let arguments = RawObject::parse(json!({"a": "x".repeat(len)}).to_string().into()).unwrap();
        let (tenant, deadline) = (TenantId::testing(tenant), Instant::now() + time);
        let permit =
            self.queue.enqueue(&tenant, 1, 0).acquire(Duration::ZERO, deadline).await.unwrap();
        let connection = &self.ready.connection;
        let permits = Some(CallPermits::for_test(permit).await);
        let call = NewCall { tenant, permits, ..NewCall::gateway(deadline) };
        let mut handle = connection.register(call).unwrap();
        let meta = CallMeta::default();
        let frame = self.ready.dialect.tools_call(handle.id(), "\"t\"", &arguments, "", &meta);
        handle.send(frame).unwrap();
        tokio::spawn(handle.answer())
    }

    /// Returns whether so many seconds have passed since the watch began, or up to one more: that
    /// is how often it looks.
    fn is_at(&self, seconds: u64) -> bool {
        (seconds..=seconds + 1).contains(&self.began.elapsed().as_secs())
    }
}

/// The time that calls usually have.
const USUAL: Duration = Duration::from_secs(300);
/// A little more than between two looks.
const MOMENT: Duration = Duration::from_secs(2);

#[tokio::test(start_paused = true)]
async fn an_idle_server_is_asked_now_and_then_and_lives_as_long_as_it_answers() {
    let mut watched = watch(PIPE_LEN);
    for round in 1..=10 {
        let ping = watched.peer.receive().await;
        assert_eq!(ping["method"], "ping");
        let seconds = watched.began.elapsed().as_secs();
        assert!((30 * round..=31 * round).contains(&seconds), "ping {round} after {seconds} s");
        watched.peer.answer(&ping["id"], json!({})).await;
    }
    assert!(!watched.verdict.is_finished());
}

#[tokio::test(start_paused = true)]
async fn an_idle_server_that_gives_no_sign_of_life_has_failed() {
    let mut watched = watch(PIPE_LEN);
    watched.peer.receive().await;
    assert!(watched.is_at(30));
    assert_eq!((&mut watched.verdict).await.unwrap(), "it has not answered for 35 s");
    assert!(watched.is_at(35));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_only_listened_to_is_idle() {
    let mut watched = watch(PIPE_LEN);
    let (connection, deadline) = (&watched.ready.connection, Instant::now() + 100 * USUAL);
    let listener = Some(NotificationSender::new(None, None).0);
    let call = NewCall { listener, ..NewCall::gateway(deadline) };
    let mut handle = connection.register(call).unwrap();
    handle.send(watched.ready.dialect.listen(handle.id(), &json!({}))).unwrap();
    assert_eq!(watched.peer.receive().await["method"], "subscriptions/listen");
    let ping = timeout(2 * PING_AFTER, watched.peer.receive()).await.expect("it is asked");
    assert_eq!(ping["method"], "ping");
    assert!(watched.is_at(30));
    assert_eq!((&mut watched.verdict).await.unwrap(), "it has not answered for 35 s");
}

#[tokio::test(start_paused = true)]
async fn an_error_is_a_sign_of_life_and_so_is_anything_else() {
    let mut watched = watch(PIPE_LEN);
    let ping = watched.peer.receive().await;
    let error = json!({"code": -32601, "message": "no"});
    watched.peer.send(json!({"id": ping["id"], "error": error})).await;
    watched.peer.receive().await;
    sleep(PING_TIMEOUT / 2).await;
    watched.peer.write("what it prints\n").await;
    sleep(PING_TIMEOUT + MOMENT).await;
    assert!(!watched.verdict.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_left_alone_however_long_it_is_silent() {
    let mut watched = watch(PIPE_LEN);
    let call = watched.call(1, Duration::from_secs(1000)).await;
    let request = watched.peer.receive().await;
    let more = timeout(Duration::from_secs(900), watched.peer.receive()).await;
    assert!(more.is_err(), "it was sent {more:?}");
    watched.peer.answer(&request["id"], json!({})).await;
    assert!(call.await.unwrap().is_ok());
    assert!(!watched.verdict.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_read_for_ten_seconds_has_failed() {
    let mut watched = watch(256);
    // It may say what it likes meanwhile.
    let _call = watched.call(1000, Duration::from_secs(1000)).await;
    for _ in 0..9 {
        watched.peer.send(json!({"method": "notifications/message"})).await;
        sleep(Duration::from_secs(1)).await;
    }
    assert!(!watched.verdict.is_finished());
    assert_eq!((&mut watched.verdict).await.unwrap(), "it has not read its input for 10 s");
    assert!(watched.is_at(10));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_just_answered_is_about_to_read_on() {
    let mut watched = watch(256);
    let long = watched.call(1, Duration::from_secs(60)).await;
    let request = watched.peer.receive().await;
    let _large = watched.call(1000, Duration::from_secs(1000)).await;
    sleep(3 * BLOCKED_MAX).await;
    watched.peer.answer(&request["id"], json!({})).await;
    assert!(long.await.unwrap().is_ok());
    sleep(BLOCKED_MAX - MOMENT).await;
    assert!(!watched.verdict.is_finished());
    assert_eq!((&mut watched.verdict).await.unwrap(), "it has not read its input for 10 s");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_reads_a_little_of_a_long_call_at_a_time_is_not_blocked() {
    let mut watched = watch(256);
    let _call = watched.call(2000, Duration::from_secs(1000)).await;
    for _ in 0..5 {
        sleep(BLOCKED_MAX - MOMENT).await;
        watched.peer.input.get_mut().get_mut().read_exact(&mut [0; 200]).await.unwrap();
    }
    assert!(!watched.verdict.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_reads_slowly_is_not_blocked() {
    let mut watched = watch(256);
    for _ in 0..5 {
        let _call = watched.call(1000, Duration::from_secs(1000)).await;
        sleep(BLOCKED_MAX - MOMENT).await;
        watched.peer.receive().await;
    }
    assert!(!watched.verdict.is_finished());
}

#[tokio::test(start_paused = true)]
async fn nor_has_it_failed_when_it_does_not_read_meanwhile() {
    let mut watched = watch(256);
    let long = watched.call(1, Duration::from_secs(60)).await;
    watched.peer.receive().await;
    sleep(MOMENT).await;
    let _large = watched.call(1000, Duration::from_secs(1000)).await;
    sleep(Duration::from_secs(50)).await;
    assert!(!long.is_finished() && !watched.verdict.is_finished());
    assert_eq!((&mut watched.verdict).await.unwrap(), "it has not read its input for 10 s");
    assert!(watched.is_at(60));
}

#[path = "health_overdue.rs"]
mod late;

#[path = "health_stalled.rs"]
mod stalled;
