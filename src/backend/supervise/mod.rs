//! Keeps the copies of one server running: starts each, watches it, starts it again when it ends, and replaces it when it
//! has served its time ([`replacing`]). What [`self::restart_policy`] decides is done here.

pub(crate) mod health;
pub(crate) mod recycle;
mod replace;
pub mod restart_policy;
pub mod rollover;
mod serving_run;
pub(crate) mod subscription_leader;
mod tool_refresh;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::health::failing;
use self::restart_policy::{Failed, Lifecycle, Next};
use self::serving_run::{Left, Serving};
use self::subscription_leader::keep_subscribed_to_one;
use super::connection::in_flight::End;
use super::instance::handshake::describe;
use super::instance::measured::adapt;
use super::instance::pool::{LastFailure, Load};
use super::instance::run::{Launch, Run};
use super::instance::start_error::StartError;
use super::stdio::stderr::StderrTail;
use super::{Backend, Ready, State};
use crate::config::{Start, Transport};

/// How long one that is being started holds up others: most of the work is done then, and the rest may be waiting.
const TURN_MAX: Duration = Duration::from_secs(1);

/// Runs until `stop`, and leaves no process behind. Calls that are under way on a copy that takes no more may go on after
/// that; not after `halt`.
pub(super) async fn run(backend: Arc<Backend>, stop: CancellationToken, halt: CancellationToken) {
    let copies = TaskTracker::new();
    for number in 0..backend.pool.size() {
        let keeper = Keeper::new(backend.clone(), number, stop.clone(), halt.clone());
        copies.spawn(keeper.run());
    }
    copies.close();
    tokio::select! {
        () = copies.wait() => {}
        () = keep_subscribed_to_one(&backend) => {}
    }
}

/// Keeps one copy running.
struct Keeper {
    backend: Arc<Backend>,
    number: usize,
    lifecycle: Lifecycle,
    generation: u64,
    stop: CancellationToken,
    halt: CancellationToken,
    /// Its runs that take no more calls and still have some.
    leaving: TaskTracker,
}

impl Keeper {
    fn new(
        backend: Arc<Backend>,
        number: usize,
        stop: CancellationToken,
        halt: CancellationToken,
    ) -> Self {
        let budget = backend.environment.budget;
        let lifecycle = Lifecycle::new(match backend.config.transport {
            Transport::Stdio(_) => budget,
            Transport::Http(_) => budget.of_connecting(),
        });
        let leaving = TaskTracker::new();
        // Done whenever there is none; more may come all the same.
        leaving.close();
        Self { backend, number, lifecycle, generation: 0, stop, halt, leaving }
    }

    async fn run(mut self) {
        self.keep().await;
        self.enter(State::Stopped);
        self.leaving.wait().await;
    }

    async fn keep(&mut self) {
        let stop = self.stop.clone();
        if self.backend.config.start == Start::Lazy {
            tokio::select! {
                () = self.backend.wanted.cancelled() => {}
                () = stop.cancelled() => return,
            }
        }
        loop {
            if self.lifecycle.is_awaited() {
                self.enter(State::Starting);
            }
            self.lifecycle.note_start(Instant::now());
            self.generation += 1;
            let stderr = self.show_new_stderr();
            let next = match self.start(stderr).await {
                Ok(run) => {
                    self.note_ready(&run.ready);
                    self.serve(run).await
                }
                Err(_) if stop.is_cancelled() => None,
                Err(error) => Some(self.not_started(&error)),
            };
            let Some(next) = next else { return };
            // What the server remembered of its one client is gone: the client has to begin again.
            if let Some(client) = &self.backend.audience.client
                && client.has_ended()
            {
                return;
            }
            tokio::select! {
                () = sleep_until(next.at()) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Starts one run, when there are not too many that start.
    async fn start(&self, stderr: StderrTail) -> Result<Run, StartError> {
        let backend = &self.backend;
        let mut turn = tokio::select! {
            turn = backend.turn_to_start() => turn,
            () = self.stop.cancelled() => return Err(StartError::stopped()),
        };
        backend.pool.note_start(self.number);
        if self.generation > 1 {
            backend.metrics.restarts.inc();
        }
        let audience = backend.audience.clone();
        let start = Run::start(
            &backend.id,
            &backend.config,
            &backend.secrets,
            &backend.environment,
            Launch { generation: self.generation, audience, stderr },
            &self.stop,
        );
        tokio::pin!(start);
        let turn_ends = Instant::now() + TURN_MAX;
        loop {
            tokio::select! {
                started = &mut start => return started,
                () = sleep_until(turn_ends), if turn.is_some() => turn = None,
                () = self.stop.cancelled() => {
                    // Callers must know at once, however long it takes to clean up.
                    self.enter(State::Stopped);
                    return start.await;
                }
            }
        }
    }

    fn not_started(&mut self, error: &StartError) -> Next {
        let (server, generation) = (&self.backend.id, self.generation);
        tracing::warn!(%server, copy = self.number, generation, reason = %error.detail, stderr = ?error.stderr, "server `{server}` did not start");
        self.note_last_failure(&error.detail, error.stderr.clone());
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
                    self.bury(serving.run, &end).await;
                    return Some(next);
                }
                Left::Lost(reason) => {
                    let next = self.fail(failed, &reason);
                    self.leave(serving, &reason);
                    return Some(next);
                }
                Left::Worn(why) => {
                    let server = &self.backend.id;
                    if self.backend.audience.client.is_some() {
                        tracing::info!(%server, %why, "a session ends with its process of server `{server}`");
                        self.stop(serving.run).await;
                        return None;
                    }
                    tracing::info!(%server, copy = self.number, %why, "server `{server}` is replaced");
                    serving = match self.replace(serving).await {
                        Ok(successor) => successor,
                        Err(next) => return next,
                    };
                }
            }
        }
    }

