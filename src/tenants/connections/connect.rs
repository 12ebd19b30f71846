//! From a person's consent to the tokens of the tenant.
//!
//! The gateway sends the person's browser to the authorization server, and gets it back with a
//! code. A state ties the two ends together: it is good once, for one tenant, in one browser.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::held::{Held, of_connection};
use super::{CALLBACK_PAGE, Connections};
use crate::common::ids::{ServerId, TenantId};
use crate::common::seal::Purpose;
use crate::common::secret::Secret;
use crate::oauth::OAuthError;
use crate::oauth::authorization::{AuthorizationRequest, unguessable};
use crate::oauth::client::KnownClient;
use crate::oauth::discovery::AuthorizationServer;
use crate::oauth::provider::known_client;
use crate::oauth::request::{self, Form, is_code};
use crate::store::{Actor, NewConnection, NewState, StoreError};
use crate::tenants::secrets::{CONNECTION, Label};

/// The time that a person has.
pub(super) const STATE_LIFE: Duration = Duration::from_secs(10 * 60);
/// The longest parameter that a browser may bring back.
const PARAMETER_LEN_MAX: usize = 4096;
/// The refusal of a client that the authorization server has forgotten.
const INVALID_CLIENT: &str = "invalid_client";

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "this consent was not begun here by this tenant in this browser, or it has been used or \
         has taken over 10 minutes: begin again"
    )]
    UnknownState,
    #[error("the answer is not from the authorization server that was asked: begin again")]
    OtherIssuer,
    /// By its error code.
    #[error("the authorization server says `{0}`")]
    Denied(String),
    #[error("{0}")]
    Failed(#[from] OAuthError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The parameters that a browser brings back.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Callback {
    state: String,
    code: Option<String>,
    /// The authorization server, by its own word (RFC 9207).
    iss: Option<String>,
    error: Option<String>,
    /// The server, if the address of the page names it.
    server: Option<String>,
}

/// A tenant that is about to connect itself. Sealed in the store.
#[derive(Serialize, Deserialize)]
struct Begun {
    /// A hash of the browser's cookie.
    browser: String,
    verifier: String,
    redirect_uri: String,
    requested: Vec<String>,
    server: AuthorizationServer,
    client: Option<KnownClient>,
}

impl Connections {
    /// Begins. Returns the address to send the browser to, which has shown the cookie `browser`.
    pub async fn begin(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        browser: &str,
    ) -> Result<Url, ConnectError> {
        let begun = self.try_begin(tenant, server, browser).await;
        if let (Err(ConnectError::Failed(error)), Ok(provider)) =
            (&begun, self.provider(server).await)
        {
            tracing::warn!(%server, %error, "no tenant can connect itself now: {error}");
            provider.forget();
        }
        begun
    }

    async fn try_begin(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        browser: &str,
    ) -> Result<Url, ConnectError> {
        let provider = self.provider(server).await?;
        let at = provider.current_authorization_server().await?;
        let redirect_uri = self.redirect_uri(server, &at);
        let client = self.client(server, &provider, &at, &redirect_uri).await?;
        let client_id = match &client {
            Some(client) => client.id.clone(),
            None => provider.config.client_id.clone().unwrap_or_default(),
        };
        let asked = self.store.connection(tenant, server).await?.map(|stored| stored.asked);
        let asked = asked.unwrap_or_default();
        let required = at.required.iter().map(String::as_str);
        let asked = asked.split(' ').chain(required);
        let requested = scopes(&provider.config.scopes, asked, &at.scopes);
        let (state, verifier) = (unguessable(), unguessable());
        let request = AuthorizationRequest {
            client_id: &client_id,
            redirect_uri: &redirect_uri,
            state: &state,
            verifier: &verifier,
            scopes: requested.clone(),
            resource: provider.resource(&at),
        };
        let url = request.url(&at)?;
        provider.fetch.check(&url)?;
        let begun =
            Begun { browser: hash(browser), verifier, redirect_uri, requested, server: at, client };
        let context = of_connection(tenant, server);
        let sealed = self.sealer.seal(Purpose::ConnectState, &context, &begun);
        let sealed = sealed.ok_or_else(|| OAuthError::new("`[secrets] keys` are missing"))?;
        let (state, life_ms) = (hash(&state), STATE_LIFE.as_millis() as i64);
        let new = NewState { state: &state, tenant, server, sealed: &sealed, life_ms };
        self.store.add_state(new).await?;
        Ok(url)
    }

