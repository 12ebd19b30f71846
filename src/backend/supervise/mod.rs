//! Keeps the instances of one backend running: starts each, watches it, restarts it when it ends
//! ([`restart_policy`] decides when), and replaces it when it is due ([`instance_rollover`]).

pub(super) mod cells;
pub(crate) mod health;
mod instance_rollover;
pub mod restart_policy;
pub mod rollover;
pub(crate) mod serial;
mod serving_run;
mod suspects;
mod tool_refresh;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use jiff::Timestamp;
use tokio::join;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::restart_policy::{Failed, NextStart, RestartPolicy};
use self::serving_run::{ServingRun, StopReason};
use super::changes::subscriptions::keep_subscribed_to_one;
use super::connection::CloseReason;
use super::instance::pool::{LastFailure, Load};
use super::instance::run::{Launch, Run};
use super::instance::start_error::StartError;
use super::stdio::line_tail::LineTail;
use super::{Backend, Ready, RunState};
use crate::config::{Start, Transport};
use crate::events::InstanceChange;
use crate::telemetry::logging::lines;
use crate::telemetry::tasks::{catch_panic, restart_on_panic};

/// The interval at which a supervisor checks a run: its health, its age, its drain.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A starting instance holds its start permit for at most this time: most of its work is done
/// then, and the rest may be waiting.
const START_PERMIT_MAX: Duration = Duration::from_secs(1);

const PANICKED: &str = "the gateway failed while it watched it";

/// Runs until `stop`, and leaves no process behind. Instances that drain may do so after `stop`,
/// but not after `halt`.
pub(super) async fn run(backend: Arc<Backend>, stop: CancellationToken, halt: CancellationToken) {
    let instances = TaskTracker::new();
    for number in 0..backend.pool.size() {
        let (stop, halt) = (stop.clone(), halt.clone());
        instances.spawn(InstanceSupervisor::new(backend.clone(), number, stop, halt).run());
    }
    instances.close();
    let ended = async { join!(instances.wait(), cells::run(backend.clone(), stop)) };
    if backend.is_cell() {
        // The shared backend subscribes for all.
        ended.await;
        return;
    }
    let (metrics, mut subscribed) = (&backend.environment.metrics, backend.clone());
    let subscribing = restart_on_panic(metrics, "subscriptions", &mut subscribed, |backend| {
        keep_subscribed_to_one(backend).boxed()
    });
    tokio::select! {
        _ = ended => {}
        () = subscribing => {}
    }
}

/// Keeps one instance running.
struct InstanceSupervisor {
    backend: Arc<Backend>,
    number: usize,
    policy: RestartPolicy,
    generation: u64,
    stop: CancellationToken,
    halt: CancellationToken,
    /// Runs that take no more calls and still have some.
    draining: TaskTracker,
    /// When this task began, or began again after a panic.
    began: Option<Instant>,
}

impl InstanceSupervisor {
    fn new(
        backend: Arc<Backend>,
        number: usize,
        stop: CancellationToken,
        halt: CancellationToken,
    ) -> Self {
        let budget = backend.environment.budget;
        let policy = RestartPolicy::new(match backend.config.transport {
            Transport::Stdio(_) => budget,
            Transport::Http(_) => budget.of_connecting(),
        });
        let draining = TaskTracker::new();
        // Lets `wait` end whenever there is no task; more may be spawned all the same.
        draining.close();
        Self { backend, number, policy, generation: 0, stop, halt, draining, began: None }
    }

    async fn run(mut self) {
        let metrics = self.backend.environment.metrics.clone();
        restart_on_panic(&metrics, "instance", &mut self, |it| it.run_until_stopped().boxed())
            .await;
        self.set_state(RunState::Stopped);
        self.draining.wait().await;
    }

    async fn run_until_stopped(&mut self) {
        let panicked = self.began.replace(Instant::now());
        let next = panicked.map(|began| self.recover(began));
        self.restart_until_stopped(next).await;
    }

    /// Fails the instance after a panic of this task, which began at that time. The run was
    /// dropped, so its calls have failed and its process was told to end.
    fn recover(&mut self, began: Instant) -> NextStart {
        if let Some(client) = &self.backend.recipients.client {
            client.end();
        }
        self.set_last_failure(PANICKED, vec![], vec![]);
        self.fail(Failed::After(began.elapsed()), PANICKED)
    }

