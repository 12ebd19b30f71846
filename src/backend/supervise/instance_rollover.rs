//! The rollover of one instance from one run to the next (`recycle`). A planned one does not count
//! as a failure.
//!
//! ```text
//!  beside      next run starts, the old one is Ready ──ready, switch──▶ old one drains ──▶ gone
//!                   └─does not start─▶ the old one stays; the next start comes later
//!
//!  exclusive   old run drains (state Draining, callers wait) ──▶ gone ──▶ next run starts
//! ```
//!
//! The stages are those of a backend (`rollover.rs`), and so is the wait for the last call. Unlike
//! a backend, the next run is started once, and the same task watches the old one meanwhile.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::CHECK_EVERY;
use super::restart_policy::NextStart;
use super::{InstanceSupervisor, ServingRun, StopReason};
use crate::backend::connection::CloseReason;
use crate::backend::instance::run::Run;
use crate::backend::stdio::line_tail::LineTail;
use crate::backend::{Backend, RunState};
use crate::config::Transport;
use crate::events::InstanceChange;
use crate::protocol::mcp::Era;
use crate::telemetry::logging::lines;

/// The pause after a next run that did not start.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Runs of one instance that drain at once. Each may have a call that takes an hour.
const DRAINING_MAX: usize = 4;

impl InstanceSupervisor {
    /// Waits until a run is to be replaced; says why. A run that belongs to a client ends with the
    /// client, since no other can replace it, as soon as the client asks nothing.
    pub(super) async fn due_for_recycling(&self, serving: &ServingRun) -> String {
        if let Some(until) = serving.stays_until {
            sleep_until(until).await;
        }
        self.may_drain_another().await;
        let why = serving.due(&self.backend.config.recycle).await;
        if let Some(client) = &self.backend.recipients.client {
            while !client.end_if_no_request() {
                sleep(CHECK_EVERY).await;
            }
        }
        why
    }

    /// Waits until no other run of this instance drains. After the time that calls usually have, a
    /// few may: not every rollover waits for a call that takes an hour.
    async fn may_drain_another(&self) {
        let usual = self.backend.config.usual_call() + self.backend.environment.cancel_grace;
        if timeout(usual, self.draining.wait()).await.is_err() {
            while self.draining.len() >= DRAINING_MAX {
                sleep(CHECK_EVERY).await;
            }
        }
    }

    /// Replaces a run that is well.
    pub(super) async fn replace(
        &mut self,
        old: ServingRun,
    ) -> Result<ServingRun, Option<NextStart>> {
        self.generation += 1;
        if self.backend.config.exclusive {
            self.replace_exclusively(old).await
        } else {
            self.replace_beside(old).await
        }
    }

    async fn replace_beside(
        &mut self,
        mut old: ServingRun,
    ) -> Result<ServingRun, Option<NextStart>> {
        let stderr = LineTail::default();
        let (next, stopped) = {
            let mut start = std::pin::pin!(self.start(stderr.clone()));
            tokio::select! {
                next = &mut start => (next, None),
                // If it fails meanwhile, calls go to other instances, or wait for the next run.
                stopped = self.until_stopped(&old) => {
                    if let Some(reason) = stopped.failure() {
                        self.set_down(&reason);
                        self.set_state(RunState::Starting);
                        self.show_stderr(&stderr);
                    }
                    (start.await, Some(stopped))
                }
            }
        };
        if self.stop.is_cancelled() {
            if let Ok(run) = next {
                run.stop(&CloseReason::Stopped).await;
            }
            self.stop(old.run).await;
            return Err(None);
        }
        let result = match next {
            Ok(run) => {
                let next = ServingRun::new(&self.backend, run);
                self.set_ready(next.ready.load_full(), &next.load);
                self.show_stderr(&stderr);
                Ok(next)
            }
            Err(error) if stopped.is_none() => {
                let server = &self.backend.id;
                tracing::warn!(
                    %server, instance = self.number, reason = %error.detail,
                    stderr = lines(&error.stderr), stdout = lines(&error.stdout),
                    "the next process of server `{server}` did not start; the old one stays"
                );
                self.set_last_failure(&error.detail, error.stderr, error.stdout);
                old.stays_until = Some(Instant::now() + RETRY_AFTER);
                // If it was being asked for its tools, nobody has heard the answer.
                old.run.ready.connection.note_tools_changed();
                return Ok(old);
            }
            Err(error) => Err(self.start_failed(&error)),
        };
        match stopped {
            Some(StopReason::Failed(end)) => self.clean_up(old.run, &end).await,
            Some(StopReason::Disconnected(reason)) => self.disconnect(old, &reason),
            Some(StopReason::Stopped | StopReason::Recycled(_)) | None => self.drain(old),
        }
        result
    }

