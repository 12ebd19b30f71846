//! Many requests at once: order, limits, cancellation, end of input.

use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use super::Client;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Timers have a resolution of a millisecond, and each round may lose one.
fn assert_about(elapsed: Duration, expected: Duration) {
    assert!(elapsed >= expected && elapsed < expected + ms(10), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn ten_sleeps_at_once_take_as_long_as_one() {
    let mut client = Client::new(10);
    let start = Instant::now();
    for id in 0..10 {
        client.call(id, "sleep", json!({"ms": 50})).await;
    }
    client.ids(10).await;
    assert_about(start.elapsed(), ms(50));
}

#[tokio::test(start_paused = true)]
async fn fifty_calls_never_exceed_the_maximum_of_ten() {
    let mut client = Client::new(10);
    let start = Instant::now();
    for id in 0..50 {
        client.call(id, "sleep", json!({"ms": 50})).await;
    }
    for round in 1..=5 {
        client.ids(10).await;
        assert_about(start.elapsed(), round * ms(50));
    }
    assert_eq!(client.close().await, Vec::<Value>::new());
}

#[tokio::test(start_paused = true)]
async fn answers_come_as_calls_end() {
    let mut client = Client::new(10);
    client.call(1, "sleep", json!({"ms": 300})).await;
    client.call(2, "sleep", json!({"ms": 100})).await;
    client.call(3, "echo", json!({"text": "at once"})).await;
    assert_eq!(client.ids(3).await, [3, 2, 1]);
}

#[tokio::test]
async fn a_long_computation_holds_up_no_other_call() {
    let mut client = Client::new(10);
    let text = "x".repeat(4 << 20);
    client.call(1, "hash", json!({"algorithm": "sha512", "text": text})).await;
    client.call(2, "echo", json!({"text": "at once"})).await;
    assert_eq!(client.ids(2).await, [2, 1]);
}

/// With the only thread for computation busy, whatever the loop still answers needs none.
#[test]
fn a_long_request_is_not_even_read_by_the_loop() {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (release, until) = channel::<()>();
        let busy = spawn_blocking(move || until.recv());
        let mut client = Client::new(3);
        let long = "x".repeat(100_000);
        for id in ["first", "cancelled", "waits"] {
            client.call(id, "no such tool", json!({"text": long})).await;
        }
        client.call("queued", "no such tool", json!({"text": long})).await;
        client.notify("notifications/cancelled", json!({"requestId": "cancelled"})).await;
        client.request("ping", "ping", json!({})).await;
        assert_eq!(client.receive().await["id"], "ping");
        drop(release);
        let _ = busy.await;
        assert_eq!(client.ids(3).await, ["first", "waits", "queued"]);
        assert_eq!(client.close().await, Vec::<Value>::new());
    });
}