    /// Restarts the instance, at the time of `next` if there is one, until it is stopped.
    async fn restart_until_stopped(&mut self, mut next: Option<NextStart>) {
        let stop = self.stop.clone();
        if self.backend.config.start == Start::Lazy {
            tokio::select! {
                () = self.backend.wanted.cancelled() => {}
                () = stop.cancelled() => return,
            }
        }
        loop {
            if let Some(next) = next {
                // The server's memory of its one client is gone: the client has to begin again.
                let client = self.backend.recipients.client.as_ref();
                if client.is_some_and(|client| client.has_ended()) {
                    return;
                }
                tokio::select! {
                    () = sleep_until(next.at()) => {}
                    () = stop.cancelled() => return,
                }
            }
            if self.policy.is_awaited() {
                self.set_state(RunState::Starting);
            }
            self.policy.note_start(Instant::now());
            self.generation += 1;
            next = match self.start(self.show_new_stderr()).await {
                Ok(run) => self.serve(run).await,
                Err(_) if stop.is_cancelled() => None,
                Err(error) => self.start_failed(&error),
            };
            if next.is_none() {
                return;
            }
        }
    }

    /// Starts one run as soon as it has a start permit.
    async fn start(&self, stderr: LineTail) -> Result<Run, StartError> {
        let backend = &self.backend;
        let mut permit = tokio::select! {
            permit = backend.start_permit() => permit,
            () = self.stop.cancelled() => return Err(StartError::stopped()),
        };
        backend.pool.update(self.number, |instance| instance.starts += 1);
        if self.generation > 1 {
            backend.metrics.restarts.inc();
        }
        let recipients = backend.recipients.clone();
        let start = Run::start(
            &backend.id,
            &backend.config,
            &backend.secrets,
            &backend.environment,
            Launch { generation: self.generation, recipients, stderr },
            &self.stop,
        );
        tokio::pin!(start);
        let permit_ends = Instant::now() + START_PERMIT_MAX;
        loop {
            tokio::select! {
                started = &mut start => return started,
                () = sleep_until(permit_ends), if permit.is_some() => permit = None,
                () = self.stop.cancelled() => {
                    // Callers must know at once, however long it takes to clean up.
                    self.set_state(RunState::Stopped);
                    return start.await;
                }
            }
        }
    }

    /// Returns when to start again. A cell does not.
    fn start_failed(&mut self, error: &StartError) -> Option<NextStart> {
        let (server, generation) = (&self.backend.id, self.generation);
        tracing::warn!(
            %server, instance = self.number, generation, reason = %error.detail,
            stderr = lines(&error.stderr), stdout = lines(&error.stdout),
            "server `{server}` did not start"
        );
        self.set_last_failure(&error.detail, error.stderr.clone(), error.stdout.clone());
        if self.backend.is_cell() {
            self.backend.note_cell_failed();
            return None;
        }
        let failed = if error.is_permanent { Failed::ForGood } else { Failed::ToStart };
        Some(self.fail(failed, &error.reason))
    }

    /// Serves with this run, and with those that replace it as planned. Returns when to start
    /// again, or `None` when told to stop.
    async fn serve(&mut self, run: Run) -> Option<NextStart> {
        let (server, version) = (&self.backend.id, run.ready.dialect.version());
        tracing::info!(
            %server, instance = self.number, generation = self.generation,
            protocol = %version, era = %version.era(), tools = run.ready.tools.iter().count(),
            "server `{server}` is ready"
        );
        let mut serving = ServingRun::new(&self.backend, run);
        loop {
            let stopped = async {
                tokio::select! {
                    reason = self.until_stopped(&serving) => reason,
                    why = self.due_for_recycling(&serving) => StopReason::Recycled(why),
                }
            };
            // Caught here, so that the process is gone before the next one starts.
            let stopped = catch_panic(&self.backend.environment.metrics, "instance", stopped).await;
            let panicked = || self.give_up(&serving.run, PANICKED.to_owned());
            let stopped = stopped.unwrap_or_else(panicked);
            let failed = Failed::After(serving.since.elapsed());
            match stopped {
                StopReason::Stopped => {
                    self.stop(serving.run).await;
                    return None;
                }
                StopReason::Failed(end) => {
                    let next = self.crashed(&serving, &end);
                    self.clean_up(serving.run, &end).await;
                    return next;
                }
                StopReason::Disconnected(reason) => {
                    let next = self.fail(failed, &reason);
                    self.disconnect(serving, &reason);
                    return Some(next);
                }
                StopReason::Recycled(why) => {
                    let server = &self.backend.id;
                    if self.backend.recipients.client.is_some() {
                        tracing::info!(
                            %server, %why,
                            "a session ends with its process of server `{server}`"
                        );
                        self.stop(serving.run).await;
                        return None;
                    }
                    tracing::info!(
                        %server, instance = self.number, %why,
                        "server `{server}` is replaced"
                    );
                    serving = match self.replace(serving).await {
                        Ok(next) => next,
                        Err(next_start) => return next_start,
                    };
                }
            }
        }
    }

