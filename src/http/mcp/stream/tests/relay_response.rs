//! Answers that end, break off, or do neither.

use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{advance, timeout};

use super::*;

type Chunk = Result<&'static str, &'static str>;

/// An answer that says what it is told to, and what is passed back of it.
fn relay(
    kind: &str,
    until: Option<Instant>,
    id: Option<&str>,
) -> (mpsc::Sender<Chunk>, Body, CancellationToken) {
    let (says, said) = mpsc::channel::<Chunk>(8);
    let frames = stream::unfold(said, |mut said| async {
        let frame = said.recv().await?.map(|text| Frame::data(Bytes::from_static(text.as_bytes())));
        Some((frame, said))
    });
    let body = reqwest::Body::wrap(StreamBody::new(Box::pin(frames)));
    let response = Response::builder().header("content-type", kind).body(body).unwrap();
    let (id, closing) =
        (id.map(|id| RawValue::from_string(id.to_owned()).unwrap()), CancellationToken::new());
    let passed = pass_back(response.into(), until, id.as_deref(), closing.clone());
    assert_eq!(passed.headers()["content-type"], kind);
    (says, passed.into_body(), closing)
}

/// The next chunk; an error if it is cut off; nothing at its end.
async fn next(body: &mut Body) -> Option<Result<String, ()>> {
    let frame = body.frame().await?;
    let text =
        |frame: Frame<Bytes>| String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
    Some(frame.map(text).map_err(|_| ()))
}

fn error_in(event: &str) -> Value {
    let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    serde_json::from_str(data).unwrap()
}

const STREAM: &str = "text/event-stream";

#[tokio::test]
async fn an_answer_is_passed_back_as_it_comes() {
    for kind in [STREAM, "application/json"] {
        let (says, mut body, _) = relay(kind, Some(Instant::now() + SILENCE_MAX), Some("1"));
        for text in ["{\"a\":", "1}\n\n"] {
            says.send(Ok(text)).await.unwrap();
            assert_eq!(next(&mut body).await, Some(Ok(text.to_owned())));
        }
        drop(says);
        assert_eq!(next(&mut body).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_an_answer_is_told_that_none_will_come() {
    let (says, mut body, _) = relay(STREAM, None, Some("7"));
    says.send(Ok("data: 1\n\n")).await.unwrap();
    next(&mut body).await.unwrap().unwrap();
    // Signs of life keep it going.
    for _ in 0..5 {
        advance(SILENCE_MAX / 2).await;
        says.send(Ok(":\n\n")).await.unwrap();
        assert_eq!(next(&mut body).await, Some(Ok(":\n\n".to_owned())));
    }
    let error = error_in(&next(&mut body).await.unwrap().unwrap());
    assert_eq!(
        (&error["id"], &error["error"]["data"]["code"]),
        (&json!(7), &json!("deadline_exceeded"))
    );
    assert_eq!(error["error"]["data"]["executed"], "unknown");
    assert_eq!(next(&mut body).await, None);

    let until = Instant::now() + Duration::from_secs(1);
    let (_says, mut body, _) = relay(STREAM, Some(until), Some("7"));
    let error = error_in(&next(&mut body).await.unwrap().unwrap());
    assert_eq!(error["error"]["data"]["code"], "deadline_exceeded");
    assert!(until.elapsed() < Duration::from_secs(1));

    let (says, mut body, _) = relay(STREAM, None, Some("7"));
    says.send(Err("reset")).await.unwrap();
    let error = error_in(&next(&mut body).await.unwrap().unwrap());
    assert_eq!(error["error"]["data"]["code"], "backend_exited");
}

#[tokio::test]
async fn what_is_half_said_is_cut_off_and_not_made_whole() {
    for (kind, half) in [(STREAM, "data: {\"x"), ("application/json", "{}")] {
        let (says, mut body, _) = relay(kind, None, Some("7"));
        says.send(Ok(half)).await.unwrap();
        says.send(Err("reset")).await.unwrap();
        assert_eq!(next(&mut body).await, Some(Ok(half.to_owned())));
        assert_eq!(next(&mut body).await, Some(Err(())));
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_begun_in_time_may_go_on_for_as_long_as_more_of_it_comes() {
    for (kind, begin, more, end) in
        [("application/json", "{\"a\":\"", "x", "\"}"), (STREAM, "data: {\"a\":\"", "x", "\"}\n\n")]
    {
        let until = Instant::now() + Duration::from_secs(1);
        let (says, mut body, _) = relay(kind, Some(until), Some("7"));
        says.send(Ok(begin)).await.unwrap();
        assert_eq!(next(&mut body).await, Some(Ok(begin.to_owned())));
        for text in [more, more, end] {
            let mut coming = std::pin::pin!(next(&mut body));
            assert!(timeout(SILENCE_MAX / 2, &mut coming).await.is_err(), "{kind}");
            says.send(Ok(text)).await.unwrap();
            assert_eq!(coming.await, Some(Ok(text.to_owned())), "{kind}");
        }
        drop(says);
        assert_eq!(next(&mut body).await, None);

        // But not for ever.
        let (says, mut body, _) = relay(kind, Some(until), Some("7"));
        says.send(Ok(begin)).await.unwrap();
        next(&mut body).await.unwrap().unwrap();
        assert_eq!(next(&mut body).await, Some(Err(())));
    }
}

#[tokio::test]
async fn no_second_answer_follows_the_first() {
    let answer = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n";
    let (says, mut body, _) = relay(STREAM, None, Some("7"));
    for text in [answer, "\n"] {
        says.send(Ok(text)).await.unwrap();
        assert_eq!(next(&mut body).await, Some(Ok(text.to_owned())));
    }
    says.send(Err("reset")).await.unwrap();
    assert_eq!(next(&mut body).await, None);
}

#[tokio::test]
async fn a_stream_that_lasts_ends_with_either_gateway() {
    let (_says, mut body, closing) = relay(STREAM, None, None);
    closing.cancel();
    assert_eq!(next(&mut body).await, None);
    let (says, mut body, _) = relay(STREAM, None, None);
    says.send(Err("reset")).await.unwrap();
    assert_eq!(next(&mut body).await, None);
}
