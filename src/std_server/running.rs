//! Running calls: the request of each, and how to stop it.

use std::collections::HashMap;

use serde_json::value::RawValue;
use tokio::task::{self, AbortHandle, JoinSet};
use tracing::error;

use super::queue::same_id;
use super::tools::{Outcome, Work};
use crate::protocol::mcp::Era;

#[derive(Default)]
pub(super) struct Running {
    tasks: JoinSet<Outcome<'static>>,
    /// Calls that still need an answer. A cancelled one is removed at once, even if its task had
    /// ended before it could be stopped.
    calls: HashMap<task::Id, RunningCall>,
}

struct RunningCall {
    id: Box<RawValue>,
    era: Era,
    abort: AbortHandle,
}

/// A call that has ended and needs its answer.
pub(super) struct EndedCall {
    pub(super) id: Box<RawValue>,
    pub(super) era: Era,
    /// `None` if the tool panicked.
    pub(super) outcome: Option<Outcome<'static>>,
}

impl Running {
    pub(super) fn start(&mut self, id: &RawValue, era: Era, work: Work) {
        let abort = self.tasks.spawn(work);
        self.calls.insert(abort.id(), RunningCall { id: id.to_owned(), era, abort });
    }

    /// Returns the number of running calls, including cancelled ones that have not stopped yet.
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Waits for the next call to end; `None` if it was cancelled. Cancel-safe: there is no await
    /// after the task was taken out.
    pub(super) async fn next(&mut self) -> Option<EndedCall> {
        let (task, outcome) = match self.tasks.join_next_with_id().await? {
            Ok((task, outcome)) => (task, Some(outcome)),
            Err(error) => {
                if error.is_panic() {
                    error!(%error, "a tool panicked");
                }
                (error.id(), None)
            }
        };
        let RunningCall { id, era, .. } = self.calls.remove(&task)?;
        Some(EndedCall { id, era, outcome })
    }

    /// Stops the calls with that id and returns how many there were.
    pub(super) fn cancel(&mut self, id: &RawValue) -> usize {
        let cancelled = self.calls.extract_if(|_, call| same_id(&call.id, id));
        cancelled.map(|(_, call)| call.abort.abort()).count()
    }

    pub(super) fn cancel_all(&mut self) {
        self.calls.clear();
        self.tasks.abort_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[tokio::test]
    async fn a_call_cancelled_after_its_end_is_not_answered() {
        let mut running = Running::default();
        running.start(&id("1"), Era::Legacy, Box::pin(async { Outcome::text("late") }));
        tokio::task::yield_now().await;
        assert_eq!(running.cancel(&id("1")), 1);
        assert!(running.next().await.is_none());
        assert!(running.is_empty());
    }

    #[tokio::test]
    async fn the_call_of_a_tool_that_panics_is_known() {
        let mut running = Running::default();
        running.start(&id("7"), Era::Legacy, Box::pin(async { panic!("on purpose") }));
        let ended = running.next().await.unwrap();
        assert_eq!(ended.id.get(), "7");
        assert!(ended.outcome.is_none());
    }
}
