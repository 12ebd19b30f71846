//! Finds out which era a server belongs to, and opens the connection accordingly.
//!
//! `server/discover` goes first. A modern server answers it; a legacy one sends an error, or
//! nothing. After a while without an answer `initialize` goes out as well, and the first valid
//! answer decides: a slow modern server that has answered `server/discover` may refuse `initialize`
//! from then on.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};

use crate::backend::About;
use crate::backend::connection::{Answer, Connection, RequestError};
use crate::config::EraChoice;
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::mcp::about::OwnWords;
use crate::protocol::mcp::requests;
use crate::protocol::mcp::results::{DiscoverResult, InitializeResult, UnsupportedVersion};
use crate::protocol::mcp::{Era, ProtocolVersion, UNSUPPORTED_PROTOCOL_VERSION};

/// A server that is silent for this long may be one that ignores unknown requests.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The version that a server speaks, and its description of itself.
#[derive(Debug)]
pub struct Greeting {
    pub version: ProtocolVersion,
    pub about: About,
}

/// Why a server could not be talked to.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error(transparent)]
    Failed(#[from] RequestError),
    #[error("it refused `initialize`: {message} (code {code})")]
    Refused { code: i64, message: String },
    #[error("it speaks only protocol versions that are unknown here: {0}")]
    Version(String),
    #[error("its answer to `{0}` does not follow the protocol")]
    Malformed(&'static str),
    #[error("it does not speak the modern era, which `era = \"modern\"` asks for")]
    NotModern,
}

/// The answer to `server/discover`, read.
pub(crate) enum Probe {
    Modern(Box<Greeting>),
    Legacy,
    /// A modern server refuses a version that it says it supports.
    Again,
}

/// Opens a fresh connection; tries both eras, unless only one is to be spoken.
pub async fn greet(
    connection: &Arc<Connection>,
    era: EraChoice,
    deadline: Instant,
) -> Result<Greeting, HandshakeError> {
    let capabilities = connection.recipients.capabilities();
    let greeting = match (era, capabilities) {
        (EraChoice::Auto, Some(capabilities)) => {
            greet_for(capabilities, connection, deadline).await?
        }
        (EraChoice::Auto, None) => greet_for_all(connection, deadline).await?,
        (EraChoice::Legacy, capabilities) => {
            let initialize = |id| requests::initialize(id, capabilities.unwrap_or("{}"));
            open_legacy(connection, connection.request(deadline, initialize).await?)?
        }
        (EraChoice::Modern, _) => {
            match read_probe(connection.request(deadline, requests::discover).await?)? {
                Probe::Modern(greeting) => *greeting,
                Probe::Legacy | Probe::Again => return Err(HandshakeError::NotModern),
            }
        }
    };
    connection.set_version(greeting.version);
    Ok(greeting)
}

/// Greets for a session's client, or for callers that may be asked, with their capabilities. Legacy
/// goes first: the server then asks the session's client, which is of that era.
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
                Ok(Probe::Modern(greeting)) => Ok(*greeting),
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
            Probe::Modern(greeting) => Ok(*greeting),
            Probe::Legacy | Probe::Again => {
                let answer = connection.request(deadline, initialize).await?;
                open_legacy(connection, answer)
            }
        };
    }
    let mut initialize = pin!(connection.request(deadline, initialize));
    tokio::select! {
        // A server of both eras may have answered both by now: it is spoken to as a modern one.
        biased;
        answer = &mut discover => match read_probe(answer?)? {
            Probe::Modern(greeting) => Ok(*greeting),
            Probe::Legacy | Probe::Again => open_legacy(connection, initialize.await?),
        },
        answer = &mut initialize => match open_legacy(connection, answer?) {
            Ok(greeting) => Ok(greeting),
            Err(refused) => match discover.await.map(read_probe) {
                Ok(Ok(Probe::Modern(greeting))) => Ok(*greeting),
                Ok(_) | Err(_) => Err(refused),
            },
        },
    }
}

/// Reads the answer to `server/discover`. Any error but the modern era's own means a legacy server:
/// legacy servers differ in their codes.
pub(crate) fn read_probe(answer: Answer) -> Result<Probe, HandshakeError> {
    let version = match &answer {
        Answer::Result(result) => match serde_json::from_slice::<DiscoverResult>(result) {
            Ok(discovered) => match discovered.version() {
                Ok(version) if version.era() == Era::Modern => {
                    let about = About {
                        info: discovered.server_info(),
                        capabilities: discovered.capabilities,
                        instructions: discovered.instructions,
                        own_words: OwnWords::of(result),
                    };
                    return Ok(Probe::Modern(Greeting { version, about }.into()));
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
            let message = error.message.into();
            return Err(HandshakeError::Refused { code: error.code, message });
        }
    };
    let own_words = OwnWords::of(&result);
    let result: InitializeResult = serde_json::from_slice(&result).map_err(|_| malformed())?;
    let version = ProtocolVersion::parse(&result.protocol_version)
        .filter(|version| version.era() == Era::Legacy)
        .ok_or(HandshakeError::Version(result.protocol_version))?;
    let about = About {
        info: result.server_info,
        capabilities: result.capabilities,
        instructions: result.instructions,
        own_words,
    };
    connection.set_version(version);
    connection.set_announced_lists(about.lists());
    connection.notify(requests::initialized());
    Ok(Greeting { version, about })
}
