//! Clients without a configured id: the gateway registers one (RFC 7591), or serves the metadata of
//! one at the URL that is its id.

use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::{Value, json};

use super::OAuthError;
use super::client::KnownClient;
use super::discovery::AuthorizationServer;
use super::fetch::Fetch;
use super::request::refused;

const CLIENT_NAME: &str = "Trunkline";
const TEXT_LEN_MAX: usize = 4096;

#[derive(Deserialize)]
struct Registered {
    client_id: String,
    client_secret: Option<String>,
    #[serde(default)]
    client_secret_expires_at: i64,
}

/// Returns the metadata of a client without a secret.
pub fn metadata(client_uri: &str, redirect_uris: &[String]) -> Value {
    // Authorization servers that keep to OpenID Connect let web applications have no plain `http`.
    let application_type = if client_uri.starts_with("https://") { "web" } else { "native" };
    json!({
        "client_name": CLIENT_NAME,
        "application_type": application_type,
        "client_uri": client_uri,
        "redirect_uris": redirect_uris,
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    })
}

/// Registers a client at an authorization server.
pub async fn register(
    fetch: &Fetch,
    server: &AuthorizationServer,
    client_uri: &str,
    redirect_uri: &str,
) -> Result<KnownClient, OAuthError> {
    let Some(url) = &server.registration_endpoint else {
        return Err(OAuthError::new(
            "the authorization server registers no clients: register one there, and set \
             `client_id`",
        ));
    };
    let mut metadata = metadata(client_uri, &[redirect_uri.to_owned()]);
    if !server.takes_public_clients {
        let in_body = if server.secret_in_body { "client_secret_post" } else { "" };
        let method = if in_body.is_empty() { "client_secret_basic" } else { in_body };
        metadata["token_endpoint_auth_method"] = json!(method);
    }
    let request = fetch.post(url)?.header(CONTENT_TYPE, "application/json");
    let (status, body) = fetch.send(url, request.body(metadata.to_string())).await?;
    if !status.is_success() {
        return Err(refused(url, status, &body));
    }
    let registered: Option<Registered> = serde_json::from_slice(&body).ok();
    let fits = |text: &str| (1..=TEXT_LEN_MAX).contains(&text.len());
    let registered =
        registered.filter(|it| fits(&it.client_id) && it.client_secret.as_deref().is_none_or(fits));
    let Some(registered) = registered else {
        return Err(OAuthError::new("the registration's answer has no `client_id`"));
    };
    Ok(KnownClient {
        id: registered.client_id,
        secret: registered.client_secret,
        redirect_uri: redirect_uri.to_owned(),
        secret_expires: registered.client_secret_expires_at,
    })
}
