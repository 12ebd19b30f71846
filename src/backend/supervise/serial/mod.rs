//! Finds out whether a server looks serial: while calls run, it answers nothing else.
//!
//! Such a server delays every tenant by its running call, and the calls in its pipe have no turns.
//! Pings tell: tenants choose neither their contents nor their time. A late ping waited for a call,
//! for long arguments before it in the pipe, or for a busy machine; other calls wait as long.
//! Only operators are told, for a ping says nothing about a server that queues calls by itself.

pub(crate) mod trial;

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, interval_at, sleep};

use super::CHECK_EVERY;
use crate::backend::instance::pool::Load;
use crate::backend::{Backend, Ready};
use crate::config::Transport;

/// A call that runs, and one that may wait for it.
const IN_FLIGHT_MIN: u32 = 2;
/// A ping that takes longer is late. A free server answers within a few milliseconds.
const LATE: Duration = Duration::from_millis(100);
/// A server keeps one ping at most. Without an answer for so long, the next one is sent.
const PING_TIMEOUT: Duration = Duration::from_secs(30);
/// So many findings in a row change the verdict: a busy machine may delay one or two pings.
const FINDINGS: u32 = 3;

/// The verdict so far, and the findings against it.
#[derive(Default)]
struct Verdict {
    is_serial: bool,
    against: u32,
}

impl Verdict {
    /// Takes one finding. Returns the verdict if it has changed.
    fn note(&mut self, is_late: bool) -> Option<bool> {
        self.against = if is_late == self.is_serial { 0 } else { self.against + 1 };
        if self.against < FINDINGS {
            return None;
        }
        *self = Self { is_serial: is_late, against: 0 };
        Some(is_late)
    }
}

impl Backend {
    /// Pings a shared process every second in which it has several calls, and notes what that says.
    /// Never ends.
    pub(super) async fn look_for_serial(&self, number: usize, ready: &Ready, load: &Load) {
        // An upstream may count requests, and other instances delay nobody else.
        if matches!(self.config.transport, Transport::Http(_)) || self.up.is_none() {
            return pending().await;
        }
        let (mut verdict, mut has_warned) = (Verdict::default(), false);
        let mut note = |is_late| {
            let Some(is_serial) = verdict.note(is_late) else { return };
            self.set_serial(load, is_serial);
            if is_serial && !std::mem::replace(&mut has_warned, true) {
                let server = &self.id;
                tracing::warn!(
                    %server, instance = number,
                    "server `{server}` answers nothing while a call runs: each call delays all \
                     tenants; see `sharing`, `instances` and `max_in_flight`"
                );
            }
        };
        loop {
            sleep(CHECK_EVERY).await;
            if load.in_flight() < IN_FLIGHT_MIN {
                continue;
            }
            let since = Instant::now();
            let deadline = since + PING_TIMEOUT;
            let mut ping = pin!(ready.connection.request(deadline, |id| ready.dialect.ping(id)));
            let mut waited = interval_at(since + CHECK_EVERY, CHECK_EVERY);
            let answer = loop {
                tokio::select! {
                    biased;
                    answer = &mut ping => break answer,
                    // A long call is found out before it ends.
                    _ = waited.tick() => note(true),
                }
            };
            // Failures are those of the connection, and the time of an unanswered ping is noted.
            if answer.is_ok() {
                note(since.elapsed() >= LATE);
            }
        }
    }
}

#[cfg(test)]
#[path = "../tests/serial.rs"]
mod tests;
