//! Notifications during a modern client's call, and the ways to cancel it.

use serde_json::{Value, json};

use crate::support::mcp_modern::{Ask, LOG_LEVEL, Stream};
use crate::support::{Fake, Gateway, Mcp, Setup, eventually};

const ERAS: [&str; 2] = ["legacy", "modern"];

async fn talker(era: &str) -> (Gateway, Mcp, Fake) {
    let gateway = Setup::new().talker("talker", era).start().await;
    let (mcp, fake) = (gateway.mcp("/mcp/talker"), gateway.fake("talker"));
    (gateway, mcp, fake)
}

async fn calls(fake: &Fake, tool: &str, n: usize) -> Vec<Value> {
    let calls = async || Some(fake.calls_of(tool)).filter(|calls| calls.len() >= n);
    eventually("the calls", calls).await
}

async fn cancelled(fake: &Fake, n: usize) -> Vec<Value> {
    let told =
        async || Some(fake.received_of("notifications/cancelled")).filter(|told| told.len() >= n);
    eventually("told", told).await
}

/// Progress that is held when all of it is out.
fn held(mcp: &Mcp, tag: &str, n: usize) -> Ask {
    let arguments = json!({"n": n, "tag": tag, "hold": true});
    mcp.call("progress", arguments).meta("progressToken", "same")
}

async fn is_progress(stream: &mut Stream, tag: &str, n: usize) {
    let message = stream.next().await;
    assert_eq!(message["method"], "notifications/progress", "{message}");
    let params = json!({"progressToken": "same", "progress": n, "message": tag});
    assert_eq!(message["params"], params);
}

