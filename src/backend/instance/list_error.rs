//! Errors of lists of tools and skills.

use bytes::Bytes;

use crate::backend::connection::RequestError;
use crate::protocol::jsonrpc::envelope::ErrorObject;

/// Why tools could not be listed.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Failed(#[from] RequestError),
    #[error("it answered `tools/list` with an error: {message} (code {code})")]
    Refused { code: i64, message: String },
    #[error("its answer to `tools/list` does not follow the protocol: {0}")]
    Malformed(String),
    #[error("its list of tools has no end: {0}")]
    Endless(&'static str),
}

pub(super) fn refused(error: &Bytes) -> ListError {
    match serde_json::from_slice::<ErrorObject>(error) {
        Ok(error) => ListError::Refused { code: error.code, message: error.message.into() },
        Err(error) => ListError::Malformed(error.to_string()),
    }
}
