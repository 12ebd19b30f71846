//! Exchanges a caller's token for one that the server takes: at its authorization server (RFC
//! 8693), or by an assertion of the identity provider (ID-JAG; MCP's enterprise-managed
//! authorization).
//!
//! The caller's token goes to addresses of the configuration alone, or to those that the metadata
//! there name. The server itself, and what its metadata name, never get it.

use super::OAuthError;
use super::client::Client;
use super::discovery::AuthorizationServer;
use super::provider::Provider;
use super::request::{self, Form, Tokens};
use crate::common::secret::Secret;
use crate::config::{Grant, SubjectType};

const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";

/// Returns a token for the server, in the name of whoever the caller's token is of.
pub async fn exchanged<'s>(
    provider: &Provider,
    caller: &Secret,
    scopes: impl IntoIterator<Item = &'s String>,
) -> Result<Tokens, OAuthError> {
    let mut form = Form::new(TOKEN_EXCHANGE);
    form.add("subject_token", caller.expose());
    form.add("subject_token_type", provider.config.subject_type().urn());
    let server = provider.authorization_server().await?;
    form.add_some("resource", provider.resource(&server));
    form.add_scopes(scopes);
    let tokens = match provider.config.grant {
        Grant::IdJag => by_assertion(provider, &server, caller, form).await?,
        _ => {
            form.add("requested_token_type", SubjectType::AccessToken.urn());
            form.add_some("audience", provider.config.audience.as_deref());
            request::tokens(&provider.fetch, &server, &own_client(provider)?, form).await?
        }
    };
    // The server would get it then.
    refuse_own(&tokens.access, caller)?;
    Ok(tokens)
}

/// Refuses a caller's own token as the answer: nobody else may have that.
fn refuse_own(given: &Secret, caller: &Secret) -> Result<(), OAuthError> {
    match given == caller {
        true => Err(OAuthError::new("the caller's own token was given back")),
        false => Ok(()),
    }
}

/// Has the identity provider assert to the server's authorization server who the caller is.
async fn by_assertion(
    provider: &Provider,
    server: &AuthorizationServer,
    caller: &Secret,
    mut form: Form,
) -> Result<Tokens, OAuthError> {
    let Some(identity) = &provider.identity_provider else {
        return Err(OAuthError::new("no `identity_provider` is set"));
    };
    let Some(issuer) = &server.issuer else {
        return Err(OAuthError::new("the authorization server has no name: set `issuer`"));
    };
    form.add("requested_token_type", ID_JAG);
    form.add("audience", issuer);
    let (at, client) = (identity.authorization_server().await?, own_client(identity)?);
    let assertion = request::assertion(&identity.fetch, &at, &client, form, ID_JAG).await?;
    refuse_own(&assertion, caller)?;
    let mut form = Form::new(JWT_BEARER);
    form.add("assertion", assertion.expose());
    request::tokens(&provider.fetch, server, &own_client(provider)?, form).await
}

fn own_client(provider: &Provider) -> Result<Client<'_>, OAuthError> {
    provider.client().ok_or_else(|| OAuthError::new("there are no credentials"))
}
