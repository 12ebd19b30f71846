//! Explains a failed call: the limits that were consulted, and what would have let it through.

use tokio::time::Instant;

use super::{CallError, Caller};
use crate::backend::Backend;
use crate::events::explanation::{Explanation, Remedy, more_instances, remedies_of_limits};

/// A call that failed, and where it wanted to go.
pub(super) struct FailedCall<'a> {
    pub(super) caller: &'a Caller,
    pub(super) server: &'a str,
    /// The tool by the server's own name, if the call is of a tool.
    pub(super) tool: Option<&'a str>,
    pub(super) deadline: Instant,
    pub(super) backend: Option<&'a Backend>,
    pub(super) error: &'a CallError,
}

impl FailedCall<'_> {
    /// Adds limits and remedies to the steps of the call. Errors that no limit can have to do with
    /// are explained by their code.
    pub(super) fn explain(&self, steps: Explanation) -> Explanation {
        let (last, refused_by) = (self.error.last(), self.error.refused_by());
        let is_of_capacity = last.is_retryable()
            || last.is_own_limit()
            || matches!(last, CallError::DeadlineExceeded { .. });
        if !is_of_capacity {
            return steps;
        }
        let limits = &self.caller.tenant.limits;
        let limits = limits.explain(self.server, self.tool, refused_by.as_ref(), self.deadline);
        let remedies = match last {
            _ if refused_by.is_some() => remedies_of_limits(&limits),
            CallError::Overloaded => self.more_instances(&steps),
            // It never had a slot.
            CallError::DeadlineExceeded { .. } if steps.attempts.is_empty() => {
                self.more_instances(&steps)
            }
            CallError::TenantQuarantined { retry_after }
            | CallError::ServerUnavailable { retry_after, .. } => {
                vec![Remedy::Retry { after: *retry_after }]
            }
            _ => vec![],
        };
        Explanation { limits, remedies, ..steps }
    }

    fn more_instances(&self, steps: &Explanation) -> Vec<Remedy> {
        let (Some(backend), Some(wait)) = (self.backend, steps.wait) else { return vec![] };
        let config = backend.config();
        let more = more_instances(wait.ahead, config.max_in_flight);
        vec![Remedy::Instances { server: self.server.to_owned(), value: config.instances, more }]
    }
}
