//! Runs a batch: starts each call once the calls that it depends on have ended.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::references::NotComposed;
use super::request::{Batch, IfDependencyFails, OnError};

/// Makes the calls of a batch.
pub trait Callee {
    type Outcome;

    /// Makes one call with these arguments, which are not checked yet; or says why it is not made.
    fn call(
        &self,
        call: usize,
        arguments: Result<Bytes, NotMade>,
    ) -> impl Future<Output = Ended<Self::Outcome>>;

    /// Returns whether no more calls are to begin.
    fn is_stopped(&self) -> bool;
}

/// A call that has ended.
pub struct Ended<O> {
    pub outcome: O,
    /// True if the call failed, or its tool reported an error.
    pub is_failed: bool,
    /// The result, for references to it. `None` if there is none, or no room for it.
    pub result: Option<Bytes>,
}

/// The reason why a call is not made. Calls are indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotMade {
    /// A call that this one depends on has failed.
    DependencyFailed {
        dependency: usize,
    },
    /// Another call's result has no such part, or was not kept.
    ResultMissing {
        dependency: usize,
    },
    ArgumentsTooLarge,
    TooMuchRead,
    /// `on_error` is `stop`, and this call has failed.
    Stopped {
        failed: usize,
    },
}

/// Runs all calls, or until the callee is stopped, and tells `ended` of each, in the order in which
/// they end. Dropping the future
/// cancels the calls that run.
pub async fn run<C: Callee>(
    batch: &Batch,
    callee: &C,
    arguments_max: usize,
    mut ended: impl FnMut(usize, C::Outcome),
) {
    let mut progress = Progress::new(batch);
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < batch.concurrency
            && !callee.is_stopped()
            && let Some(call) = progress.next_ready()
        {
            let arguments = progress.arguments(call, arguments_max);
            running.push(async move { (call, callee.call(call, arguments).await) });
        }
        let Some((call, end)) = running.next().await else { return };
        progress.end(call, end.is_failed, end.result);
        ended(call, end.outcome);
    }
}

/// Says which calls may start, and keeps the results that others still need.
struct Progress<'a> {
    batch: &'a Batch,
    /// The calls that wait for nothing, the first of the request first.
    ready: BinaryHeap<Reverse<usize>>,
    calls: Vec<CallProgress>,
    /// The first call that failed.
    failed: Option<usize>,
}

struct CallProgress {
    /// The calls that have not ended and that this one depends on.
    waits_for: usize,
    /// The calls that depend on this one and have not started.
    needed_by: usize,
    is_failed: bool,
    result: Option<Bytes>,
}

impl<'a> Progress<'a> {
    fn new(batch: &'a Batch) -> Self {
        let graph = &batch.graph;
        let calls: Vec<CallProgress> = (0..batch.calls.len())
            .map(|call| CallProgress {
                waits_for: graph.dependencies(call).len(),
                needed_by: graph.dependents(call).len(),
                is_failed: false,
                result: None,
            })
            .collect();
        let ready = (0..calls.len()).filter(|call| calls[*call].waits_for == 0);
        Self { batch, ready: ready.map(Reverse).collect(), calls, failed: None }
    }

    fn next_ready(&mut self) -> Option<usize> {
        self.ready.pop().map(|Reverse(call)| call)
    }

    /// Composes the arguments of a call that is about to start.
    fn arguments(&mut self, call: usize, size_max: usize) -> Result<Bytes, NotMade> {
        let outcome = self.compose(call, size_max);
        for dependency in self.batch.graph.dependencies(call) {
            let dependency = &mut self.calls[*dependency];
            dependency.needed_by -= 1;
            if dependency.needed_by == 0 {
                dependency.result = None;
            }
        }
        outcome
    }

    fn compose(&self, call: usize, size_max: usize) -> Result<Bytes, NotMade> {
        if let (OnError::Stop, Some(failed)) = (self.batch.on_error, self.failed) {
            return Err(NotMade::Stopped { failed });
        }
        let planned = &self.batch.calls[call];
        let mut dependencies = self.batch.graph.dependencies(call).iter();
        if planned.if_dependency_fails == IfDependencyFails::Fail
            && let Some(failed) = dependencies.find(|dependency| self.calls[**dependency].is_failed)
        {
            return Err(NotMade::DependencyFailed { dependency: *failed });
        }
        let result_of = |call: usize| {
            let result = self.calls[call].result.as_ref()?;
            Some(std::str::from_utf8(result).expect("results are JSON"))
        };
        planned.arguments.compose(size_max, result_of).map_err(|error| match error {
            NotComposed::Missing { call } => NotMade::ResultMissing { dependency: call },
            NotComposed::TooLarge => NotMade::ArgumentsTooLarge,
            NotComposed::TooMuchRead => NotMade::TooMuchRead,
        })
    }

    fn end(&mut self, call: usize, is_failed: bool, result: Option<Bytes>) {
        let ended = &mut self.calls[call];
        ended.is_failed = is_failed;
        ended.result = result.filter(|_| ended.needed_by > 0);
        if is_failed {
            self.failed.get_or_insert(call);
        }
        for dependent in self.batch.graph.dependents(call) {
            let waiting = &mut self.calls[*dependent];
            waiting.waits_for -= 1;
            if waiting.waits_for == 0 {
                self.ready.push(Reverse(*dependent));
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/run.rs"]
mod tests;
