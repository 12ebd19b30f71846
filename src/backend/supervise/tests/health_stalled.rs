//! The verdict on a server of which calls with distant deadlines hold all slots.

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn is_stalled(watched: &Watched) -> bool {
    watched.is_stalled.load(Ordering::Relaxed)
}

/// Makes two calls with an hour each, for which others wait.
async fn full() -> Watched {
    let mut watched = watch(PIPE_LEN);
    for tenant in ["one", "another"] {
        drop(watched.call_as(tenant, 1, HOUR).await);
        assert_eq!(watched.peer.receive().await["method"], "tools/call");
    }
    watched.is_starved.store(true, Ordering::Relaxed);
    watched
}

#[tokio::test(start_paused = true)]
async fn a_full_server_on_which_nothing_ends_is_reported_then_asked_and_has_failed() {
    let mut watched = full().await;
    sleep(USUAL - MOMENT).await;
    assert!(!is_stalled(&watched));
    sleep(2 * MOMENT).await;
    assert!(is_stalled(&watched));
    assert_eq!(watched.peer.receive().await["method"], "ping");
    assert!(watched.is_at(2 * USUAL.as_secs()));
    let verdict = (&mut watched.verdict).await.unwrap();
    assert!(verdict.starts_with("it has not answered for 60"), "{verdict}");
}

#[tokio::test(start_paused = true)]
async fn a_full_server_that_answers_pings_is_reported_and_left_alone() {
    let mut watched = full().await;
    for round in 0..20 {
        let ping = watched.peer.receive().await;
        assert_eq!(ping["method"], "ping");
        let at = 2 * USUAL.as_secs() + round * PING_AFTER.as_secs();
        let seconds = watched.began.elapsed().as_secs();
        assert!((at..=at + 1 + round).contains(&seconds), "ping {round} after {seconds} s");
        watched.peer.answer(&ping["id"], json!({})).await;
        assert!(is_stalled(&watched));
    }
    assert!(!watched.verdict.is_finished());
    watched.is_starved.store(false, Ordering::Relaxed);
    sleep(MOMENT).await;
    assert!(!is_stalled(&watched), "nobody waits any more");
}

#[tokio::test(start_paused = true)]
async fn a_full_server_that_prints_is_not_even_asked() {
    let mut watched = full().await;
    for _ in 0..3 * USUAL.as_secs() {
        watched.peer.send(json!({"method": "notifications/message", "params": {}})).await;
        assert!(timeout(Duration::from_secs(1), watched.peer.receive()).await.is_err());
    }
    assert!(is_stalled(&watched) && !watched.verdict.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_a_call_now_and_then_is_not_stalled() {
    let mut watched = full().await;
    for _ in 0..5 {
        let call = watched.call_as("third", 1, HOUR).await;
        let request = watched.peer.receive().await;
        assert_eq!(request["method"], "tools/call");
        sleep(USUAL - MOMENT).await;
        watched.peer.answer(&request["id"], json!({})).await;
        assert!(call.await.unwrap().is_ok());
        sleep(USUAL - 2 * MOMENT).await;
        assert!(!is_stalled(&watched));
    }
    assert!(!watched.verdict.is_finished());
}