    /// Watches a run that serves, until it no longer does.
    async fn until_stopped(&self, serving: &ServingRun) -> StopReason {
        let (backend, ServingRun { run, load, .. }) = (&self.backend, serving);
        self.set_ready(serving.ready.load_full(), load);
        tokio::select! {
            end = run.ended() => StopReason::Failed(end),
            reason = self.failing(&run.ready) => self.give_up(run, reason),
            () = run.ready.connection.wants_replacement().cancelled() => {
                let retired = run.ready.connection.retired();
                StopReason::Disconnected(retired.map_or(String::new(), ToString::to_string))
            }
            () = self.keep_tools_fresh(serving) => StopReason::Stopped,
            () = self.tell_changed_lists(serving) => StopReason::Stopped,
            () = backend.adapt(load) => StopReason::Stopped,
            () = backend.look_for_serial(self.number, &run.ready, load) => StopReason::Stopped,
            () = self.stop.cancelled() => StopReason::Stopped,
        }
    }

    /// Directs no more calls to a run that is not alive. A process is lost with all its calls; over
    /// HTTP each call may still be answered.
    fn give_up(&self, run: &Run, reason: String) -> StopReason {
        match self.backend.config.transport {
            Transport::Stdio(_) => {
                let end = CloseReason::Lost(reason);
                run.give_up(&end);
                StopReason::Failed(end)
            }
            Transport::Http(_) => {
                run.ready.connection.retire("it does not answer", reason.clone());
                StopReason::Disconnected(reason)
            }
        }
    }

    async fn stop(&self, run: Run) {
        // Callers must know at once, however long it takes to clean up.
        self.set_state(RunState::Stopped);
        run.stop(&CloseReason::Stopped).await;
        let server = &self.backend.id;
        tracing::info!(%server, instance = self.number, "server `{server}` is stopped");
    }

    /// Cleans up after a run that has failed.
    async fn clean_up(&self, run: Run, end: &CloseReason) {
        if let Some(client) = &self.backend.recipients.client {
            client.end();
        }
        let (server, reason) = (&self.backend.id, end.to_string());
        let stdout = run.stray_output(&self.backend.secrets);
        let stderr = run.stop(end).await;
        tracing::warn!(
            %server, instance = self.number, generation = self.generation, %reason,
            stderr = lines(&stderr), stdout = lines(&stdout),
            "server `{server}` ended"
        );
        self.set_last_failure(&reason, stderr, stdout);
    }

    fn set_state(&self, state: RunState) {
        self.backend.set_instance_state(self.number, state, None);
    }

    fn set_ready(&self, ready: Arc<Ready>, load: &Arc<Load>) {
        self.backend.set_instance_state(self.number, RunState::Ready(ready), Some(load));
    }

    /// Refuses calls from now on, or has them wait for a quick restart. Returns when to restart.
    fn fail(&mut self, failed: Failed, reason: &str) -> NextStart {
        let next = self.policy.after(failed, Instant::now());
        self.set_down(reason);
        if let NextStart::Quarantine(until) = next {
            let (server, again_in_s) = (&self.backend.id, (until - Instant::now()).as_secs());
            tracing::warn!(
                %server, instance = self.number, %reason, again_in_s,
                "server `{server}` is in quarantine"
            );
        }
        let reason = reason.into();
        // Whoever answers at a URL may change it without anybody here.
        let is_program = matches!(self.backend.config.transport, Transport::Stdio(_));
        let for_good = is_program && failed == Failed::ForGood;
        self.set_state(match next {
            NextStart::Restart(_) => RunState::Starting,
            NextStart::Backoff(until) => RunState::Backoff { until, reason },
            NextStart::Quarantine(until) => RunState::Quarantined { until, reason, for_good },
        });
        next
    }

    fn set_down(&self, reason: &str) {
        self.backend.pool.update(self.number, |instance| instance.set_down(reason.into()));
    }

    fn set_last_failure(&self, detail: &str, stderr: Vec<String>, stdout: Vec<String>) {
        let (detail, stderr, stdout): (Arc<str>, _, _) =
            (detail.into(), stderr.into(), stdout.into());
        self.backend.tell_change(self.number, || InstanceChange::Failed { reason: detail.clone() });
        let failure = LastFailure { at: Timestamp::now(), detail, stderr, stdout };
        self.backend.pool.update(self.number, |instance| instance.last_failure = Some(failure));
    }

    fn show_stderr(&self, stderr: &LineTail) {
        self.backend.pool.update(self.number, |instance| instance.stderr = stderr.clone());
    }

    /// Shows the operator what a process writes there from its start on.
    fn show_new_stderr(&self) -> LineTail {
        let stderr = LineTail::default();
        self.show_stderr(&stderr);
        stderr
    }
}
