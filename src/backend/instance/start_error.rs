//! Why a server did not start, for its callers and for its operator.

use tokio::task::JoinError;

use super::handshake::HandshakeError;
use super::redaction::Redaction;
use super::tools::ListError;
use crate::backend::connection::RequestError;
use crate::backend::http;
use crate::backend::stdio::process::SpawnError;

/// Why a server did not start.
#[derive(Debug)]
pub struct StartError {
    /// In words that may be shown to callers.
    pub reason: String,
    /// The whole story, for the operator.
    pub detail: String,
    /// What the server last wrote to standard error; for the operator only.
    pub stderr: Vec<String>,
    /// Whether another attempt would end no better, as far as anyone can tell.
    pub is_permanent: bool,
}

impl StartError {
    /// The task that was to open the connection did not end.
    pub(crate) fn system(error: JoinError) -> Self {
        SpawnError::System(error.into()).into()
    }

    /// Nobody wants it any more.
    pub(crate) fn stopped() -> Self {
        Self::new("it was stopped", "it was stopped")
    }

    /// It took longer than this setting says.
    pub(crate) fn late(setting: &str) -> Self {
        let late = format!("it did not answer in time (`{setting}`)");
        Self::new(&late, &late)
    }

    fn permanent(self, is_permanent: bool) -> Self {
        Self { is_permanent, ..self }
    }

    /// As it may be told.
    pub(crate) fn redacted(self, redaction: &Redaction) -> Self {
        let (reason, detail) = (redaction.story(self.reason), redaction.story(self.detail));
        Self { reason, detail, ..self }
    }

    pub(crate) fn new(reason: &str, detail: &str) -> Self {
        let (reason, detail) = (reason.to_owned(), detail.to_owned());
        Self { reason, detail, stderr: vec![], is_permanent: false }
    }
}

impl From<SpawnError> for StartError {
    fn from(error: SpawnError) -> Self {
        let is_permanent = !matches!(error, SpawnError::System(_));
        // Where programs lie on this machine is not for callers.
        let reason = match error {
            SpawnError::Confine(_) => "it cannot be confined on this machine as configured",
            _ => "its program cannot be started",
        };
        Self::new(reason, &error.to_string()).permanent(is_permanent)
    }
}

impl From<http::SetupError> for StartError {
    fn from(error: http::SetupError) -> Self {
        // All that the operator has written was looked at when it was read.
        let reason = match error {
            http::SetupError::Header(_) => "a secret has characters that no header can have",
            _ => "it cannot be connected to",
        };
        Self::new(reason, &error.to_string()).permanent(true)
    }
}

impl From<HandshakeError> for StartError {
    fn from(error: HandshakeError) -> Self {
        let (is_permanent, text) = (error.is_permanent(), error.to_string());
        match error {
            // Where a server is, is not for callers.
            HandshakeError::Failed(RequestError::Unreached { reason, detail }) => {
                Self::new(&reason, &detail)
            }
            HandshakeError::Failed(_) => Self::new(&text, &text).permanent(is_permanent),
            // A server's own words are not for callers: they are often about its credentials.
            _ => Self::new("its handshake failed", &text).permanent(is_permanent),
        }
    }
}

impl From<ListError> for StartError {
    fn from(error: ListError) -> Self {
        let detail = error.to_string();
        match error {
            ListError::Failed(RequestError::Unreached { reason, detail }) => Self::new(&reason, &detail),
            ListError::Failed(_) | ListError::Endless(_) => Self::new(&detail, &detail),
            _ => Self::new("its tools could not be listed", &detail),
        }
    }
}
