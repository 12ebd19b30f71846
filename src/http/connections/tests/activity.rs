use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{sleep, timeout};

const HEAD_MAX: Duration = Duration::from_secs(10);

fn connection() -> (Arc<Activity>, impl AsyncRead + AsyncWrite + Unpin, DuplexStream) {
    let activity = Arc::new(Activity::new(Instant::now(), HEAD_MAX));
    activity.set_authenticated(true);
    let (ours, theirs) = duplex(1024);
    (activity.clone(), watched(ours, activity), theirs)
}

async fn runs_out_after(activity: &Activity) -> Duration {
    let began = Instant::now();
    timeout(Duration::from_secs(3600), activity.expired()).await.expect("no timeout");
    began.elapsed()
}

fn about(duration: Duration, expected: Duration) -> bool {
    duration.abs_diff(expected) < Duration::from_millis(100)
}

#[tokio::test(start_paused = true)]
async fn the_first_head_is_waited_for_from_the_start() {
    let (activity, mut stream, mut client) = connection();
    sleep(Duration::from_secs(4)).await;
    client.write_all(b"GET").await.unwrap();
    stream.read_exact(&mut [0; 3]).await.unwrap();
    assert!(about(runs_out_after(&activity).await, Duration::from_secs(6)));
}

#[tokio::test(start_paused = true)]
async fn a_request_may_take_its_time_and_so_may_the_next_one_to_come() {
    let (activity, mut stream, mut client) = connection();
    activity.request_begins(Version::HTTP_11, 0);
    assert!(timeout(10 * IDLE_MAX, activity.expired()).await.is_err());
    activity.handler_ends();
    assert!(timeout(IDLE_MAX / 2, activity.expired()).await.is_err());

    client.write_all(b"GET").await.unwrap();
    stream.read_exact(&mut [0; 3]).await.unwrap();
    assert!(about(runs_out_after(&activity).await, HEAD_MAX), "the next head has no limit");
}

#[tokio::test(start_paused = true)]
async fn idleness_ends_and_a_flowing_answer_is_not_idle() {
    let (activity, mut stream, _client) = connection();
    activity.request_begins(Version::HTTP_11, 0);
    activity.handler_ends();
    sleep(IDLE_MAX / 2).await;
    stream.write_all(b"more of the answer").await.unwrap();
    assert!(about(runs_out_after(&activity).await, IDLE_MAX));
}

#[tokio::test(start_paused = true)]
async fn control_frames_do_not_keep_an_idle_http2_connection() {
    let (activity, mut stream, mut client) = connection();
    activity.request_begins(Version::HTTP_2, 0);
    assert!(timeout(10 * IDLE_MAX, activity.expired()).await.is_err());
    activity.handler_ends();
    sleep(IDLE_MAX / 2).await;
    for _ in 0..2 {
        client.write_all(&[0; 17]).await.unwrap();
        stream.read_exact(&mut [0; 17]).await.unwrap();
        stream.write_all(&[0; 17]).await.unwrap();
    }
    assert!(about(runs_out_after(&activity).await, IDLE_MAX / 2));

    stream.write_all(&[0; 500]).await.unwrap();
    assert!(about(runs_out_after(&activity).await, IDLE_MAX), "a slow reader is not idle");
}

#[tokio::test(start_paused = true)]
async fn without_a_key_idleness_is_short_and_a_running_request_has_no_limit() {
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let (activity, ..) = connection();
        activity.set_authenticated(false);
        activity.request_begins(version, 0);
        assert!(timeout(IDLE_MAX, activity.expired()).await.is_err());
        activity.handler_ends();
        activity.response_ends(0);
        assert!(about(runs_out_after(&activity).await, UNAUTHENTICATED_IDLE_MAX), "{version:?}");
    }
}
