//! Finds out which era a server belongs to, and opens the connection accordingly.
//!
//! `server/discover` is asked first. A modern server answers it; a legacy one answers some error, or
//! nothing. When nothing has come for a while `initialize` is sent as well, and whichever is answered
//! validly first decides: a slow modern server that has answered `server/discover` may refuse
//! `initialize` from then on.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};

use crate::backend::changes::mailbox::Lists;
use crate::backend::connection::{Answer, CloseReason, Connection, RequestError};
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::mcp::requests;
use crate::protocol::mcp::results::{
    DiscoverResult, Implementation, InitializeResult, ServerCapabilities, UnsupportedVersion,
};
use crate::protocol::mcp::{Era, ProtocolVersion, UNSUPPORTED_PROTOCOL_VERSION};

/// How long a server may be silent before it is taken for one that ignores unknown requests.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a server said of itself.
#[derive(Debug)]
pub struct Greeting {
    /// The version to speak.
    pub version: ProtocolVersion,
    /// Its name and version.
    pub info: Implementation,
    /// What it can do.
    pub capabilities: ServerCapabilities,
    /// How to use it, in words for a model.
    pub instructions: Option<String>,
}

/// Why a server could not be talked to.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// No answer.
    #[error("{}", describe(.0))]
    Failed(RequestError),
    /// It answered `initialize` with an error.
    #[error("it refused `initialize`: {message} (code {code})")]
    Refused {
        /// The JSON-RPC code.
        code: i64,
        /// Its words.
        message: String,
    },
    /// Nothing in common.
    #[error("it speaks only protocol versions that are unknown here: {0}")]
    Version(String),
    /// It answered something else.
    #[error("its answer to `{0}` does not follow the protocol")]
    Malformed(&'static str),
}

impl From<RequestError> for HandshakeError {
    fn from(failure: RequestError) -> Self {
        Self::Failed(failure)
    }
}

/// What the answer to `server/discover` says.
pub(crate) enum Probe {
    /// It is one.
    Modern(Greeting),
    /// It is none.
    Legacy,
    /// It is one that refuses the version and names it all the same.
    Again,
}

/// Opens a fresh connection, both eras tried.
pub async fn greet(
    connection: &Arc<Connection>,
    deadline: Instant,
) -> Result<Greeting, HandshakeError> {
    let greeting = match connection.client() {
        Some(client) => greet_for(client.capabilities(), connection, deadline).await?,
        None => greet_for_all(connection, deadline).await?,
    };
    connection.set_version(greeting.version);
    Ok(greeting)
}

/// For one client of the legacy era, with its own capabilities. The server should speak that era too: in
/// the modern one it could not ask this client for anything.
async fn greet_for(
    capabilities: &str,
    connection: &Arc<Connection>,
    deadline: Instant,
) -> Result<Greeting, HandshakeError> {
    let initialize = |id| requests::initialize(id, capabilities);
    match open_legacy(connection, connection.request(deadline, initialize).await?) {
        Err(refused @ HandshakeError::Refused { .. }) => {
            let answer = connection.request(deadline, requests::discover).await?;
            match read_probe(answer) {
                Ok(Probe::Modern(greeting)) => Ok(greeting),
                Ok(Probe::Legacy | Probe::Again) | Err(_) => Err(refused),
            }
        }
        greeting => greeting,
    }
}

async fn greet_for_all(
    connection: &Arc<Connection>,
    deadline: Instant,
) -> Result<Greeting, HandshakeError> {
    let initialize = |id| requests::initialize(id, "{}");
    let mut discover = pin!(connection.request(deadline, requests::discover));
    if let Ok(answer) = timeout(PROBE_TIMEOUT, &mut discover).await {
        return match read_probe(answer?)? {
            Probe::Modern(greeting) => Ok(greeting),
            Probe::Legacy | Probe::Again => {
                let answer = connection.request(deadline, initialize).await?;
                open_legacy(connection, answer)
            }
        };
    }
    let mut initialize = pin!(connection.request(deadline, initialize));
    tokio::select! {
        answer = &mut discover => match read_probe(answer?)? {
            Probe::Modern(greeting) => Ok(greeting),
            Probe::Legacy | Probe::Again => open_legacy(connection, initialize.await?),
        },
        answer = &mut initialize => match open_legacy(connection, answer?) {
            Ok(greeting) => Ok(greeting),
            Err(refused) => match discover.await.map_err(HandshakeError::from).and_then(read_probe) {
                Ok(Probe::Modern(greeting)) => Ok(greeting),
                Ok(Probe::Legacy | Probe::Again) | Err(_) => Err(refused),
            },
        },
    }
}

