//! Finds the authorization server: the server's metadata name it (RFC 9728), and its own metadata
//! name its endpoints (RFC 8414, or OpenID Connect Discovery).

use std::ops::Deref;

use reqwest::Url;
use serde::{Deserialize, Serialize};

use super::OAuthError;
use super::challenge::Challenge;
use super::fetch::Fetch;
use crate::config::UpstreamOAuth;

const OF_RESOURCE: &str = "/.well-known/oauth-protected-resource";
const OF_SERVER: &str = "/.well-known/oauth-authorization-server";
const OF_PROVIDER: &str = "/.well-known/openid-configuration";
/// The most scopes that metadata may name.
const SCOPES_MAX: usize = 64;
const OFFLINE_ACCESS: &str = "offline_access";

/// An authorization server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorizationServer {
    /// Its name, if it is known.
    pub issuer: Option<String>,
    pub token_endpoint: Endpoint,
    /// Address for a person's browser.
    pub authorization_endpoint: Option<Endpoint>,
    pub registration_endpoint: Option<Endpoint>,
    pub revocation_endpoint: Option<Endpoint>,
    /// Whether the secret goes into the body, because the endpoint takes it nowhere else.
    pub secret_in_body: bool,
    /// Whether clients without a secret may ask for tokens.
    pub takes_public_clients: bool,
    /// Whether it binds a code to its client (PKCE, S256).
    pub has_pkce: bool,
    /// Whether its answers to browsers name it (RFC 9207).
    pub tells_issuer: bool,
    /// Whether the URL of a metadata document may be a client's id.
    pub takes_client_documents: bool,
    /// Scopes that the server's own metadata name.
    pub scopes: Vec<String>,
    /// Scopes that the server asks for in its refusal of a request without a token.
    pub required: Vec<String>,
    /// Whether refresh tokens are a scope of their own.
    pub has_offline_access: bool,
    /// The server's name for itself, letter for letter, if its metadata led here.
    #[serde(default)]
    pub resource: Option<String>,
}

/// The address of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint(Url);

impl TryFrom<String> for Endpoint {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Url::parse(&text).map(Self).map_err(|_| "it is no URL")
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.0.into()
    }
}

impl Deref for Endpoint {
    type Target = Url;

    fn deref(&self) -> &Url {
        &self.0
    }
}

/// The metadata of a protected resource.
#[derive(Deserialize)]
struct ResourceMetadata {
    resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
    #[serde(default)]
    scopes_supported: Vec<String>,
}

/// The metadata of an authorization server.
#[derive(Deserialize)]
struct ServerMetadata {
    issuer: String,
    token_endpoint: String,
    authorization_endpoint: Option<String>,
    registration_endpoint: Option<String>,
    revocation_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    code_challenge_methods_supported: Option<Vec<String>>,
    scopes_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
    #[serde(default)]
    client_id_metadata_document_supported: bool,
}

/// Finds the authorization server of a server. A server without an address has one configured.
pub async fn find(
    fetch: &Fetch,
    config: &UpstreamOAuth,
    server: Option<&Url>,
) -> Result<AuthorizationServer, OAuthError> {
    if let Some(url) = &config.token_url {
        return Ok(AuthorizationServer {
            issuer: config.issuer.as_ref().map(text_of),
            token_endpoint: Endpoint(url.clone()),
            authorization_endpoint: config.authorize_url.clone().map(Endpoint),
            registration_endpoint: None,
            revocation_endpoint: None,
            secret_in_body: false,
            takes_public_clients: true,
            // The operator vouches for it.
            has_pkce: true,
            tells_issuer: false,
            takes_client_documents: false,
            scopes: vec![],
            required: vec![],
            has_offline_access: false,
            resource: None,
        });
    }
    let challenge = match server {
        Some(server) => fetch.challenge(server).await.unwrap_or_default(),
        None => Challenge::default(),
    };
    let required = challenge.scopes.clone();
    let found = match (&config.issuer, server) {
        (Some(issuer), _) => Named { issuer: text_of(issuer), scopes: vec![], resource: None },
        (None, Some(server)) => issuer_of(fetch, server, challenge).await?,
        (None, None) => return Err(OAuthError::new("no authorization server is set: `issuer`")),
    };
    let Named { issuer, scopes, resource } = found;
    Ok(AuthorizationServer { scopes, required, resource, ..server_of(fetch, issuer).await? })
}

/// The things that a server's metadata name.
struct Named {
    /// The first authorization server.
    issuer: String,
    scopes: Vec<String>,
    resource: Option<String>,
}

async fn issuer_of(fetch: &Fetch, server: &Url, challenge: Challenge) -> Result<Named, OAuthError> {
    let places = challenge.metadata.into_iter().chain(well_known(server, OF_RESOURCE));
    for place in places {
        let Some(found) = fetch.document::<ResourceMetadata>(&place).await? else { continue };
        if !is_of(&found.resource, server) {
            return Err(OAuthError::new(format!(
                "the metadata at `{}` are those of another resource",
                place.host_str().unwrap_or_default()
            )));
        }
        let Some(issuer) = found.authorization_servers.into_iter().next() else {
            let problem = "the server's metadata name no authorization server: set `issuer`";
            return Err(OAuthError::new(problem));
        };
        let scopes = found.scopes_supported.into_iter().filter(|it| is_scope(it));
        let scopes = scopes.take(SCOPES_MAX).collect();
        return Ok(Named { issuer, scopes, resource: Some(found.resource) });
    }
    Err(OAuthError::new("the server has no metadata (RFC 9728): set `issuer`"))
}

