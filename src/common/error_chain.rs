//! Errors with their causes.

use std::error::Error;
use std::iter::successors;

/// Joins the messages of an error and its causes, which reqwest's own message leaves out.
pub fn error_chain(error: &dyn Error) -> String {
    let causes = successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