#[tokio::test]
async fn progress_comes_in_order_on_its_own_stream_and_before_the_answer() {
    for era in ERAS {
        let (gateway, mcp, fake) = talker(era).await;
        let mut a = held(&mcp, "a", 3).open().await;
        let mut b = held(&mcp, "b", 2).open().await;
        calls(&fake, "progress", 2).await;
        mcp.call("release", json!({})).send().await.tool_text();
        for (stream, tag, steps) in [(&mut b, "b", 2), (&mut a, "a", 3)] {
            for n in 1..=steps {
                is_progress(stream, tag, n).await;
            }
            let rest = stream.rest().await;
            assert_eq!(rest.len(), 1, "{rest:?}");
            assert_eq!(rest[0]["result"]["content"][0]["text"], tag);
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn an_answer_with_nothing_before_it_is_plain_json() {
    let (gateway, mcp, _) = talker("modern").await;
    for ask in [
        mcp.call("echo", json!({})),
        mcp.call("echo", json!({})).meta("progressToken", 1).meta(LOG_LEVEL, "debug"),
        mcp.call("progress", json!({"n": 0})).meta("progressToken", 1),
        mcp.call("progress", json!({"n": 5})),
    ] {
        let said = ask.send().await;
        assert!(!said.is_stream, "{said:?}");
        said.tool_text();
    }
    let said = mcp.call("progress", json!({"n": 1})).meta("progressToken", 1).send().await;
    assert!(said.is_stream);
    assert_eq!(said.headers["x-accel-buffering"], "no");
    assert_eq!(said.headers["cache-control"], "no-cache, no-transform");
    gateway.stop().await;
}

#[tokio::test]
async fn nobody_hears_progress_that_was_not_asked_for_or_is_not_theirs() {
    for era in ERAS {
        let (gateway, mcp, fake) = talker(era).await;
        let mut bystander = held(&mcp, "bystander", 1).open().await;
        is_progress(&mut bystander, "bystander", 1).await;
        let progress = |token: Value| {
            json!({"method": "notifications/progress",
            "params": {"progressToken": token, "progress": 1}})
        };
        let lies = || {
            let tokens = [json!("same"), json!(1), json!("$id "), Value::Null, json!([1])];
            tokens.into_iter().map(progress).collect::<Vec<_>>()
        };
        // Tokens that nobody has; its own without having asked; its own when it is over.
        let plain = mcp.call("say", json!({"say": lies(), "after": [progress(json!("$id"))]}));
        assert_eq!(plain.meta("progressToken", 1).send().await.before(), [] as [Value; 0]);
        for ask in [
            mcp.call("say", json!({"say": [progress(json!("$id"))]})),
            mcp.call("say", json!({"say": [progress(json!("$id"))]})).meta(LOG_LEVEL, "debug"),
        ] {
            let said = ask.send().await;
            assert!(!said.is_stream, "{said:?}");
        }
        // The bystander's own token is the id of its request, which no other call's server side
        // should use; but a server that does talks about that call, and only its own client hears
        // it.
        let id = calls(&fake, "progress", 1).await[0]["id"].clone();
        mcp.call("say", json!({"say": [progress(id)]})).send().await.tool_text();
        assert_eq!(bystander.next().await["params"]["progressToken"], "same");
        mcp.call("release", json!({})).send().await.tool_text();
        assert_eq!(bystander.rest().await.len(), 1);
        gateway.stop().await;
    }
}

/// More than the buffers between two processes hold.
fn flood(mcp: &Mcp, hold: bool) -> Ask {
    let arguments = json!({"n": 200, "pad": 400_000, "tag": "", "hold": hold});
    mcp.call("progress", arguments).meta("progressToken", 1)
}

#[tokio::test]
async fn a_client_that_does_not_read_its_progress_delays_nobody_and_still_gets_its_answer() {
    let (gateway, mcp, fake) = talker("modern").await;
    let mut flooded = flood(&mcp, false).open().await;
    let other = gateway.mcp("/mcp/talker");
    for _ in 0..20 {
        other.call("echo", json!({})).send().await.tool_text();
        let said = other.call("progress", json!({"n": 3})).meta("progressToken", 1).send().await;
        assert_eq!(said.before().len(), 3);
    }
    assert_eq!(fake.calls_of("progress").len(), 21);
    let rest = flooded.rest().await;
    let (answer, progress) = rest.split_last().unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "");
    let steps: Vec<_> =
        progress.iter().map(|it| it["params"]["progress"].as_u64().unwrap()).collect();
    // What was waiting when the answer came, and not all there was.
    assert!(steps.is_sorted() && (1..200).contains(&steps.len()), "{steps:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_deadline_holds_for_a_client_that_does_not_read() {
    let gateway =
        Setup::new().talker_with("talker", "modern", &[], "max_in_flight = 1").start().await;
    let mcp = gateway.mcp("/mcp/talker");
    let ask = flood(&mcp, true).header("trunkline-timeout-ms", "2000");
    let mut flooded = ask.open().await;
    // Its answer will never come, and its place at the server goes to the next.
    let fake = gateway.fake("talker");
    let told = cancelled(&fake, 1).await;
    assert_eq!(told[0]["params"]["reason"], "deadline exceeded");
    mcp.call("echo", json!({})).send().await.tool_text();
    let last = flooded.rest().await.pop().unwrap();
    assert_eq!(last["error"]["data"]["code"], "deadline_exceeded", "{last}");
    gateway.stop().await;
}

#[tokio::test]
async fn closing_the_response_cancels_that_call_alone() {
    for era in ERAS {
        let (gateway, mcp, fake) = talker(era).await;
        let stays = held(&mcp, "stays", 1).open().await;
        let also = mcp.call("hold", json!({"tag": "stays"})).spawn();
        // One leaves while nothing has come yet, one in the middle of its stream.
        let leaves = mcp.call("hold", json!({"tag": "leaves"})).spawn();
        let mut leaves_stream = held(&mcp, "leaves", 1).open().await;
        is_progress(&mut leaves_stream, "leaves", 1).await;
        calls(&fake, "hold", 2).await;
        drop(leaves_stream);
        cancelled(&fake, 1).await;
        leaves.abort();
        let told = cancelled(&fake, 2).await;
        let id_of = |tool: &str| {
            let calls = fake.calls_of(tool);
            let leaver = calls.iter().find(|call| call["params"]["arguments"]["tag"] == "leaves");
            leaver.unwrap()["id"].clone()
        };
        let ids: Vec<_> = told.iter().map(|it| it["params"]["requestId"].clone()).collect();
        assert_eq!(ids, [id_of("progress"), id_of("hold")]);

        mcp.call("release", json!({})).send().await.tool_text();
        let (mut stays, also) = (stays, also.await.unwrap());
        is_progress(&mut stays, "stays", 1).await;
        assert_eq!(stays.rest().await[0]["result"]["content"][0]["text"], "stays");
        assert_eq!(also.tool_text(), "stays");
        assert_eq!(fake.received_of("notifications/cancelled").len(), 2);
        gateway.stop().await;
    }
}

fn log(level: &str) -> Value {
    json!({"method": "notifications/message", "params": {"level": level, "data": {"of": level}}})
}

/// A call that makes its server write log lines of all these levels.
fn logging(mcp: &Mcp, levels: &[&str]) -> Ask {
    let lines: Vec<_> = levels.iter().map(|level| log(level)).collect();
    mcp.call("say", json!({"say": lines}))
}

#[tokio::test]
async fn log_lines_come_only_where_asked_for_and_as_grave_as_asked_for() {
    for era in ERAS {
        let (gateway, mcp, _) = talker(era).await;
        let levels = ["debug", "info", "warning", "nonsense", "error", "emergency"];
        let said = logging(&mcp, &levels).send().await;
        assert!(!said.is_stream, "{said:?}");
        let said = logging(&mcp, &levels).meta("progressToken", 1).send().await;
        assert!(!said.is_stream, "{said:?}");
        let said = logging(&mcp, &levels).meta(LOG_LEVEL, "warning").send().await;
        let heard: Vec<_> = said.before();
        for (message, level) in heard.iter().zip(["warning", "error", "emergency"]) {
            assert_eq!(message["method"], "notifications/message");
            assert_eq!(message["params"], json!({"level": level, "data": {"of": level}}));
        }
        assert_eq!(heard.len(), 3, "{heard:?}");
        assert!(!logging(&mcp, &["error"]).meta(LOG_LEVEL, "critical").send().await.is_stream);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn with_two_calls_in_flight_nobody_gets_a_log_line() {
    let (gateway, mcp, _) = talker("modern").await;
    let mut first = held(&mcp, "first", 1).meta(LOG_LEVEL, "debug").open().await;
    is_progress(&mut first, "first", 1).await;
    let said = logging(&mcp, &["error"]).meta(LOG_LEVEL, "debug").send().await;
    assert!(!said.is_stream, "{said:?}");
    mcp.call("release", json!({})).send().await.tool_text();
    assert_eq!(first.rest().await.len(), 1);
    // Alone again.
    let said = logging(&mcp, &["error"]).meta(LOG_LEVEL, "debug").send().await;
    assert_eq!(said.before().len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn nobody_gets_a_log_line_until_the_grace_of_an_abandoned_call_has_ended() {
    let (gateway, mcp, fake) = talker("modern").await;
    let leaver = mcp.call("hold", json!({})).spawn();
    calls(&fake, "hold", 1).await;
    leaver.abort();
    cancelled(&fake, 1).await;
    let said = logging(&mcp, &["error"]).meta(LOG_LEVEL, "debug").send().await;
    assert!(!said.is_stream, "{said:?}");
    // The server never says that it is done with the call, as is usual.
    eventually("heard", async || {
        let said = logging(&mcp, &["error"]).meta(LOG_LEVEL, "debug").send().await;
        said.is_stream.then_some(())
    })
    .await;
    gateway.stop().await;
}
