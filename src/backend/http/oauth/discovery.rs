//! Finds the token endpoint: the server's metadata name the authorization server (RFC 9728), whose
//! own metadata name the endpoint (RFC 8414, or OpenID Connect Discovery).

use reqwest::Url;
use serde::Deserialize;

use super::TokenError;
use super::fetch::Fetch;
use crate::config::UpstreamOAuth;

const OF_RESOURCE: &str = "/.well-known/oauth-protected-resource";
const OF_SERVER: &str = "/.well-known/oauth-authorization-server";
const OF_PROVIDER: &str = "/.well-known/openid-configuration";

/// The endpoint that gives tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenEndpoint {
    pub(super) url: Url,
    /// The name of the authorization server, if it is known.
    pub(super) issuer: Option<String>,
    /// Whether the secret goes into the body, because the endpoint takes it nowhere else.
    pub(super) secret_in_body: bool,
}

/// The metadata of a protected resource.
#[derive(Deserialize)]
struct ResourceMetadata {
    resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
}

/// The metadata of an authorization server.
#[derive(Deserialize)]
struct ServerMetadata {
    issuer: String,
    token_endpoint: String,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

pub(super) async fn find(
    fetch: &Fetch,
    config: &UpstreamOAuth,
    server: &Url,
) -> Result<TokenEndpoint, TokenError> {
    if let Some(url) = &config.token_url {
        let issuer = config.issuer.as_ref().map(text_of);
        return Ok(TokenEndpoint { url: url.clone(), issuer, secret_in_body: false });
    }
    let issuer = match &config.issuer {
        Some(issuer) => text_of(issuer),
        None => issuer_of(fetch, server).await?,
    };
    endpoint_of(fetch, issuer).await
}

/// Returns the authorization server that a server's metadata name first.
async fn issuer_of(fetch: &Fetch, server: &Url) -> Result<String, TokenError> {
    let named = fetch.challenge(server).await.and_then(|challenge| challenge.metadata);
    let places = named.into_iter().chain(well_known(server, OF_RESOURCE));
    for place in places {
        let Some(found) = fetch.document::<ResourceMetadata>(&place).await? else { continue };
        if !is_of(&found.resource, server) {
            return Err(TokenError::new(format!(
                "the metadata at `{}` are those of another resource",
                place.host_str().unwrap_or_default()
            )));
        }
        let issuer = found.authorization_servers.into_iter().next();
        return issuer.ok_or_else(|| {
            TokenError::new("the server's metadata name no authorization server: set `issuer`")
        });
    }
    Err(TokenError::new("the server has no metadata (RFC 9728): set `issuer`"))
}

/// Returns whether a resource is the server, or is above it.
fn is_of(resource: &str, server: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else { return false };
    let path = resource.path().trim_end_matches('/');
    let rest = server.path().strip_prefix(path);
    resource.origin() == server.origin()
        && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

async fn endpoint_of(fetch: &Fetch, issuer: String) -> Result<TokenEndpoint, TokenError> {
    let refuse = |why: &str| Err(TokenError::new(why));
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
        let Ok(url) = Url::parse(&found.token_endpoint) else {
            return refuse("the token endpoint of the authorization server is no URL");
        };
        let methods = found.token_endpoint_auth_methods_supported.unwrap_or_default();
        let has = |method: &str| methods.iter().any(|it| it == method);
        let secret_in_body = has("client_secret_post") && !has("client_secret_basic");
        return Ok(TokenEndpoint { url, issuer: Some(found.issuer), secret_in_body });
    }
    refuse("the authorization server has no metadata (RFC 8414): set `token_url`")
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
