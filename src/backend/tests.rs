//! What callers of a backend get, wherever it stands.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep};

use super::testing::{backend, ready, stand};
use super::*;
use crate::common::ids::TenantId;
use crate::config::{Program, Server};

const SECOND: Duration = Duration::from_secs(1);

fn server() -> Arc<Backend> {
    backend(Server::new(Transport::Stdio(Program::default())))
}

fn quarantined() -> State {
    State::Quarantined { until: Instant::now() + 30 * SECOND, reason: "it failed".into() }
}

fn down() -> NotReady {
    NotReady::Down { retry_after: 30 * SECOND, reason: "it failed".into() }
}

#[tokio::test(start_paused = true)]
async fn callers_are_refused_without_any_wait_while_it_is_down() {
    let server = server();
    let deadline = Instant::now() + 60 * SECOND;
    let until = Instant::now() + 30 * SECOND;
    stand(&server, State::Backoff { until, reason: "it failed".into() });
    assert_eq!(server.ready(deadline).now_or_never().unwrap().err(), Some(down()));
    stand(&server, quarantined());
    assert_eq!(server.ready(deadline).now_or_never().unwrap().err(), Some(down()));
    assert_eq!(server.place(None, deadline).now_or_never().unwrap().err(), Some(down()));
    assert_eq!(server.refuses().now_or_never(), Some(down()));
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_line_is_told_when_it_comes_to_be_in_quarantine_and_not_before() {
    let (server, tenant) = (server(), TenantId::gateway());
    let (ready, _peer) = ready();
    server.enter(0, State::Ready(ready), Some(&Load::new(8, false)));
    let came = Instant::now();
    server.queue.pause_until(came + 10 * SECOND);
    let in_line = server.queue.enqueue(&tenant, 1, 0).acquire(SECOND, came + 60 * SECOND);
    let after_a_while = async {
        for state in [
            State::Starting,
            State::Backoff { until: came + SECOND, reason: "it failed".into() },
            State::Draining,
        ] {
            stand(&server, state);
            sleep(SECOND).await;
        }
        stand(&server, quarantined());
        sleep(60 * SECOND).await;
    };
    let told = tokio::select! {
        _ = in_line => panic!("there is a pause"),
        told = server.refuses() => told,
        () = after_a_while => panic!("nobody has told it"),
    };
    assert_eq!((told, came.elapsed()), (down(), 3 * SECOND));
}
