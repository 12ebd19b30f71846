//! One run takes the place of another that is well, or that takes no more calls. This is planned, and does not count as a
//! failure.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::super::State;
use super::health::failing;
use super::recycle::worn;
use super::restart_policy::Next;
use super::{Keeper, Left, Serving};
use crate::backend::connection::in_flight::End;
use crate::backend::instance::run::Run;
use crate::backend::instance::start_error::StartError;
use crate::backend::stdio::stderr::StderrTail;
use crate::config::Transport;
use crate::protocol::mcp::Era;

/// When the successor of a worn copy did not start, it is tried again after this time.
const SUCCESSOR_PAUSE: Duration = Duration::from_secs(30);
/// How often it is looked whether a client whose process has served its time still asks for something, or whether fewer
/// runs are leaving.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Runs of one copy that are leaving at once. Each may have a call that takes an hour.
const LEAVING_MAX: usize = 4;

impl Keeper {
    /// Done when a run has served its time; says why. One that belongs to a client ends with it, since no other can take
    /// its place, as soon as the client asks nothing.
    pub(super) async fn worn(&self, serving: &Serving) -> String {
        let Serving { run, load, since, lifetime, stays_until, .. } = serving;
        if let Some(until) = stays_until {
            sleep_until(*until).await;
        }
        self.may_leave().await;
        let why = worn(&self.backend.config.recycle, run, load, *since, *lifetime).await;
        if let Some(client) = &self.backend.audience.client {
            while !client.end_if_nothing_is_asked() {
                sleep(LOOK_AGAIN).await;
            }
        }
        why
    }

    /// Done when a run may leave. Of one copy only one does at a time, so that they do not pile up; but not for as long as a
    /// caller may have asked for: then a few do.
    async fn may_leave(&self) {
        let usual = self.backend.config.usual_call() + self.backend.environment.cancel_grace;
        if timeout(usual, self.leaving.wait()).await.is_err() {
            while self.leaving.len() >= LEAVING_MAX {
                sleep(LOOK_AGAIN).await;
            }
        }
    }

    /// Has another run take the place of one that is well: it is ready before the old one goes, except where two must
    /// not run at once.
    pub(super) async fn replace(&mut self, mut old: Serving) -> Result<Serving, Option<Next>> {
        self.generation += 1;
        if self.backend.config.exclusive {
            return self.replace_exclusively(old).await;
        }
        let stderr = StderrTail::default();
        let show_stderr = || self.backend.pool.show_stderr(self.number, stderr.clone());
        let (successor, left) = {
            let mut start = std::pin::pin!(self.start(stderr.clone()));
            tokio::select! {
                successor = &mut start => (successor, None),
                // It may fail meanwhile: then the other copies are called, or its successor is waited for.
                left = self.until_it_leaves(&old) => {
                    if let Some(reason) = left.failure() {
                        self.backend.pool.note_down(self.number, reason);
                        self.enter(State::Starting);
                        show_stderr();
                    }
                    (start.await, Some(left))
                }
            }
        };
        if self.stop.is_cancelled() {
            if let Ok(run) = successor {
                run.stop(&End::Stopped).await;
            }
            self.stop(old.run).await;
            return Err(None);
        }
        match (successor, left) {
            (Ok(run), left) => {
                let successor = Serving::new(&self.backend, run);
                self.enter_ready(successor.ready.load_full(), &successor.load);
                show_stderr();
                self.let_go(old, left).await;
                Ok(successor)
            }
            (Err(error), None) => {
                self.note_kept(error);
                old.stays_until = Some(Instant::now() + SUCCESSOR_PAUSE);
                // If it was being asked for its tools, nobody has heard the answer.
                old.run.ready.connection.note_tools_changed();
                Ok(old)
            }
            (Err(error), Some(left)) => {
                let next = self.not_started(&error);
                self.let_go(old, Some(left)).await;
                Err(Some(next))
            }
        }
    }

