//! Errors of lists of tools and skills.

use bytes::Bytes;

use crate::backend::connection::RequestError;
use crate::protocol::jsonrpc::envelope::ErrorObject;

/// The names of lists in errors.
pub(super) const TOOLS: &str = "tools";
pub(super) const SKILLS: &str = "skills";

/// Why a list (`of`) could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Failed(#[from] RequestError),
    #[error("it answered `{of}/list` with an error: {message} (code {code})")]
    Refused { of: &'static str, code: i64, message: String },
    #[error("its answer to `{of}/list` does not follow the protocol: {problem}")]
    Malformed { of: &'static str, problem: String },
    #[error("its list of {of} has no end: {problem}")]
    Endless { of: &'static str, problem: &'static str },
}

impl ListError {
    pub(super) fn refused(of: &'static str, error: &Bytes) -> Self {
        match serde_json::from_slice::<ErrorObject>(error) {
            Ok(error) => Self::Refused { of, code: error.code, message: error.message.into() },
            Err(error) => Self::malformed(of, &error),
        }
    }

    pub(super) fn malformed(of: &'static str, error: &serde_json::Error) -> Self {
        Self::Malformed { of, problem: error.to_string() }
    }

    /// Returns what makes an error of a problem with pages.
    pub(super) fn endless(of: &'static str) -> impl Fn(&'static str) -> Self {
        move |problem| Self::Endless { of, problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_list() {
        let error = Bytes::from_static(br#"{"code":-1,"message":"no"}"#);
        for of in [TOOLS, SKILLS] {
            let says = ListError::refused(of, &error).to_string();
            assert_eq!(says, format!("it answered `{of}/list` with an error: no (code -1)"));
        }
    }
}
