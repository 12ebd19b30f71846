use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{sleep, timeout};

const HEAD_MAX: Duration = Duration::from_secs(10);

fn connection() -> (Arc<ConnectionTimeouts>, impl AsyncRead + AsyncWrite + Unpin, DuplexStream) {
    let timeouts = Arc::new(ConnectionTimeouts::new(HEAD_MAX));
    let (ours, theirs) = duplex(1024);
    (timeouts.clone(), timed(ours, timeouts), theirs)
}

async fn runs_out_after(timeouts: &ConnectionTimeouts) -> Duration {
    let began = Instant::now();
    timeout(Duration::from_secs(3600), timeouts.expired()).await.expect("no timeout");
    began.elapsed()
}

fn about(duration: Duration, expected: Duration) -> bool {
    duration.abs_diff(expected) < Duration::from_millis(100)
}

#[tokio::test(start_paused = true)]
async fn the_first_head_is_waited_for_from_the_start() {
    let (timeouts, mut stream, mut client) = connection();
    sleep(Duration::from_secs(4)).await;
    client.write_all(b"GET").await.unwrap();
    stream.read_exact(&mut [0; 3]).await.unwrap();
    assert!(about(runs_out_after(&timeouts).await, Duration::from_secs(6)));
}

#[tokio::test(start_paused = true)]
async fn a_request_may_take_its_time_and_so_may_the_next_one_to_come() {
    let (timeouts, mut stream, mut client) = connection();
    timeouts.request_begins(Version::HTTP_11);
    assert!(timeout(10 * IDLE_MAX, timeouts.expired()).await.is_err());
    timeouts.request_ends();
    assert!(timeout(IDLE_MAX / 2, timeouts.expired()).await.is_err());

    client.write_all(b"GET").await.unwrap();
    stream.read_exact(&mut [0; 3]).await.unwrap();
    assert!(about(runs_out_after(&timeouts).await, HEAD_MAX), "the next head has no limit");
}

#[tokio::test(start_paused = true)]
async fn idleness_ends_and_a_flowing_answer_is_not_idle() {
    let (timeouts, mut stream, _client) = connection();
    timeouts.request_begins(Version::HTTP_11);
    timeouts.request_ends();
    sleep(IDLE_MAX / 2).await;
    stream.write_all(b"more of the answer").await.unwrap();
    assert!(about(runs_out_after(&timeouts).await, IDLE_MAX));
}

#[tokio::test(start_paused = true)]
async fn http2_is_left_to_its_pings() {
    let (timeouts, ..) = connection();
    timeouts.request_begins(Version::HTTP_2);
    timeouts.request_ends();
    assert!(timeout(10 * IDLE_MAX, timeouts.expired()).await.is_err());
}