    async fn replace_exclusively(
        &mut self,
        old: ServingRun,
    ) -> Result<ServingRun, Option<NextStart>> {
        self.set_state(RunState::Draining);
        let (grace, usual) =
            (self.backend.environment.cancel_grace, self.backend.config.usual_call());
        let is_process = matches!(self.backend.config.transport, Transport::Stdio(_));
        let end = tokio::select! {
            // Everybody waits meanwhile: calls get the time that they usually have, and no more.
            end = drained(&self.backend, &old, usual + grace, &self.stop) => end,
            // A process that hangs answers none of its calls, however long the drain is.
            reason = self.failing(&old.run.ready), if is_process => {
                let end = CloseReason::Lost(reason);
                old.run.give_up(&end);
                end
            }
        };
        if self.stop.is_cancelled() {
            self.stop(old.run).await;
            return Err(None);
        }
        self.set_state(RunState::Starting);
        old.run.stop(&end).await;
        match self.start(self.show_new_stderr()).await {
            Ok(run) => Ok(ServingRun::new(&self.backend, run)),
            Err(_) if self.stop.is_cancelled() => Err(None),
            Err(error) => Err(self.start_failed(&error)),
        }
    }

    /// Drains a run whose connection is lost. A legacy session ends with it: another run would know
    /// nothing of it.
    pub(super) fn disconnect(&self, serving: ServingRun, reason: &str) {
        let server = &self.backend.id;
        match &self.backend.recipients.client {
            Some(client) if serving.run.ready.dialect.version().era() == Era::Legacy => {
                client.end();
                tracing::warn!(
                    %server, %reason,
                    "a session ends with its connection to server `{server}`"
                );
            }
            _ => {
                tracing::warn!(
                    %server, instance = self.number, %reason,
                    "server `{server}` is connected to again"
                );
            }
        }
        self.set_last_failure(reason, vec![], vec![]);
        self.drain(serving);
    }

    /// Lets the calls of a run that takes no more end, then stops it.
    fn drain(&self, serving: ServingRun) {
        let (backend, halt, number) = (self.backend.clone(), self.halt.clone(), self.number);
        self.draining.spawn(async move {
            let within = backend.config.longest_call() + backend.environment.cancel_grace;
            drained(&backend, &serving, within, &halt).await;
            backend.tell_change(number, || InstanceChange::Drained);
            Run::stop(serving.run, &CloseReason::Stopped).await;
        });
    }
}

/// Waits until a run that takes no more calls can be stopped: it has none left, it ended, or it has
/// no more time.
async fn drained(
    backend: &Backend,
    serving: &ServingRun,
    within: Duration,
    stop: &CancellationToken,
) -> CloseReason {
    tokio::select! {
        _ = timeout(within, serving.load.drained()) => CloseReason::Stopped,
        () = backend.drain_timed_out() => CloseReason::Stopped,
        end = serving.run.ended() => end,
        () = stop.cancelled() => CloseReason::Stopped,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use crate::backend::testing::{GRACE, backend};
    use crate::config::{Program, ServerConfig};

    #[tokio::test(start_paused = true)]
    async fn a_call_that_takes_long_holds_up_one_rollover_and_only_four_hold_up_all() {
        let server = ServerConfig::new(Transport::Stdio(Program::default()));
        let usual = server.usual_call() + GRACE;
        let new = CancellationToken::new;
        let supervisor = InstanceSupervisor::new(backend(server), 0, new(), new());
        let may_drain_after = async || {
            let began = Instant::now();
            timeout(Duration::from_secs(1800), supervisor.may_drain_another()).await.ok();
            began.elapsed()
        };
        assert_eq!(may_drain_after().await, Duration::ZERO);
        let mut draining = vec![];
        for _ in 1..DRAINING_MAX {
            draining.push(supervisor.draining.spawn(pending::<()>()));
            assert_eq!(may_drain_after().await, usual);
        }
        draining.push(supervisor.draining.spawn(pending()));
        assert_eq!(may_drain_after().await, Duration::from_secs(1800), "there are too many");
        draining[0].abort();
        assert_eq!(may_drain_after().await, usual);
    }
}
