//! Servers that are called in the name of callers: each caller's own token is exchanged before the
//! server's instance is started or waited for.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout_at};

use super::error::RETRY_SOON;
use super::{CallError, Caller, Executed};
use crate::backend::{TokenError, TokenSource};
use crate::registry::Server;

/// The longest time to exchange the token of a caller who asks for a list.
pub(super) const EXCHANGE_MAX: Duration = Duration::from_secs(10);

const NO_TOKEN: &str = "the gateway has no access token for it";

/// Why a caller's own token does not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCallerToken {
    #[error(
        "it is called in the name of its caller: send a token of the identity provider instead of \
         an API key; calls that are answered later have none"
    )]
    Missing,
    #[error("the token of the call has expired: send a new one")]
    Expired,
    /// By its error code.
    #[error("the token of the call could not be exchanged for one of the server: `{0}`")]
    Refused(String),
}

/// Exchanges the caller's token for those that its requests have, if the server is called in the
/// name of callers. Boxed, since few calls need it.
pub(super) fn exchange<'a>(
    caller: &'a Caller,
    server: &'a Server,
    deadline: Instant,
) -> BoxFuture<'a, Result<Option<Arc<TokenSource>>, CallError>> {
    Box::pin(async move {
        let Some(tokens) = server.caller_tokens(&caller.tenant.id) else { return Ok(None) };
        let refuse = |why| {
            let server = server.id().to_string();
            CallError::TokenRequired { server, why }
        };
        let token = caller.token.as_ref().ok_or_else(|| refuse(NoCallerToken::Missing))?;
        let exchanged = timeout_at(deadline, tokens.exchange(token)).await;
        let exchanged =
            exchanged.map_err(|_| CallError::DeadlineExceeded { executed: Executed::No })?;
        exchanged.map(Some).map_err(|error| match error {
            TokenError::CallerExpired => refuse(NoCallerToken::Expired),
            TokenError::Failed(error) if error.code().is_some() => {
                refuse(NoCallerToken::Refused(error.code().unwrap_or_default().to_owned()))
            }
            // Names hosts of the configuration, for the operator alone.
            _ => CallError::unavailable(NO_TOKEN.to_owned(), RETRY_SOON),
        })
    })
}