/// Such a request is read by the loop to find its id, and answered all the same.
#[tokio::test]
async fn a_long_request_may_be_written_in_any_order_or_be_no_json() {
    let mut client = Client::new(1);
    let long = "x".repeat(10_000);
    for line in [
        format!(r#"{{"method":"ping","params":{{"x":"{long}"}},"id":1,"jsonrpc":"2.0"}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":2,"method":"ping","params":{{"x":"{long}"}}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":3,"method":"ping","params":"{long}"#),
        format!(r#"{{"jsonrpc":"2.0","id":4,"method":"ping","id":5,"params":"{long}"}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":6,"result":"{long}"}}"#),
    ] {
        client.send_line(&line).await;
    }
    assert_eq!(client.ids(4).await, [json!(1), json!(2), json!(null), json!(null)]);
    assert_eq!(client.close().await, Vec::<Value>::new());
}

#[tokio::test(start_paused = true)]
async fn one_at_a_time_keeps_the_order() {
    let mut client = Client::new(1);
    client.call(1, "sleep", json!({"ms": 300})).await;
    client.call(2, "sleep", json!({"ms": 1})).await;
    client.call(3, "echo", json!({"text": "x"})).await;
    client.request(4, "ping", json!({})).await;
    client.call(5, "no such tool", json!({})).await;
    client.call(6, "sleep", json!({"ms": 0})).await;
    client.request(7, "tools/list", json!({})).await;
    assert_eq!(client.ids(7).await, [1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_still_answers_pings() {
    let mut client = Client::new(2);
    for id in 1..=3 {
        client.call(id, "sleep", json!({"ms": 1000})).await;
    }
    client.call(4, "echo", json!({"text": "waits in line"})).await;
    client.request(5, "ping", json!({})).await;
    assert_eq!(client.ids(5).await, [5, 1, 2, 4, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_stops_and_is_not_answered() {
    let mut client = Client::new(1);
    client.call("1", "sleep", json!({"ms": 3_600_000})).await;
    client.call(2, "echo", json!({"text": "next"})).await;
    // The number 1 is not the string "1".
    client.notify("notifications/cancelled", json!({"requestId": 1})).await;
    assert!(timeout(ms(1000), client.receive()).await.is_err());
    let start = Instant::now();
    client.notify("notifications/cancelled", json!({"requestId": "1", "reason": "enough"})).await;
    assert_eq!(client.receive().await["id"], 2);
    assert_about(start.elapsed(), ms(0));
    assert_eq!(client.close().await, Vec::<Value>::new());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_in_the_queue_never_starts() {
    let mut client = Client::new(2);
    let start = Instant::now();
    for id in 1..=5 {
        client.call(id, "sleep", json!({"ms": 100})).await;
    }
    for id in [3, 4, 77] {
        client.notify("notifications/cancelled", json!({"requestId": id})).await;
    }
    assert_eq!(client.ids(3).await, [1, 2, 5]);
    assert_about(start.elapsed(), ms(200));
    assert_eq!(client.close().await, Vec::<Value>::new());
}

#[tokio::test(start_paused = true)]
async fn requests_with_the_same_id_are_both_answered_and_both_cancelled() {
    let mut client = Client::new(2);
    for _ in 0..2 {
        client.call(1, "sleep", json!({"ms": 100})).await;
    }
    assert_eq!(client.ids(2).await, [1, 1]);
    for _ in 0..3 {
        client.call(1, "sleep", json!({"ms": 100})).await;
    }
    client.notify("notifications/cancelled", json!({"requestId": 1})).await;
    client.call(2, "echo", json!({"text": "x"})).await;
    assert_eq!(client.ids(1).await, [2]);
    assert_eq!(client.close().await, Vec::<Value>::new());
}

/// With more requests than the queue and all buffers hold, the server must stop reading, and
/// continue when the client reads.
#[tokio::test(start_paused = true)]
async fn nothing_is_lost_when_the_client_writes_much_before_it_reads() {
    for max_concurrent in [1, 10] {
        let Client { input, output, server } = Client::with_buffers(max_concurrent, 256);
        let mut input = input.unwrap();
        let text = "x".repeat(500);
        let writing = async {
            for id in 0..4000 {
                let (tool, arguments) = match id % 10 {
                    0 => ("sleep", json!({"ms": 1})),
                    _ => ("echo", json!({"text": text})),
                };
                let params = json!({"name": tool, "arguments": arguments});
                let call =
                    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
                input.write_all(format!("{call}\n").as_bytes()).await.unwrap();
            }
            input
        };
        let reading = async {
            sleep(Duration::from_secs(60)).await;
            let mut output = output;
            let mut ids = Vec::new();
            while ids.len() < 4000 {
                let line = output.next_line().await.unwrap().expect("an answer for each");
                ids.push(serde_json::from_str::<Value>(&line).unwrap()["id"].as_i64().unwrap());
            }
            ids
        };
        let both = async { tokio::join!(writing, reading) };
        let why = "the server waits for its client to read and the client for the server";
        let (input, mut ids) = timeout(Duration::from_secs(600), both).await.expect(why);
        if max_concurrent > 1 {
            ids.sort_unstable();
        }
        assert!(ids.into_iter().eq(0..4000));
        drop(input);
        server.await.unwrap().unwrap();
    }
}

/// Requests are read until the queue is full, although nobody reads the answers.
#[tokio::test(start_paused = true)]
async fn a_client_may_write_a_thousand_requests_before_it_reads_at_all() {
    let mut client = Client::with_buffers(1, 256);
    client.call("first", "sleep", json!({"ms": 1000})).await;
    for id in 0..1000 {
        client.call(id, "echo", json!({"text": "x"})).await;
    }
    assert_eq!(client.receive().await["id"], "first");
    assert!(client.ids(1000).await.into_iter().eq((0..1000).map(Value::from)));
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_input_calls_may_finish_for_a_grace_period() {
    let mut client = Client::new(2);
    let start = Instant::now();
    client.call(1, "sleep", json!({"ms": 100})).await;
    client.call(2, "sleep", json!({"ms": 3_600_000})).await;
    client.call(3, "sleep", json!({"ms": 200})).await;
    client.call(4, "sleep", json!({"ms": 3_600_000})).await;
    client.call(5, "echo", json!({"text": "needs no time"})).await;
    let ids: Vec<_> = client.close().await.into_iter().map(|answer| answer["id"].clone()).collect();
    assert_eq!(ids, [1, 3, 5]);
    assert_about(start.elapsed(), super::super::CALLS_GRACE);
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_input_an_idle_server_ends_at_once() {
    let start = Instant::now();
    assert_eq!(Client::new(10).close().await, Vec::<Value>::new());
    assert_about(start.elapsed(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn the_last_line_may_lack_its_line_break() {
    let mut client = Client::new(1);
    let input = client.input.as_mut().unwrap();
    input.write_all(br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).await.unwrap();
    assert_eq!(client.close().await, [json!({"jsonrpc": "2.0", "id": 1, "result": {}})]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_no_more_ends_the_server() {
    let Client { input, output, server } = Client::new(1);
    drop(output);
    let mut input = input.unwrap();
    input.write_all(b"not JSON, so there is an answer\n").await.unwrap();
    timeout(ms(100), server).await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closes_the_input_and_never_reads_is_abandoned() {
    let mut client = Client::with_buffers(1, 16);
    client.request(1, "ping", json!({})).await;
    let Client { input, output, server } = client;
    drop(input);
    let ended = timeout(Duration::from_secs(60), server).await.expect("the server hangs").unwrap();
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    drop(output);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_every_answer_even_after_the_end_of_input() {
    let (mut input, server_input) = tokio::io::duplex(1024 * 1024);
    let (server_output, output) = tokio::io::duplex(64);
    let server = tokio::spawn(super::run(server_input, server_output, 1.try_into().unwrap()));
    for id in 0..300 {
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/list\"}}\n");
        input.write_all(line.as_bytes()).await.unwrap();
    }
    drop(input);
    let mut output = BufReader::with_capacity(64, output).lines();
    let mut count = 0;
    while let Some(line) = output.next_line().await.unwrap() {
        assert!(line.starts_with(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{count},")), "{line}");
        count += 1;
        sleep(ms(100)).await;
    }
    assert_eq!(count, 300);
    server.await.unwrap().unwrap();
}