    /// Watches a run that serves, until it no longer does or should not.
    async fn watch(&self, serving: &Serving) -> Left {
        tokio::select! {
            left = self.until_it_leaves(serving) => left,
            why = self.worn(serving) => Left::Worn(why),
        }
    }

    /// Watches a run that serves, until it no longer does.
    async fn until_it_leaves(&self, serving: &Serving) -> Left {
        let (backend, Serving { run, load, .. }) = (&self.backend, serving);
        self.enter_ready(serving.ready.load_full(), load);
        tokio::select! {
            end = run.ended() => Left::Failed(end),
            reason = failing(&run.ready, backend.environment.cancel_grace, backend.config.usual_call()) => {
                self.give_up(run, reason)
            }
            () = run.ready.connection.wants_replacement().cancelled() => {
                Left::Lost(run.ready.connection.retired().map_or(String::new(), describe))
            }
            () = self.keep_tools_fresh(serving) => Left::Stopped,
            () = adapt(backend, load) => Left::Stopped,
            () = self.heed_pauses(&run.ready) => Left::Stopped,
            () = self.stop.cancelled() => Left::Stopped,
        }
    }

    /// One that is not alive takes no more calls. Where they share a process, those that it has are lost with it.
    fn give_up(&self, run: &Run, reason: String) -> Left {
        match self.backend.config.transport {
            Transport::Stdio(_) => {
                let end = End::Exited(reason);
                run.give_up(&end);
                Left::Failed(end)
            }
            Transport::Http(_) => {
                run.ready.connection.retire("it does not answer", reason.clone());
                Left::Lost(reason)
            }
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

    async fn stop(&self, run: Run) {
        // Callers must know at once, however long it takes to clean up.
        self.enter(State::Stopped);
        run.stop(&End::Stopped).await;
        let server = &self.backend.id;
        tracing::info!(%server, copy = self.number, "server `{server}` is stopped");
    }

    /// What is left of a run that has failed.
    async fn bury(&self, run: Run, end: &End) {
        if let Some(client) = &self.backend.audience.client {
            client.end();
        }
        let (server, reason) = (&self.backend.id, end.reason());
        let stderr = run.stop(end).await;
        tracing::warn!(%server, copy = self.number, generation = self.generation, %reason, ?stderr, "server `{server}` ended");
        self.note_last_failure(reason, stderr);
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
        self.backend.pool.note_down(self.number, reason);
        if let Next::Quarantine(until) = next {
            let (server, again_in_s) = (&self.backend.id, (until - Instant::now()).as_secs());
            tracing::warn!(%server, copy = self.number, %reason, again_in_s, "server `{server}` is in quarantine");
        }
        let reason = reason.into();
        self.enter(match next {
            Next::Restart(_) => State::Starting,
            Next::Backoff(until) => State::Backoff { until, reason },
            Next::Quarantine(until) => State::Quarantined { until, reason },
        });
        next
    }

    fn note_last_failure(&self, detail: &str, stderr: Vec<String>) {
        let (detail, stderr) = (detail.into(), stderr.into());
        let last_failure = LastFailure { at: Timestamp::now(), detail, stderr };
        self.backend.pool.note_last_failure(self.number, last_failure);
    }

    /// What a process that is about to be started writes there, operators see from the beginning.
    fn show_new_stderr(&self) -> StderrTail {
        let stderr = StderrTail::default();
        self.backend.pool.show_stderr(self.number, stderr.clone());
        stderr
    }
}
