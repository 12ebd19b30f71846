//! The handshake over HTTP. Every request gets a response, be it an error status. So there is no
//! need to guess from silence, as with a process.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::connection::{CloseReason, Connection, RequestError};
use crate::backend::instance::handshake::{
    Greeting, HandshakeError, Probe, open_legacy, read_probe,
};
use crate::config::EraChoice;
use crate::protocol::mcp::requests;

/// Opens a fresh connection and tries both eras, unless only one is to be spoken. Each step may
/// take `init_timeout`.
pub(crate) async fn handshake(
    connection: &Arc<Connection>,
    era: EraChoice,
    init_timeout: Duration,
) -> Result<Greeting, HandshakeError> {
    let declared = connection.recipients.capabilities();
    let capabilities = declared.unwrap_or("{}");
    let initialize = async || {
        let request = |id| requests::initialize(id, capabilities);
        open_legacy(connection, connection.request(Instant::now() + init_timeout, request).await?)
    };
    match era {
        EraChoice::Legacy => return initialize().await,
        EraChoice::Modern => {
            let greeting = discover(connection, init_timeout).await?;
            return greeting.ok_or(HandshakeError::NotModern);
        }
        EraChoice::Auto => {}
    }
    // A session's own client is of the legacy era: a modern server could not send it requests.
    if declared.is_some() {
        return match initialize().await {
            Ok(greeting) => Ok(greeting),
            Err(refused) => discover(connection, init_timeout).await.ok().flatten().ok_or(refused),
        };
    }
    match discover(connection, init_timeout).await? {
        Some(greeting) => Ok(greeting),
        None => initialize().await,
    }
}

/// Greets a server over the older transport, which only legacy servers speak.
pub(crate) async fn greet_over_sse(
    connection: &Arc<Connection>,
    init_timeout: Duration,
) -> Result<Greeting, HandshakeError> {
    let capabilities = connection.recipients.capabilities().unwrap_or("{}");
    let request = |id| requests::initialize(id, capabilities);
    open_legacy(connection, connection.request(Instant::now() + init_timeout, request).await?)
}

/// Returns the greeting of a modern server, or `None` if the server may be a legacy one.
async fn discover(
    connection: &Arc<Connection>,
    init_timeout: Duration,
) -> Result<Option<Greeting>, HandshakeError> {
    // A server that refuses a version but names the same one as supported is asked once more.
    for _ in 0..2 {
        match connection.request(Instant::now() + init_timeout, requests::discover).await {
            Ok(answer) => match read_probe(answer)? {
                Probe::Modern(greeting) => {
                    connection.set_version(greeting.version);
                    return Ok(Some(*greeting));
                }
                Probe::Legacy => return Ok(None),
                Probe::Again => {}
            },
            Err(failure) if may_be_legacy(&failure) => return Ok(None),
            Err(failure) => return Err(failure.into()),
        }
    }
    Ok(None)
}

/// Returns whether a failure may mean that the server does not know the request. Some statuses are
/// not about the request: any other request would get them too.
fn may_be_legacy(failure: &RequestError) -> bool {
    match failure {
        RequestError::Http { status, .. } => !matches!(status, 401 | 403 | 407 | 429 | 503),
        RequestError::Expired { .. } => true,
        RequestError::Closed { reason: end, .. } => matches!(end, CloseReason::Protocol(_)),
        _ => false,
    }
}
