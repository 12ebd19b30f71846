//! Keeps one server running: starts it, watches it, starts it again when it ends.
//!
//! ```text
//!  Idle ──first call──▶ Starting ──▶ Ready ──ends──▶ Backoff ──▶ Starting …
//!                          └────────fails───────────────▲
//!  any of them ──stop──▶ Stopped
//! ```

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::pending::{Answer, End};
use super::run::Run;
use super::tools::ToolSet;
use super::{Backend, Ready, State};
use crate::config::Start;

/// A server that stayed up this long is healthy: its next failure counts as the first.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
/// How long a refresh of the tool list may take.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause before listening for changes again, when a server ended the subscription.
const LISTEN_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// A subscription has no deadline of its own; this one is further off than any server lives.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Runs until `stop`, and leaves no process behind.
pub(super) async fn run(backend: Arc<Backend>, stop: CancellationToken) {
    let mut backoff = Backoff::default();
    if backend.config.start == Start::Lazy {
        tokio::select! {
            () = backend.wanted.notified() => {}
            () = stop.cancelled() => return backend.set_state(State::Stopped),
        }
    }
    for generation in 1.. {
        if generation > 1 {
            backend.metrics.restarts.inc();
        }
        backend.set_state(State::Starting);
        let Some(reason) = run_once(&backend, generation, &mut backoff, &stop).await else { break };
        let until = Instant::now() + backoff.next_wait();
        backend.set_state(State::Backoff { until, reason: reason.into() });
        tokio::select! {
            () = sleep_until(until) => {}
            () = stop.cancelled() => break,
        }
    }
    backend.set_state(State::Stopped);
}

/// One run from start to end. Gives the reason to start again, or `None` when told to stop.
async fn run_once(
    backend: &Backend,
    generation: u64,
    backoff: &mut Backoff,
    stop: &CancellationToken,
) -> Option<String> {
    let server = &backend.id;
    let ids = (backend.environment.ids)();
    let started = Instant::now();
    let start = Run::start(server, &backend.config, generation, ids, &backend.environment, stop);
    let run = match start.await {
        Ok(run) => run,
        Err(_) if stop.is_cancelled() => return None,
        Err(error) => {
            tracing::warn!(%server, generation, reason = %error.detail, stderr = ?error.stderr, "server `{server}` did not start");
            return Some(error.reason);
        }
    };
    let ready = &run.ready;
    tracing::info!(
        %server, generation,
        protocol = %ready.dialect.version(), era = %ready.dialect.version().era(),
        tools = ready.tools.len(), start_ms = started.elapsed().as_millis(),
        "server `{server}` is ready"
    );
    backend.set_state(State::Ready(ready.clone()));
    let ready_since = Instant::now();
    let end = tokio::select! {
        end = run.ended() => end,
        () = keep_tools_fresh(backend, ready) => unreachable!("it never ends"),
        () = listen_for_tool_changes(ready) => unreachable!("it never ends"),
        () = stop.cancelled() => End::Stopped,
    };
    if ready_since.elapsed() >= HEALTHY_AFTER {
        backoff.reset();
    }
    // Callers must know at once, however long it takes to clean up.
    if end == End::Stopped {
        backend.set_state(State::Stopped);
        run.stop(&end).await;
        tracing::info!(%server, generation, "server `{server}` is stopped");
        return None;
    }
    backend.set_state(State::Starting);
    let (End::Exited(reason) | End::Protocol(reason)) = &end else { unreachable!("not stopped") };
    let stderr = run.stop(&end).await;
    tracing::warn!(%server, generation, %reason, ?stderr, "server `{server}` ended");
    Some(reason.clone())
}

/// Lists the tools again whenever the server says that they have changed. What is listed replaces what was
/// there; a list that cannot be had leaves it.
async fn keep_tools_fresh(backend: &Backend, ready: &Arc<Ready>) {
    let (server, connection) = (&backend.id, &ready.connection);
    loop {
        connection.tools_changed().await;
        let deadline = Instant::now() + REFRESH_TIMEOUT;
        let metrics = &backend.environment.metrics;
        match ToolSet::list(connection, &ready.dialect, deadline, server, metrics).await {
            Ok(tools) => {
                tracing::info!(%server, tools = tools.len(), "server `{server}` has changed its tools");
                backend.set_state(State::Ready(Arc::new(ready.with_tools(tools))));
            }
            Err(error) => {
                tracing::warn!(%server, %error, "the changed tools of server `{server}` could not be listed");
            }
        }
    }
}

/// Subscribes to changes of the tools, where that is needed to be told of them.
async fn listen_for_tool_changes(ready: &Ready) {
    while ready.must_listen() {
        let deadline = Instant::now() + LISTEN_TIMEOUT;
        let subscribe = |id| ready.dialect.listen_for_tool_changes(id);
        match ready.connection.request(deadline, subscribe).await {
            // The server ended the subscription; what happens before the next one is not told.
            Ok(Answer::Result(_)) => {
                sleep(LISTEN_AGAIN_AFTER).await;
                ready.connection.note_tools_changed();
            }
            Ok(Answer::Error(_)) | Err(_) => break,
        }
    }
    std::future::pending().await
}
