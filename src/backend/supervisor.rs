//! Keeps one server running: starts it, watches it, starts it again when it ends.
//!
//! ```text
//!  Idle ──first call──▶ Starting ──▶ Ready
//!                        ▲   │ fails   │ ends
//!                        │   ▼         │
//!                       Backoff ◀──────┘
//!
//!  any of them ──stop──▶ Stopped
//! ```

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::mailbox::List;
use super::pending::End;
use super::run::Run;
use super::subscriptions::keep_subscribed;
use super::tools::ToolSet;
use super::{Backend, Ready, State};
use crate::config::Start;

/// A server that stayed up this long is healthy: its next failure counts as the first.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
/// How long a refresh of the tool list may take.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between hearing of a change and asking for the list; changes often come together.
const REFRESH_PAUSE: Duration = Duration::from_millis(250);

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
        let Some(until) = run_once(&backend, generation, &mut backoff, &stop).await else { break };
        // What the server remembered of its one client is gone: the client has to begin again.
        if let Some(client) = &backend.audience.client
            && client.has_ended()
        {
            break;
        }
        tokio::select! {
            () = sleep_until(until) => {}
            () = stop.cancelled() => break,
        }
    }
    backend.set_state(State::Stopped);
}

/// One run from start to end. Gives the time to start again, or `None` when told to stop.
async fn run_once(
    backend: &Backend,
    generation: u64,
    backoff: &mut Backoff,
    stop: &CancellationToken,
) -> Option<Instant> {
    let server = &backend.id;
    let ids = (backend.environment.ids)();
    let started = Instant::now();
    let start = Run::start(
        server,
        &backend.config,
        generation,
        ids,
        &backend.environment,
        &backend.secrets,
        backend.audience.clone(),
        stop,
    );
    let started_or_stopped = async {
        tokio::pin!(start);
        tokio::select! {
            started = &mut start => started,
            () = stop.cancelled() => {
                // Callers must know at once, however long it takes to clean up.
                backend.set_state(State::Stopped);
                start.await
            }
        }
    };
    let run = match started_or_stopped.await {
        Ok(run) => run,
        Err(_) if stop.is_cancelled() => return None,
        Err(error) => {
            tracing::warn!(%server, generation, reason = %error.detail, stderr = ?error.stderr, "server `{server}` did not start");
            return Some(back_off(backend, backoff, &error.reason));
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
    backend.changes().lists_may_have_changed(ready.about.lists());
    backend.changes().resources_may_have_changed();
    let ready_since = Instant::now();
    let end = tokio::select! {
        end = run.ended() => end,
        () = keep_tools_fresh(backend, ready) => unreachable!("it never ends"),
        () = keep_subscribed(backend.changes(), ready) => unreachable!("it never ends"),
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
    let (End::Exited(reason) | End::Protocol(reason)) = &end else { unreachable!("not stopped") };
    let until = back_off(backend, backoff, reason);
    if let Some(client) = &backend.audience.client {
        client.end();
    }
    let stderr = run.stop(&end).await;
    tracing::warn!(%server, generation, %reason, ?stderr, "server `{server}` ended");
    Some(until)
}

/// Refuses calls from now on; gives the time to start again.
fn back_off(backend: &Backend, backoff: &mut Backoff, reason: &str) -> Instant {
    let until = Instant::now() + backoff.next_wait();
    backend.set_state(State::Backoff { until, reason: reason.into() });
    until
}

/// Lists the tools again whenever the server says that they have changed. What is listed replaces what was
/// there; a list that cannot be had leaves it.
async fn keep_tools_fresh(backend: &Backend, ready: &Arc<Ready>) {
    let (server, connection) = (&backend.id, &ready.connection);
    loop {
        connection.tools_changed().await;
        // A server that says so all the time is not asked all the time.
        sleep(REFRESH_PAUSE).await;
        let deadline = Instant::now() + REFRESH_TIMEOUT;
        let metrics = &backend.environment.metrics;
        match ToolSet::list(connection, &ready.dialect, deadline, server, metrics).await {
            Ok(tools) if tools.is_like(&backend.tools_now()) => {
                backend.set_state(State::Ready(Arc::new(ready.with_tools(tools))));
            }
            Ok(tools) => {
                tracing::info!(%server, tools = tools.len(), "server `{server}` has changed its tools");
                backend.set_state(State::Ready(Arc::new(ready.with_tools(tools))));
                backend.changes().list_changed(List::Tools);
            }
            Err(error) => {
                tracing::warn!(%server, %error, "the changed tools of server `{server}` could not be listed");
            }
        }
    }
}
