//! Errors with their causes.

use std::error::Error;

/// Joins the messages of an error and its causes, which reqwest's own message leaves out.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
