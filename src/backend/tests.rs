//! How callers fare with a backend in each state.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep};

use super::instance::pool::Load;
use super::testing::{backend, ready, set_state};
use super::*;
use crate::common::ids::TenantId;
use crate::config::{Program, ServerConfig};

const SECOND: Duration = Duration::from_secs(1);

fn server() -> Arc<Backend> {
    backend(ServerConfig::new(Transport::Stdio(Program::default())))
}

fn quarantined() -> RunState {
    RunState::Quarantined {
        until: Instant::now() + 30 * SECOND,
        reason: "it failed".into(),
        for_good: false,
    }
}

fn down() -> NotReady {
    NotReady::Down { retry_after: 30 * SECOND, reason: "it failed".into(), for_good: false }
}

#[tokio::test(start_paused = true)]
async fn callers_are_refused_without_any_wait_while_it_is_down() {
    let server = server();
    let deadline = Instant::now() + 60 * SECOND;
    let until = Instant::now() + 30 * SECOND;
    set_state(&server, RunState::Backoff { until, reason: "it failed".into() });
    assert_eq!(server.ready(deadline).now_or_never().unwrap().err(), Some(down()));
    set_state(&server, quarantined());
    assert_eq!(server.ready(deadline).now_or_never().unwrap().err(), Some(down()));
    assert_eq!(server.instance_permit(None, deadline).now_or_never().unwrap().err(), Some(down()));
    assert_eq!(server.unavailable().now_or_never(), Some(down()));
}

#[tokio::test(start_paused = true)]
async fn a_queued_call_is_refused_when_the_server_is_quarantined_and_not_before() {
    let (server, tenant) = (server(), TenantId::gateway());
    let (ready, _peer) = ready();
    server.set_instance_state(0, RunState::Ready(ready), Some(&Load::new(8, false)));
    let came = Instant::now();
    let refused = server.queue.enqueue(&tenant, 1, 0).acquire(SECOND, came + SECOND).await.unwrap();
    refused.tenant_pause().pause_until(came + 10 * SECOND);
    drop(refused);
    let in_line = server.queue.enqueue(&tenant, 1, 0).acquire(SECOND, came + 60 * SECOND);
    let after_a_while = async {
        for state in [
            RunState::Starting,
            RunState::Backoff { until: came + SECOND, reason: "it failed".into() },
            RunState::Draining,
        ] {
            set_state(&server, state);
            sleep(SECOND).await;
        }
        set_state(&server, quarantined());
        sleep(60 * SECOND).await;
    };
    let told = tokio::select! {
        _ = in_line => panic!("there is a pause"),
        told = server.unavailable() => told,
        () = after_a_while => panic!("nobody has told it"),
    };
    assert_eq!((told, came.elapsed()), (down(), 3 * SECOND));
}

#[tokio::test]
async fn the_bundled_server_waits_behind_no_download() {
    for (command, waits) in [("npx", true), ("trunkline", false)] {
        let program = Program { command: command.into(), ..Program::default() };
        let server = backend(ServerConfig::new(Transport::Stdio(program)));
        let permit = || server.environment.start_permit().now_or_never();
        let _all: Vec<_> = std::iter::from_fn(permit).collect();
        assert_eq!(server.start_permit().now_or_never().is_none(), waits, "{command}");
    }
}