/// Any error that is not the modern era's own means a legacy server: the codes differ from one to the next.
pub(crate) fn read_probe(answer: Answer) -> Result<Probe, HandshakeError> {
    let version = match &answer {
        Answer::Result(result) => match serde_json::from_slice::<DiscoverResult>(result) {
            Ok(discovered) => match discovered.version() {
                Ok(version) if version.era() == Era::Modern => {
                    let info = discovered.server_info();
                    return Ok(Probe::Modern(Greeting {
                        version,
                        info,
                        capabilities: discovered.capabilities,
                        instructions: discovered.instructions,
                    }));
                }
                other => other,
            },
            Err(_) => return Ok(Probe::Legacy),
        },
        Answer::Error(error) => match unsupported_version(error) {
            Some(data) => data.version(),
            None => return Ok(Probe::Legacy),
        },
    };
    match version.map_err(HandshakeError::Version)?.era() {
        Era::Legacy => Ok(Probe::Legacy),
        Era::Modern => Ok(Probe::Again),
    }
}

fn unsupported_version(error: &Bytes) -> Option<UnsupportedVersion> {
    let error: ErrorObject = serde_json::from_slice(error).ok()?;
    if error.code != UNSUPPORTED_PROTOCOL_VERSION {
        return None;
    }
    serde_json::from_str(error.data?.get()).ok()
}

pub(crate) fn open_legacy(
    connection: &Connection,
    answer: Answer,
) -> Result<Greeting, HandshakeError> {
    let malformed = || HandshakeError::Malformed("initialize");
    let result = match answer {
        Answer::Result(result) => result,
        Answer::Error(error) => {
            let error: ErrorObject = serde_json::from_slice(&error).map_err(|_| malformed())?;
            return Err(HandshakeError::Refused { code: error.code, message: error.message });
        }
    };
    let result: InitializeResult = serde_json::from_slice(&result).map_err(|_| malformed())?;
    let version = ProtocolVersion::parse(&result.protocol_version)
        .filter(|version| version.era() == Era::Legacy)
        .ok_or(HandshakeError::Version(result.protocol_version))?;
    connection.set_version(version);
    connection.set_announced_lists(Lists::of(&result.capabilities));
    connection.notify(requests::initialized());
    Ok(Greeting {
        version,
        info: result.server_info,
        capabilities: result.capabilities,
        instructions: result.instructions,
    })
}

impl HandshakeError {
    /// Whether another attempt would end no better.
    pub(crate) fn is_permanent(&self) -> bool {
        match self {
            Self::Failed(RequestError::Http { status, .. }) => {
                matches!(status, 401 | 403 | 404 | 405 | 410)
            }
            Self::Failed(_) => false,
            Self::Refused { .. } | Self::Version(_) | Self::Malformed(_) => true,
        }
    }
}

/// A failure of the gateway's own request, in words that may be shown to callers.
pub(crate) fn describe(failure: &RequestError) -> String {
    match failure {
        RequestError::Closed { reason: CloseReason::Exited(reason) | CloseReason::Protocol(reason), .. } => reason.clone(),
        RequestError::Closed { reason: CloseReason::Stopped, .. } => "it was stopped".to_owned(),
        RequestError::Expired { .. } => "it did not answer in time".to_owned(),
        RequestError::TooLarge => "its answer is over the limit (`max_response`)".to_owned(),
        RequestError::Busy => "it does not read its input".to_owned(),
        RequestError::IdentityMismatch => "its answers cannot be trusted".to_owned(),
        RequestError::Http { status, .. } => format!("it answered with the HTTP status {status}"),
        RequestError::Unsendable(reason) => reason.clone(),
        RequestError::Unreached { reason, .. } => reason.to_string(),
    }
}
