//! Keeps the copies of one server running: starts each, watches it, starts it again when it ends, and replaces it when it
//! has served its time. What [`super::lifecycle`] decides is done here.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::handshake::describe;
use super::health::failing;
use super::lifecycle::{Failed, Lifecycle, Next};
use super::mailbox::List;
use super::measured::adapt;
use super::pending::End;
use super::pool::{Load, Trouble};
use super::run::{Run, StartError};
use super::speaker::keep_subscribed_to_one;
use super::tools::ToolSet;
use super::wear::worn;
use super::{Backend, Ready, State};
use crate::config::{Start, Transport};

/// How long a refresh of the tool list may take.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between hearing of a change and asking for the list; changes often come together.
const REFRESH_PAUSE: Duration = Duration::from_millis(250);
/// When the successor of a worn copy did not start, it is tried again after this time.
const SUCCESSOR_PAUSE: Duration = Duration::from_secs(30);

/// Runs until `stop`, and leaves no process behind.
pub(super) async fn run(backend: Arc<Backend>, stop: CancellationToken) {
    let (copies, drained) = (TaskTracker::new(), TaskTracker::new());
    for number in 0..backend.pool.size() {
        let keeper = Keeper::new(backend.clone(), number, stop.clone(), drained.clone());
        copies.spawn(keeper.run());
    }
    copies.close();
    tokio::select! {
        () = copies.wait() => {}
        () = keep_subscribed_to_one(&backend) => {}
    }
    drained.close();
    drained.wait().await;
}

/// Keeps one copy running.
struct Keeper {
    backend: Arc<Backend>,
    number: usize,
    lifecycle: Lifecycle,
    generation: u64,
    stop: CancellationToken,
    /// Copies that take no more calls and still have some.
    drained: TaskTracker,
}

/// A run that takes calls.
struct Serving {
    run: Run,
    load: Arc<Load>,
    since: Instant,
}

impl Serving {
    fn new(backend: &Backend, run: Run) -> Self {
        let load = Load::new(backend.config.max_in_flight, backend.config.adaptive);
        Self { run, load, since: Instant::now() }
    }
}

/// Why a copy no longer serves.
enum Left {
    /// It was told to stop.
    Stopped,
    /// It ended, or had to be ended.
    Failed(End),
    /// It takes no more calls; those it has may go on.
    Lost(String),
    /// It is well, and has served its time.
    Worn(String),
}

impl Keeper {
    fn new(
        backend: Arc<Backend>,
        number: usize,
        stop: CancellationToken,
        drained: TaskTracker,
    ) -> Self {
        let budget = backend.environment.budget;
        let lifecycle = Lifecycle::new(match backend.config.transport {
            Transport::Stdio(_) => budget,
            Transport::Http(_) => budget.of_connecting(),
        });
        Self { backend, number, lifecycle, generation: 0, stop, drained }
    }

    async fn run(mut self) {
        let stop = self.stop.clone();
        if self.backend.config.start == Start::Lazy {
            tokio::select! {
                () = self.backend.wanted.cancelled() => {}
                () = stop.cancelled() => return self.enter(State::Stopped),
            }
        }
        loop {
            self.enter(State::Starting);
            self.lifecycle.note_start(Instant::now());
            let next = match self.start().await {
                Ok(run) => {
                    self.note_ready(&run.ready);
                    self.serve(run).await
                }
                Err(_) if stop.is_cancelled() => None,
                Err(error) => Some(self.not_started(&error)),
            };
            let Some(next) = next else { break };
            // What the server remembered of its one client is gone: the client has to begin again.
            if let Some(client) = &self.backend.audience.client
                && client.has_ended()
            {
                break;
            }
            tokio::select! {
                () = sleep_until(next.at()) => {}
                () = stop.cancelled() => break,
            }
        }
        self.enter(State::Stopped);
    }

    /// Starts one run, when there are not too many that start.
    async fn start(&mut self) -> Result<Run, StartError> {
        let backend = self.backend.clone();
        let _turn = tokio::select! {
            turn = backend.environment.starts.acquire() => turn.ok(),
            () = self.stop.cancelled() => None,
        };
        self.generation += 1;
        if self.generation > 1 {
            backend.metrics.restarts.inc();
        }
        let start = Run::start(
            &backend.id,
            &backend.config,
            &backend.secrets,
            self.generation,
            &backend.environment,
            backend.audience.clone(),
            &self.stop,
        );
        tokio::pin!(start);
        tokio::select! {
            started = &mut start => started,
            () = self.stop.cancelled() => {
                // Callers must know at once, however long it takes to clean up.
                self.enter(State::Stopped);
                start.await
            }
        }
    }