    async fn replace_exclusively(&mut self, old: Serving) -> Result<Serving, Option<Next>> {
        // Those that come now wait for the next one.
        self.enter(State::Draining);
        let grace = self.backend.environment.cancel_grace;
        // Everybody waits meanwhile: not for as long as a caller may have asked for.
        let usual = self.backend.config.usual_call();
        let is_process = matches!(self.backend.config.transport, Transport::Stdio(_));
        let end = tokio::select! {
            _ = timeout(usual + grace, old.load.drained()) => End::Stopped,
            end = old.run.ended() => end,
            // Where calls share a process that hangs, none is answered however long it is waited for.
            reason = failing(&old.run.ready, grace, usual), if is_process => {
                let end = End::Exited(reason);
                old.run.give_up(&end);
                end
            }
            () = self.stop.cancelled() => End::Stopped,
        };
        if self.stop.is_cancelled() {
            self.stop(old.run).await;
            return Err(None);
        }
        self.enter(State::Starting);
        old.run.stop(&end).await;
        let stderr = self.show_new_stderr();
        match self.start(stderr).await {
            Ok(run) => Ok(Serving::new(&self.backend, run)),
            Err(_) if self.stop.is_cancelled() => Err(None),
            Err(error) => Err(Some(self.not_started(&error))),
        }
    }

    fn note_kept(&self, error: StartError) {
        let server = &self.backend.id;
        tracing::warn!(%server, copy = self.number, reason = %error.detail, stderr = ?error.stderr, "the successor of server `{server}` did not start; the old one stays");
        self.note_last_failure(&error.detail, error.stderr);
    }

    /// The old run goes, whether it was well to the end or not.
    async fn let_go(&self, old: Serving, left: Option<Left>) {
        match left {
            Some(Left::Failed(end)) => self.bury(old.run, &end).await,
            Some(Left::Lost(reason)) => self.leave(old, &reason),
            Some(Left::Stopped | Left::Worn(_)) | None => self.drain(old),
        }
    }

    /// A run that takes no more calls goes when those it has have ended. If a session of a legacy server goes with it, the
    /// client has to begin again: another would know nothing of what this one was told.
    pub(super) fn leave(&self, serving: Serving, reason: &str) {
        let server = &self.backend.id;
        match &self.backend.audience.client {
            Some(client) if serving.run.ready.dialect.version().era() == Era::Legacy => {
                client.end();
                tracing::warn!(%server, %reason, "a session ends with its connection to server `{server}`");
            }
            _ => {
                tracing::warn!(%server, copy = self.number, %reason, "server `{server}` is connected to again");
            }
        }
        self.note_last_failure(reason, vec![]);
        self.drain(serving);
    }

    /// Lets the calls of a run that takes no more end, then ends it.
    fn drain(&self, Serving { run, load, .. }: Serving) {
        let (backend, halt) = (self.backend.clone(), self.halt.clone());
        self.leaving.spawn(async move {
            tokio::select! {
                _ = timeout(backend.time_for_calls(), load.drained()) => {}
                () = backend.drain_timed_out() => {}
                _ = run.ended() => {}
                () = halt.cancelled() => {}
            }
            Run::stop(run, &End::Stopped).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::backend::testing::{GRACE, backend};
    use crate::config::{Program, Server};

    #[tokio::test(start_paused = true)]
    async fn a_call_that_takes_long_holds_up_one_replacement_and_only_four_hold_up_all() {
        let server = Server::new(Transport::Stdio(Program::default()));
        let usual = server.usual_call() + GRACE;
        let new = CancellationToken::new;
        let keeper = Keeper::new(backend(server), 0, new(), new());
        let may_leave_after = async || {
            let began = Instant::now();
            timeout(Duration::from_secs(1800), keeper.may_leave()).await.ok();
            began.elapsed()
        };
        assert_eq!(may_leave_after().await, Duration::ZERO);
        let mut leaving = vec![];
        for _ in 1..LEAVING_MAX {
            leaving.push(keeper.leaving.spawn(pending::<()>()));
            assert_eq!(may_leave_after().await, usual);
        }
        leaving.push(keeper.leaving.spawn(pending()));
        assert_eq!(may_leave_after().await, Duration::from_secs(1800), "there are too many");
        leaving[0].abort();
        assert_eq!(may_leave_after().await, usual);
    }
}
