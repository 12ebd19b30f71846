//! Servers that answer nothing while a call runs, and servers that seem to.

use tokio::task::JoinHandle;

use crate::support::{Answer, Gateway, Setup, eventually, in_time};

const SERIAL: &str = "trunkline_server_serial_instances{server=\"fake\"}";

fn start_calls(gateway: &Gateway, tool: &str, ms: u32) -> Vec<JoinHandle<Answer>> {
    let body = format!("{{\"ms\":{ms}}}");
    (0..4).map(|_| gateway.spawn_call("fake", tool, &body)).collect()
}

async fn looks_serial(gateway: &Gateway, expected: bool) {
    eventually("the verdict", async || {
        let shown = gateway.metrics().await.value(SERIAL);
        (shown == Some(f64::from(u8::from(expected)))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_server_looks_serial_while_calls_keep_it_from_all_else() {
    let gateway = Setup::new().fake("fake").start().await;
    let calls = start_calls(&gateway, "serial", 1_500);
    looks_serial(&gateway, true).await;
    for call in calls {
        assert_eq!(in_time("done", call).await.unwrap().tool_text(), "done");
    }
    // Calls as long, beside which it answers.
    let calls = start_calls(&gateway, "later", 8_000);
    looks_serial(&gateway, false).await;
    calls.iter().for_each(JoinHandle::abort);
    gateway.stop().await;
}