    fn not_started(&mut self, error: &StartError) -> Next {
        let (server, generation) = (&self.backend.id, self.generation);
        tracing::warn!(%server, copy = self.number, generation, reason = %error.detail, stderr = ?error.stderr, "server `{server}` did not start");
        self.note_trouble(&error.reason, &error.detail, error.stderr.clone());
        let failed = if error.is_permanent { Failed::ForGood } else { Failed::ToStart };
        self.fail(failed, &error.reason)
    }

    /// Serves with this run, and with those that take its place as planned. Gives when to start again, or `None` when
    /// told to stop.
    async fn serve(&mut self, run: Run) -> Option<Next> {
        let mut serving = Serving::new(&self.backend, run);
        loop {
            let left = self.watch(&serving).await;
            let failed = Failed::After(serving.since.elapsed());
            match left {
                Left::Stopped => {
                    self.stop(serving.run).await;
                    return None;
                }
                Left::Failed(end) => {
                    let next = self.fail(failed, end.reason());
                    if let Some(client) = &self.backend.audience.client {
                        client.end();
                    }
                    self.bury(serving.run, &end).await;
                    return Some(next);
                }
                Left::Lost(reason) => {
                    let next = self.fail(failed, &reason);
                    let server = &self.backend.id;
                    tracing::warn!(%server, copy = self.number, %reason, "server `{server}` is connected to again");
                    self.note_trouble(&reason, &reason, vec![]);
                    self.drain(serving);
                    return Some(next);
                }
                Left::Worn(why) => {
                    let server = &self.backend.id;
                    tracing::info!(%server, copy = self.number, %why, "server `{server}` is replaced");
                    serving = match self.replace(serving).await {
                        Ok(successor) => successor,
                        Err(next) => return next,
                    };
                }
            }
        }
    }

    /// Watches a run that serves, until it no longer does.
    async fn watch(&self, serving: &Serving) -> Left {
        let (backend, Serving { run, load, since }) = (&self.backend, serving);
        self.enter_ready(run.ready.clone(), load);
        tokio::select! {
            end = run.ended() => Left::Failed(end),
            reason = failing(&run.ready, backend.environment.cancel_grace) => {
                let end = End::Exited(reason);
                run.give_up(&end);
                Left::Failed(end)
            }
            () = run.ready.connection.wants_replacement().cancelled() => {
                Left::Lost(run.ready.connection.retired().map_or(String::new(), describe))
            }
            why = worn(&backend.config.recycle, run, load, *since) => Left::Worn(why),
            () = self.keep_tools_fresh(&run.ready, load) => Left::Stopped,
            () = adapt(backend, load) => Left::Stopped,
            () = self.heed_pauses(&run.ready) => Left::Stopped,
            () = self.stop.cancelled() => Left::Stopped,
        }
    }

    /// Leaves the server alone when it says so. Its callers wait. Never ends.
    async fn heed_pauses(&self, ready: &Ready) {
        let mut paused_until = ready.connection.paused_until();
        while paused_until.changed().await.is_ok() {
            let until = *paused_until.borrow_and_update();
            until.into_iter().for_each(|until| self.backend.queue.pause_until(until));
        }
        pending().await
    }

    /// Has another run take the place of one that is well: it is ready before the old one goes, except where two must
    /// not run at once. This is planned, and does not count as a failure.
    async fn replace(&mut self, old: Serving) -> Result<Serving, Option<Next>> {
        if self.backend.config.exclusive {
            return self.replace_exclusively(old).await;
        }
        let successor = self.start().await;
        if self.stop.is_cancelled() {
            self.stop(old.run).await;
            return Err(None);
        }
        match successor {
            Ok(run) => {
                let successor = Serving::new(&self.backend, run);
                self.enter_ready(successor.run.ready.clone(), &successor.load);
                self.drain(old);
                Ok(successor)
            }
            Err(error) => {
                let server = &self.backend.id;
                tracing::warn!(%server, copy = self.number, reason = %error.detail, stderr = ?error.stderr, "the successor of server `{server}` did not start; the old one stays");
                self.note_trouble(&error.reason, &error.detail, error.stderr);
                tokio::select! {
                    () = sleep(SUCCESSOR_PAUSE) => {}
                    _ = old.run.ended() => {}
                    () = self.keep_tools_fresh(&old.run.ready, &old.load) => {}
                    () = self.stop.cancelled() => {}
                }
                Ok(old)
            }
        }
    }

