//! As whom the gateway asks an authorization server where the operator has configured no client: by
//! the URL of a document that the gateway serves, or by an id that it has registered.

use jiff::Timestamp;
use serde_json::Value;

use super::{CALLBACK_PAGE, CLIENT_DOCUMENT, Connections};
use crate::common::ids::ServerId;
use crate::common::seal::Purpose;
use crate::oauth::OAuthError;
use crate::oauth::client::KnownClient;
use crate::oauth::discovery::AuthorizationServer;
use crate::oauth::provider::Provider;
use crate::oauth::registration;

impl Connections {
    /// Returns the address that an authorization server sends browsers back to. One that does not
    /// name itself in its answers (RFC 9207) gets an address of its own: no other can pass its
    /// answers off as this one's.
    pub(super) fn redirect_uri(
        &self,
        server: &ServerId,
        authorization_server: &AuthorizationServer,
    ) -> String {
        let gateway = self.public_url.as_deref().unwrap_or_default();
        match authorization_server.tells_issuer {
            true => format!("{gateway}{CALLBACK_PAGE}"),
            false => format!("{gateway}{CALLBACK_PAGE}/{server}"),
        }
    }

    /// Returns the metadata of the gateway as a client for a server, if its tenants connect
    /// themselves to that.
    pub fn client_document(&self, server: &str) -> Option<Value> {
        let gateway = self.public_url.as_deref()?;
        if !self.servers.load().configured.keys().any(|id| id.as_str() == server) {
            return None;
        }
        let redirect_uris =
            [format!("{gateway}{CALLBACK_PAGE}"), format!("{gateway}{CALLBACK_PAGE}/{server}")];
        let mut document = registration::metadata(gateway, &redirect_uris);
        document["client_id"] = format!("{gateway}{CLIENT_DOCUMENT}{server}").into();
        Some(document)
    }

    /// Returns the client for an authorization server; `None` if the operator has configured it.
    pub(super) async fn client(
        &self,
        server: &ServerId,
        provider: &Provider,
        at: &AuthorizationServer,
        redirect_uri: &str,
    ) -> Result<Option<KnownClient>, OAuthError> {
        if provider.config.client_id.is_some() {
            return Ok(None);
        }
        let gateway = self.public_url.as_deref().unwrap_or_default();
        // An authorization server fetches it over TLS alone.
        if at.takes_client_documents && gateway.starts_with("https://") {
            return Ok(Some(KnownClient {
                id: format!("{gateway}{CLIENT_DOCUMENT}{server}"),
                secret: None,
                redirect_uri: redirect_uri.to_owned(),
                secret_expires: 0,
            }));
        }
        let issuer = at.issuer.as_deref().unwrap_or_default();
        let away = |_| OAuthError::new("the store cannot be asked now");
        let kept = self.store.oauth_client(server, issuer).await.map_err(away)?;
        let context = format!("{server}\0{issuer}").into_bytes();
        let open = |sealed: &str| -> Option<KnownClient> {
            self.sealer.open(Purpose::OAuthClient, &context, sealed)
        };
        let is_fit = |client: &KnownClient| {
            let expires = client.secret_expires;
            let is_valid = expires == 0 || Timestamp::now().as_second() < expires;
            client.redirect_uri == redirect_uri && is_valid
        };
        if let Some(client) = kept.as_deref().and_then(open).filter(is_fit) {
            return Ok(Some(client));
        }
        let registered = registration::register(&provider.fetch, at, gateway, redirect_uri).await?;
        let sealed = self.sealer.seal(Purpose::OAuthClient, &context, &registered);
        let sealed = sealed.ok_or_else(|| OAuthError::new("`[secrets] keys` are missing"))?;
        let keep = self.store.keep_oauth_client(server, issuer, &sealed, kept.as_deref());
        // Another gateway may have been faster: then its client is used by both.
        let kept = keep.await.map_err(away)?;
        Ok(kept.as_deref().and_then(open).filter(is_fit).or(Some(registered)))
    }
}
