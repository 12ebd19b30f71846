//! Why an instance did not start, for its callers and for its operator.

use tokio::task::JoinError;

use super::handshake::HandshakeError;
use super::redaction::Redaction;
use super::tools::ListError;
use crate::backend::connection::RequestError;
use crate::backend::http;
use crate::backend::stdio::process::SpawnError;

#[derive(Debug)]
pub struct StartError {
    /// May be shown to callers.
    pub reason: String,
    /// For the operator only.
    pub detail: String,
    /// The last lines of standard error; for the operator only.
    pub stderr: Vec<String>,
    /// The last lines of standard output that are no messages; for the operator only.
    pub stdout: Vec<String>,
    /// Whether another attempt would fail too, as far as can be told.
    pub is_permanent: bool,
    /// Whether the server may speak the transport before Streamable HTTP.
    pub may_speak_sse: bool,
}

impl StartError {
    pub(crate) fn system(error: JoinError) -> Self {
        SpawnError::System(error.into()).into()
    }

    pub(crate) fn stopped() -> Self {
        Self::new("it was stopped", "it was stopped")
    }

    pub(crate) fn panicked() -> Self {
        let text = "the gateway failed while it started it";
        Self::new(text, text)
    }

    /// The start took longer than this setting allows.
    pub(crate) fn timed_out(setting: &str) -> Self {
        let text = format!("it did not answer in time (`{setting}`)");
        Self::new(&text, &text)
    }

    fn permanent(self, is_permanent: bool) -> Self {
        Self { is_permanent, ..self }
    }

    pub(crate) fn redacted(self, redaction: &Redaction) -> Self {
        let (reason, detail) = (redaction.excerpt(self.reason), redaction.excerpt(self.detail));
        Self { reason, detail, ..self }
    }

    /// Adds what the operator may do about it.
    pub(crate) fn with_hint(self, hint: Option<String>) -> Self {
        match hint {
            Some(hint) => Self { detail: format!("{}; {hint}", self.detail), ..self },
            None => self,
        }
    }

    pub(crate) fn new(reason: &str, detail: &str) -> Self {
        let (reason, detail) = (reason.to_owned(), detail.to_owned());
        let (stderr, stdout) = (vec![], vec![]);
        Self { reason, detail, stderr, stdout, is_permanent: false, may_speak_sse: false }
    }
}

impl From<SpawnError> for StartError {
    fn from(error: SpawnError) -> Self {
        let is_permanent = !matches!(error, SpawnError::System(_) | SpawnError::TokenFile(_));
        // Paths of this machine are not for callers.
        let reason = match error {
            SpawnError::Confine(_) => "it cannot be confined on this machine as configured",
            _ => "its program cannot be started",
        };
        Self::new(reason, &error.to_string()).permanent(is_permanent)
    }
}

impl From<http::SetupError> for StartError {
    fn from(error: http::SetupError) -> Self {
        // The operator's own settings were checked when they were read.
        let reason = match error {
            http::SetupError::Header(_) => "a secret has characters that no header can have",
            _ => "it cannot be connected to",
        };
        Self::new(reason, &error.to_string()).permanent(true)
    }
}

impl From<HandshakeError> for StartError {
    fn from(error: HandshakeError) -> Self {
        let text = error.to_string();
        match error {
            // The server's address is not for callers.
            HandshakeError::Failed(RequestError::Unreached { reason, detail }) => {
                Self::new(&reason, &detail)
            }
            HandshakeError::Failed(RequestError::Http { status, .. }) => {
                let is_permanent = matches!(status, 401 | 403 | 404 | 405 | 410);
                let may_speak_sse = matches!(status, 400 | 404 | 405 | 406 | 415 | 501);
                Self { may_speak_sse, ..Self::new(&text, &text).permanent(is_permanent) }
            }
            HandshakeError::Failed(_) => Self::new(&text, &text),
            // A server's own words are not for callers: they are often about its credentials.
            _ => Self::new("its handshake failed", &text).permanent(true),
        }
    }
}

impl From<ListError> for StartError {
    fn from(error: ListError) -> Self {
        let detail = error.to_string();
        match error {
            ListError::Failed(RequestError::Unreached { reason, detail }) => {
                Self::new(&reason, &detail)
            }
            ListError::Failed(_) | ListError::Endless { .. } => Self::new(&detail, &detail),
            ListError::Refused { of, .. } | ListError::Malformed { of, .. } => {
                Self::new(&format!("its {of} could not be listed"), &detail)
            }
        }
    }
}
