//! The verdict on a server with overdue calls.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_server_that_is_silent_until_the_grace_of_a_late_call_ends_is_asked_and_has_failed() {
    let mut watched = watch(PIPE_LEN);
    let call = watched.call(1, Duration::from_secs(1)).await;
    assert_eq!(watched.peer.receive().await["method"], "tools/call");
    assert!(call.await.unwrap().is_err());
    assert_eq!(watched.peer.receive().await["method"], "notifications/cancelled");
    // The tenant's own later calls are no reason to leave it alone.
    let other = watched.call(1, Duration::from_secs(1000)).await;
    watched.peer.receive().await;
    assert_eq!(watched.peer.receive().await["method"], "ping");
    assert!(watched.is_at(1 + GRACE.as_secs()));
    assert_eq!((&mut watched.verdict).await.unwrap(), "it has not answered for 11 s");
    assert!(!other.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_only_slow_with_one_call_is_not_even_asked() {
    let mut watched = watch(PIPE_LEN);
    let late = watched.call(1, Duration::from_secs(1)).await;
    let busy = watched.call(1, Duration::from_secs(1000)).await;
    watched.peer.receive().await;
    watched.peer.receive().await;
    assert!(late.await.unwrap().is_err());
    watched.peer.receive().await;
    for _ in 0..20 {
        watched.peer.send(json!({"method": "notifications/message", "params": {}})).await;
        assert!(timeout(GRACE / 2, watched.peer.receive()).await.is_err(), "it was asked");
        // Others are answered meanwhile.
        let other = watched.call(1, Duration::from_secs(1)).await;
        let request = watched.peer.receive().await;
        watched.peer.answer(&request["id"], json!({})).await;
        assert!(other.await.unwrap().is_ok());
    }
    assert!(!busy.is_finished() && !watched.verdict.is_finished());
}

#[tokio::test(start_paused = true)]
async fn one_tenants_late_calls_do_not_cost_another_a_server_that_may_be_at_its_call() {
    let mut watched = watch(PIPE_LEN);
    let late = watched.call(1, Duration::from_secs(1)).await;
    let others = watched.another_calls(Duration::from_secs(60)).await;
    for _ in 0..2 {
        assert_eq!(watched.peer.receive().await["method"], "tools/call");
    }
    assert!(late.await.unwrap().is_err());
    assert_eq!(watched.peer.receive().await["method"], "notifications/cancelled");
    assert!(timeout(Duration::from_secs(50), watched.peer.receive()).await.is_err());
    assert!(!others.is_finished() && !watched.verdict.is_finished());
    // When that one is late, too, it is no longer one tenant's word.
    assert!(others.await.unwrap().is_err());
    assert_eq!(watched.peer.receive().await["method"], "notifications/cancelled");
    assert_eq!(watched.peer.receive().await["method"], "ping");
    assert!(watched.is_at(60));
    (&mut watched.verdict).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn others_who_call_all_the_time_do_not_keep_a_server_that_hangs_in_its_place() {
    let mut watched = watch(1 << 20);
    let late = watched.call(1, Duration::from_secs(1)).await;
    assert!(late.await.unwrap().is_err());
    while !watched.verdict.is_finished() && watched.began.elapsed() < 10 * USUAL {
        let others = watched.another_calls(Duration::from_secs(3600)).await;
        sleep(MOMENT).await;
        others.abort();
    }
    let due = 1 + GRACE.as_secs() + 2 * USUAL.as_secs() + PING_TIMEOUT.as_secs();
    let after = watched.began.elapsed().as_secs();
    assert!((due..=due + 4).contains(&after), "{after}");
    assert!((&mut watched.verdict).await.unwrap().starts_with("it has not answered for "));
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_written_together_have_an_order() {
    let mut watched = watch(PIPE_LEN);
    let long = watched.call(1, Duration::from_secs(60)).await;
    let late = watched.call(1, Duration::from_secs(1)).await;
    for _ in 0..2 {
        assert_eq!(watched.peer.receive().await["method"], "tools/call");
    }
    assert!(late.await.unwrap().is_err());
    assert_eq!(watched.peer.receive().await["method"], "notifications/cancelled");
    assert!(timeout(Duration::from_secs(50), watched.peer.receive()).await.is_err());
    assert!(!long.is_finished() && !watched.verdict.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forgets_what_it_is_told_to_forget_is_not_stuck() {
    let mut watched = watch(PIPE_LEN);
    for time in [Duration::from_secs(1), USUAL] {
        // The second was under way already when the first was late.
        let late = [watched.call(1, time).await, watched.call(1, time + MOMENT).await];
        assert_eq!(answer_pings_only(&mut watched, time + 20 * STUCK_MAX).await, None);
        for late in late {
            assert!(late.await.unwrap().is_err());
        }
        let next = watched.call(1, time).await;
        let request = watched.peer.receive().await;
        watched.peer.answer(&request["id"], json!({})).await;
        assert!(next.await.unwrap().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn callers_who_hang_up_say_nothing_about_a_server() {
    let mut watched = watch(PIPE_LEN);
    for _ in 0..20 {
        let gone = watched.call(1, Duration::from_secs(100)).await;
        assert_eq!(watched.peer.receive().await["method"], "tools/call");
        gone.abort();
        assert_eq!(watched.peer.receive().await["method"], "notifications/cancelled");
        assert_eq!(answer_pings_only(&mut watched, 2 * GRACE).await, None);
    }
}

/// Prints, and answers pings and nothing else, until the time is over or it is given up. Returns
/// after how long that was.
async fn answer_pings_only(watched: &mut Watched, time: Duration) -> Option<u64> {
    let until = Instant::now() + time;
    while Instant::now() < until && !watched.verdict.is_finished() {
        watched.peer.send(json!({"method": "notifications/message", "params": {}})).await;
        if let Ok(message) = timeout(Duration::from_secs(1), watched.peer.receive()).await
            && message["method"] == "ping"
        {
            watched.peer.answer(&message["id"], json!({})).await;
        }
    }
    watched.verdict.is_finished().then(|| watched.began.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_pings_and_no_calls_is_given_a_while_and_has_failed() {
    let mut watched = watch(PIPE_LEN);
    let call = watched.call(1, Duration::from_secs(1)).await;
    // The tenant's own later calls are no reason to leave it alone.
    sleep(MOMENT).await;
    let other = watched.call(1, Duration::from_secs(1000)).await;
    let noted = 1 + GRACE.as_secs();
    assert_eq!(answer_pings_only(&mut watched, Duration::from_secs(noted)).await, None);
    // Another one is the proof.
    let again = watched.call(1, Duration::from_secs(1)).await;
    let after = answer_pings_only(&mut watched, Duration::from_secs(100)).await;
    let due = noted + STUCK_MAX.as_secs();
    assert!(after.is_some_and(|after| (due..=due + 2).contains(&after)), "{after:?}");
    let verdict = (&mut watched.verdict).await.unwrap();
    assert!(verdict.starts_with("it has answered no call for 3"), "{verdict}");
    assert!(call.await.unwrap().is_err() && again.await.unwrap().is_err() && !other.is_finished());
}

#[tokio::test(start_paused = true)]
async fn one_answer_in_a_while_is_enough_and_so_is_progress() {
    let mut watched = watch(PIPE_LEN);
    let late = watched.call(1, Duration::from_secs(1)).await;
    let long = watched.call(1, Duration::from_secs(1000)).await;
    watched.peer.receive().await;
    let request = watched.peer.receive().await;
    assert!(late.await.unwrap().is_err());
    for _ in 0..5 {
        assert_eq!(answer_pings_only(&mut watched, STUCK_MAX - MOMENT).await, None);
        let progress = json!({"progressToken": request["id"], "progress": 1});
        watched.peer.send(json!({"method": "notifications/progress", "params": progress})).await;
        let again = watched.call(1, Duration::from_secs(1)).await;
        assert_eq!(answer_pings_only(&mut watched, STUCK_MAX - MOMENT).await, None);
        assert!(again.await.unwrap().is_err());
        let other = watched.call(1, Duration::from_secs(10)).await;
        let request = watched.peer.receive().await;
        watched.peer.answer(&request["id"], json!({})).await;
        assert!(other.await.unwrap().is_ok());
    }
    assert!(!long.is_finished());
}

#[tokio::test(start_paused = true)]
async fn one_that_may_be_at_an_earlier_call_that_somebody_waits_for_is_not_stuck() {
    let mut watched = watch(PIPE_LEN);
    let long = watched.call(1, Duration::from_secs(200)).await;
    sleep(MOMENT).await;
    let late = watched.call(1, Duration::from_secs(1)).await;
    assert_eq!(answer_pings_only(&mut watched, Duration::from_secs(190)).await, None);
    assert!(late.await.unwrap().is_err() && !long.is_finished());
    let again = watched.call(1, Duration::from_secs(1)).await;
    // The deadline of the first ends that.
    let after = answer_pings_only(&mut watched, Duration::from_secs(100)).await;
    assert!(after.is_some_and(|after| (200..=202).contains(&after)), "{after:?}");
    assert!(again.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn one_callers_patience_does_not_keep_a_server_that_hangs_for_the_others() {
    let mut watched = watch(PIPE_LEN);
    let _patient = watched.call(1, Duration::from_secs(3600)).await;
    sleep(MOMENT).await;
    let _late = watched.call(1, Duration::from_secs(1)).await;
    assert_eq!(answer_pings_only(&mut watched, 2 * GRACE).await, None);
    let _again = watched.call(1, Duration::from_secs(1)).await;
    let after = answer_pings_only(&mut watched, Duration::from_secs(3000)).await;
    let due = USUAL.as_secs();
    assert!(after.is_some_and(|after| (due..=due + 2).contains(&after)), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_may_be_at_somebody_elses_call_is_left_alone_when_a_later_one_is_given_up() {
    let mut watched = watch(PIPE_LEN);
    let long = watched.call(1, Duration::from_secs(60)).await;
    watched.peer.receive().await;
    sleep(MOMENT).await;
    let given_up = watched.call(1, Duration::from_secs(1)).await;
    watched.peer.receive().await;
    assert!(given_up.await.unwrap().is_err());
    assert_eq!(watched.peer.receive().await["method"], "notifications/cancelled");
    // The deadline of the first ends that.
    assert!(timeout(Duration::from_secs(50), watched.peer.receive()).await.is_err());
    assert!(!long.is_finished() && !watched.verdict.is_finished());
    assert_eq!(watched.peer.receive().await["method"], "notifications/cancelled");
    assert_eq!(watched.peer.receive().await["method"], "ping");
    assert!(watched.is_at(60));
    (&mut watched.verdict).await.unwrap();
}
