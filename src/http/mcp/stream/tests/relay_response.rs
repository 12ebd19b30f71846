//! Responses that end, break off, or do neither.

use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{advance, timeout};

use super::*;

type Sent = Result<&'static str, &'static str>;

/// Returns a sender of the other replica's response, and what is relayed of it.
fn relayed(
    kind: &str,
    until: Option<Instant>,
    id: Option<&str>,
) -> (mpsc::Sender<Sent>, Body, CancellationToken) {
    let (sender, chunks) = mpsc::channel::<Sent>(8);
    let frames = stream::unfold(chunks, |mut chunks| async {
        let frame =
            chunks.recv().await?.map(|text| Frame::data(Bytes::from_static(text.as_bytes())));
        Some((frame, chunks))
    });
    let body = reqwest::Body::wrap(StreamBody::new(Box::pin(frames)));
    let response = Response::builder().header("content-type", kind).body(body).unwrap();
    let (id, closing) =
        (id.map(|id| RawValue::from_string(id.to_owned()).unwrap()), CancellationToken::new());
    let relayed = relay(response.into(), until, id.as_deref(), closing.clone());
    assert_eq!(relayed.headers()["content-type"], kind);
    (sender, relayed.into_body(), closing)
}

/// Returns the next chunk, an error if the response is cut off, or `None` at its end.
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
async fn a_response_is_relayed_as_it_comes() {
    for kind in [STREAM, "application/json"] {
        let (sender, mut body, _) = relayed(kind, Some(Instant::now() + SILENCE_MAX), Some("1"));
        for text in ["{\"a\":", "1}\n\n"] {
            sender.send(Ok(text)).await.unwrap();
            assert_eq!(next(&mut body).await, Some(Ok(text.to_owned())));
        }
        drop(sender);
        assert_eq!(next(&mut body).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_a_response_is_told_that_none_will_come() {
    let (sender, mut body, _) = relayed(STREAM, None, Some("7"));
    sender.send(Ok("data: 1\n\n")).await.unwrap();
    next(&mut body).await.unwrap().unwrap();
    // Keep-alives keep the stream open.
    for _ in 0..5 {
        advance(SILENCE_MAX / 2).await;
        sender.send(Ok(":\n\n")).await.unwrap();
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
    let (_sender, mut body, _) = relayed(STREAM, Some(until), Some("7"));
    let error = error_in(&next(&mut body).await.unwrap().unwrap());
    assert_eq!(error["error"]["data"]["code"], "deadline_exceeded");
    assert!(until.elapsed() < Duration::from_secs(1));

    let (sender, mut body, _) = relayed(STREAM, None, Some("7"));
    sender.send(Err("reset")).await.unwrap();
    let error = error_in(&next(&mut body).await.unwrap().unwrap());
    assert_eq!(error["error"]["data"]["code"], "backend_exited");
}

#[tokio::test]
async fn half_an_event_is_cut_off_and_not_completed() {
    for (kind, half) in [(STREAM, "data: {\"x"), ("application/json", "{}")] {
        let (sender, mut body, _) = relayed(kind, None, Some("7"));
        sender.send(Ok(half)).await.unwrap();
        sender.send(Err("reset")).await.unwrap();
        assert_eq!(next(&mut body).await, Some(Ok(half.to_owned())));
        assert_eq!(next(&mut body).await, Some(Err(())));
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_began_in_time_may_go_on_while_more_of_it_comes() {
    for (kind, begin, more, end) in
        [("application/json", "{\"a\":\"", "x", "\"}"), (STREAM, "data: {\"a\":\"", "x", "\"}\n\n")]
    {
        let until = Instant::now() + Duration::from_secs(1);
        let (sender, mut body, _) = relayed(kind, Some(until), Some("7"));
        sender.send(Ok(begin)).await.unwrap();
        assert_eq!(next(&mut body).await, Some(Ok(begin.to_owned())));
        for text in [more, more, end] {
            let mut coming = std::pin::pin!(next(&mut body));
            assert!(timeout(SILENCE_MAX / 2, &mut coming).await.is_err(), "{kind}");
            sender.send(Ok(text)).await.unwrap();
            assert_eq!(coming.await, Some(Ok(text.to_owned())), "{kind}");
        }
        drop(sender);
        assert_eq!(next(&mut body).await, None);

        // But not for ever.
        let (sender, mut body, _) = relayed(kind, Some(until), Some("7"));
        sender.send(Ok(begin)).await.unwrap();
        next(&mut body).await.unwrap().unwrap();
        assert_eq!(next(&mut body).await, Some(Err(())));
    }
}

#[tokio::test]
async fn no_second_response_follows_the_first() {
    let response = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n";
    let (sender, mut body, _) = relayed(STREAM, None, Some("7"));
    for text in [response, "\n"] {
        sender.send(Ok(text)).await.unwrap();
        assert_eq!(next(&mut body).await, Some(Ok(text.to_owned())));
    }
    sender.send(Err("reset")).await.unwrap();
    assert_eq!(next(&mut body).await, None);
}

#[tokio::test]
async fn a_stream_that_lasts_ends_with_either_gateway() {
    let (_sender, mut body, closing) = relayed(STREAM, None, None);
    closing.cancel();
    assert_eq!(next(&mut body).await, None);
    let (sender, mut body, _) = relayed(STREAM, None, None);
    sender.send(Err("reset")).await.unwrap();
    assert_eq!(next(&mut body).await, None);
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

/// Streams, and whether each has the response to the request `7`.
fn streams() -> [(String, bool); 6] {
    let id = raw("7");
    let event = |message: &[u8]| String::from_utf8(sse::event(message).to_vec()).unwrap();
    let question = event(br#"{"jsonrpc":"2.0","id":7,"method":"roots/list"}"#);
    let result = event(&rpc::result(&id, &format!("{{\"a\":\"{}\"}}", "x".repeat(500))));
    let error = event(&RpcError::new(-32000, "no").body(Some(&id)));
    let other = event(&rpc::result(&raw("70"), "{}"));
    [
        (String::new(), false),
        (format!(":\n\n{question}"), false),
        (other, false),
        (format!("{question}{result}"), true),
        (error, true),
        (format!("{result}:\n\n"), true),
    ]
}

#[test]
fn the_response_is_found_wherever_the_stream_is_cut() {
    for (stream, has_response) in streams() {
        for len in 1..=stream.len().max(1) {
            let mut progress = SseProgress::new(Some(&raw("7")));
            stream.as_bytes().chunks(len).for_each(|chunk| progress.push(chunk));
            assert!(progress.is_at_boundary, "{stream} by {len}");
            assert_eq!(progress.has_response, has_response, "{stream} by {len}");
        }
    }
}

#[test]
fn half_an_event_is_neither_whole_nor_a_response() {
    let response = sse::event(&rpc::result(&raw("7"), "{}"));
    for len in 1..response.len() {
        let mut progress = SseProgress::new(Some(&raw("7")));
        progress.push(&response[..len]);
        assert!(!progress.is_at_boundary && !progress.has_response, "{len} bytes");
    }
}