    async fn replace_exclusively(&mut self, old: Serving) -> Result<Serving, Option<Next>> {
        // Those that come now wait for the next one.
        self.enter(State::Draining);
        tokio::select! {
            _ = timeout(self.backend.longest_call(), old.load.idle()) => {}
            _ = old.run.ended() => {}
            () = self.stop.cancelled() => {}
        }
        self.enter(State::Starting);
        old.run.stop(&End::Stopped).await;
        match self.start().await {
            Ok(run) => Ok(Serving::new(&self.backend, run)),
            Err(_) if self.stop.is_cancelled() => Err(None),
            Err(error) => Err(Some(self.not_started(&error))),
        }
    }

    /// Lets the calls of a run that takes no more end, then ends it.
    fn drain(&self, Serving { run, load, .. }: Serving) {
        let (longest, stop) = (self.backend.longest_call(), self.stop.clone());
        self.drained.spawn(async move {
            tokio::select! {
                _ = timeout(longest, load.idle()) => {}
                _ = run.ended() => {}
                () = stop.cancelled() => {}
            }
            run.stop(&End::Stopped).await;
        });
    }

    async fn stop(&self, run: Run) {
        // Callers must know at once, however long it takes to clean up.
        self.enter(State::Stopped);
        run.stop(&End::Stopped).await;
        let server = &self.backend.id;
        tracing::info!(%server, copy = self.number, "server `{server}` is stopped");
    }

    async fn bury(&self, run: Run, end: &End) {
        let (server, reason) = (&self.backend.id, end.reason());
        let stderr = run.stop(end).await;
        tracing::warn!(%server, copy = self.number, generation = self.generation, %reason, ?stderr, "server `{server}` ended");
        self.note_trouble(reason, reason, stderr);
    }

    fn note_ready(&self, ready: &Ready) {
        let (server, version) = (&self.backend.id, ready.dialect.version());
        tracing::info!(
            %server, copy = self.number, generation = self.generation,
            protocol = %version, era = %version.era(), tools = ready.tools.iter().count(),
            "server `{server}` is ready"
        );
    }

    fn enter(&self, state: State) {
        self.backend.enter(self.number, state, None);
    }

    fn enter_ready(&self, ready: Arc<Ready>, load: &Arc<Load>) {
        self.backend.enter(self.number, State::Ready(ready), Some(load));
    }

    /// Refuses calls from now on, or has them wait if it will not be long; gives the time to start again.
    fn fail(&mut self, failed: Failed, reason: &str) -> Next {
        let next = self.lifecycle.after(failed, Instant::now());
        let reason = reason.into();
        self.enter(match next {
            Next::Restart(_) => State::Starting,
            Next::Backoff(until) => State::Backoff { until, reason },
            Next::Quarantine(until) => State::Quarantined { until, reason },
        });
        next
    }

    fn note_trouble(&self, reason: &str, detail: &str, stderr: Vec<String>) {
        let (reason, detail, stderr) = (reason.into(), detail.into(), stderr.into());
        let trouble = Trouble { at: Timestamp::now(), reason, detail, stderr };
        self.backend.pool.note_trouble(self.number, trouble);
    }

    /// Lists the tools again whenever the server says that they have changed. What is listed replaces what was
    /// there; a list that cannot be had leaves it. Never ends.
    async fn keep_tools_fresh(&self, ready: &Arc<Ready>, load: &Arc<Load>) {
        let (backend, server, connection) = (&self.backend, &self.backend.id, &ready.connection);
        let mut tools = ready.tools.clone();
        loop {
            connection.tools_changed().await;
            // A server that says so all the time is not asked all the time.
            sleep(REFRESH_PAUSE).await;
            let deadline = Instant::now() + REFRESH_TIMEOUT;
            let (dialect, environment) = (&ready.dialect, &backend.environment);
            let is_pinned = backend.config.pin;
            match ToolSet::list(connection, dialect, deadline, server, environment, is_pinned).await
            {
                Ok(listed) => {
                    let has_changed = !listed.is_like(&tools);
                    let ready = Arc::new(ready.with_tools(listed));
                    tools = ready.tools.clone();
                    self.enter_ready(ready, load);
                    if has_changed {
                        tracing::info!(%server, tools = tools.iter().count(), "server `{server}` has changed its tools");
                        backend.changes().list_changed(List::Tools);
                    }
                }
                Err(error) => {
                    tracing::warn!(%server, %error, "the changed tools of server `{server}` could not be listed");
                }
            }
        }
    }
}