/// Returns whether a resource is the server, or is above it.
fn is_of(resource: &str, server: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else { return false };
    let path = resource.path().trim_end_matches('/');
    let rest = server.path().strip_prefix(path);
    resource.origin() == server.origin()
        && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

async fn server_of(fetch: &Fetch, issuer: String) -> Result<AuthorizationServer, OAuthError> {
    let refuse = |why: &str| Err(OAuthError::new(why));
    let Ok(url) = Url::parse(&issuer) else {
        return refuse("the name of the authorization server is no URL");
    };
    let mut after = url.clone();
    after.set_path(&format!("{}{OF_PROVIDER}", url.path().trim_end_matches('/')));
    let places = well_known(&url, OF_SERVER).into_iter().take(1);
    let places = places.chain(well_known(&url, OF_PROVIDER).into_iter().take(1)).chain([after]);
    for place in places {
        let Some(found) = fetch.document::<ServerMetadata>(&place).await? else { continue };
        // A URL of the configuration may have a slash at its end that its name has not.
        if found.issuer.trim_end_matches('/') != issuer.trim_end_matches('/') {
            return refuse("the metadata of the authorization server are those of another one");
        }
        return found.read();
    }
    refuse("the authorization server has no metadata (RFC 8414): set `token_url`")
}

impl ServerMetadata {
    fn read(self) -> Result<AuthorizationServer, OAuthError> {
        let url = |text: String| {
            let problem = "an endpoint of the authorization server is no URL";
            Endpoint::try_from(text).map_err(|_| OAuthError::new(problem))
        };
        let methods = self.token_endpoint_auth_methods_supported.unwrap_or_default();
        let has = |method: &str| methods.iter().any(|it| it == method);
        let has_text =
            |list: &Option<Vec<String>>, text: &str| list.iter().flatten().any(|it| it == text);
        Ok(AuthorizationServer {
            token_endpoint: url(self.token_endpoint)?,
            authorization_endpoint: self.authorization_endpoint.map(url).transpose()?,
            registration_endpoint: self.registration_endpoint.map(url).transpose()?,
            revocation_endpoint: self.revocation_endpoint.map(url).transpose()?,
            secret_in_body: has("client_secret_post") && !has("client_secret_basic"),
            takes_public_clients: has("none"),
            has_pkce: has_text(&self.code_challenge_methods_supported, "S256"),
            tells_issuer: self.authorization_response_iss_parameter_supported,
            takes_client_documents: self.client_id_metadata_document_supported,
            scopes: vec![],
            required: vec![],
            has_offline_access: has_text(&self.scopes_supported, OFFLINE_ACCESS),
            resource: None,
            issuer: Some(self.issuer),
        })
    }
}

/// Returns whether a text is one scope (RFC 6749).
pub(super) fn is_scope(text: &str) -> bool {
    (1..=256).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
}

/// Returns the well-known addresses of a URL: with its path, and without.
fn well_known(url: &Url, name: &str) -> Vec<Url> {
    let path = url.path().trim_end_matches('/');
    let paths = [format!("{name}{path}"), name.to_owned()];
    let mut places: Vec<Url> = paths
        .iter()
        .map(|path| {
            let mut place = url.clone();
            place.set_path(path);
            place.set_query(None);
            place.set_fragment(None);
            place
        })
        .collect();
    places.dedup();
    places
}

/// Returns the name of an issuer as it is written without a path.
fn text_of(issuer: &Url) -> String {
    issuer.as_str().trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(url: &str, name: &str) -> Vec<String> {
        well_known(&url.parse().unwrap(), name).into_iter().map(String::from).collect()
    }

    #[test]
    fn metadata_are_looked_for_with_the_path_and_without() {
        let of = "https://a.example/.well-known/oauth-protected-resource";
        assert_eq!(
            places("https://a.example/mcp?x=1", OF_RESOURCE),
            [format!("{of}/mcp"), of.into()]
        );
        assert_eq!(places("https://a.example/", OF_RESOURCE), [of]);
    }

    #[test]
    fn metadata_must_be_those_of_the_server() {
        let server = "https://a.example/b/mcp".parse().unwrap();
        for (resource, expected) in [
            ("https://a.example/b/mcp", true),
            ("https://a.example/b", true),
            ("https://a.example", true),
            ("https://a.example/b/mc", false),
            ("https://a.example/c", false),
            ("https://b.example/b/mcp", false),
            ("http://a.example/b/mcp", false),
            ("a", false),
        ] {
            assert_eq!(is_of(resource, &server), expected, "{resource}");
        }
    }
}