    /// Ends: exchanges the code for tokens, and keeps them. Returns the server. `may_use` says
    /// whether the tenant may still use it.
    pub async fn finish(
        &self,
        tenant: &TenantId,
        browser: &str,
        callback: &Callback,
        may_use: impl FnOnce(&ServerId) -> bool,
    ) -> Result<ServerId, ConnectError> {
        let Callback { state, code, iss, error, server: named } = callback;
        let parameters = [Some(state), code.as_ref(), iss.as_ref(), error.as_ref()];
        if parameters.into_iter().flatten().any(|it| it.len() > PARAMETER_LEN_MAX) {
            return Err(ConnectError::UnknownState);
        }
        let taken = self.store.take_state(tenant, &hash(state)).await?;
        let (server, sealed) = taken.ok_or(ConnectError::UnknownState)?;
        let context = of_connection(tenant, &server);
        let begun = self.sealer.open::<Begun>(Purpose::ConnectState, &context, &sealed);
        let begun = begun.ok_or(ConnectError::UnknownState)?;
        let is_same_browser = begun.browser.as_bytes().ct_eq(hash(browser).as_bytes());
        if !bool::from(is_same_browser) || !may_use(&server) {
            return Err(ConnectError::UnknownState);
        }
        begun.check_issuer(&server, named.as_deref(), iss.as_deref())?;
        if let Some(error) = error {
            let code = if is_code(error) { error.as_str() } else { "an error without a code" };
            return Err(ConnectError::Denied(code.to_owned()));
        }
        let code = code.as_deref().ok_or(ConnectError::UnknownState)?;
        let held = self.redeem(&server, begun, code).await?;
        self.keep(tenant, &server, &held).await?;
        tracing::info!(%tenant, %server, "tenant `{tenant}` has connected itself to `{server}`");
        Ok(server)
    }

    async fn redeem(
        &self,
        server: &ServerId,
        begun: Begun,
        code: &str,
    ) -> Result<Held, OAuthError> {
        let provider = self.provider(server).await?;
        let mut form = Form::new("authorization_code");
        form.add("code", code);
        form.add("redirect_uri", &begun.redirect_uri);
        form.add("code_verifier", &begun.verifier);
        form.add_some("resource", provider.resource(&begun.server));
        let secret = begun.client.as_ref().and_then(|it| it.secret.clone()).map(Secret::new);
        let client = match &begun.client {
            Some(known) => known_client(known, secret.as_ref()),
            None => provider.client().ok_or_else(|| OAuthError::new("`client_id` is gone"))?,
        };
        let tokens = request::tokens(&provider.fetch, &begun.server, &client, form).await;
        if let Err(error) = &tokens
            && error.code() == Some(INVALID_CLIENT)
            && begun.client.is_some()
        {
            // The next consent registers another one.
            let _ = self.store.forget_oauth_clients(server).await;
        }
        let nothing = Held {
            access: String::new(),
            refresh: None,
            obtained: Timestamp::now().as_millisecond(),
            life: None,
            requested: begun.requested,
            server: begun.server,
            client: begun.client,
        };
        Ok(nothing.renewed(tokens?))
    }

    async fn keep(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        held: &Held,
    ) -> Result<(), ConnectError> {
        let id = unguessable();
        let label = Label { tenant: tenant.name(), server, name: CONNECTION };
        let sealed = self.sealer.seal(Purpose::Connection, &of_connection(tenant, server), held);
        let mark = self.directory.secrets().vault().keyring().seal_mark(label, &id);
        let (sealed, mark) =
            sealed.zip(mark).ok_or_else(|| OAuthError::new("`[secrets] keys` are missing"))?;
        let new = NewConnection { tenant, server, id: &id, sealed: &sealed, mark: &mark };
        self.store.connect(&Actor::tenant(tenant), new).await?;
        // If this fails, following the store finds it later.
        let _ = self.directory.secrets().load().await;
        self.due.notify_one();
        Ok(())
    }

    /// Ends a tenant's connection. Returns whether there was one.
    pub async fn disconnect(
        &self,
        actor: &Actor,
        tenant: &TenantId,
        server: &ServerId,
    ) -> Result<bool, StoreError> {
        let ended = self.store.disconnect(actor, tenant.name(), server, None).await?;
        let _ = self.directory.secrets().load().await;
        self.due.notify_one();
        Ok(ended)
    }
}

impl Begun {
    /// Refuses an answer of another authorization server (mix-up, RFC 9207): with the state of this
    /// one, the code of another would be sent here.
    fn check_issuer(
        &self,
        server: &ServerId,
        named: Option<&str>,
        iss: Option<&str>,
    ) -> Result<(), ConnectError> {
        let is_right = match (iss, &self.server.issuer) {
            (Some(iss), Some(issuer)) => iss == issuer,
            (Some(_), None) => true,
            (None, _) => !self.server.tells_issuer,
        };
        let page = match named {
            Some(named) => format!("{CALLBACK_PAGE}/{named}"),
            None => CALLBACK_PAGE.to_owned(),
        };
        let came_back_there = Url::parse(&self.redirect_uri).is_ok_and(|uri| uri.path() == page);
        let is_of_server = named.is_none_or(|named| named == server.as_str());
        match is_right && came_back_there && is_of_server {
            true => Ok(()),
            false => Err(ConnectError::OtherIssuer),
        }
    }
}

/// Returns the scopes to ask for: those of the configuration, those that the server has asked for,
/// and without any those that its metadata name.
fn scopes<'a>(
    configured: &[String],
    asked: impl Iterator<Item = &'a str>,
    named: &[String],
) -> Vec<String> {
    let mut scopes = configured.to_vec();
    if scopes.is_empty() {
        scopes.extend_from_slice(named);
    }
    for scope in asked.filter(|scope| !scope.is_empty()) {
        if !scopes.iter().any(|it| it == scope) {
            scopes.push(scope.to_owned());
        }
    }
    scopes
}

fn hash(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(text))
}
