//! Metadata that tells clients how to get a token (RFC 9728).
//!
//! The whole gateway is one resource, named by `audience`: a token is valid at `/mcp`, at
//! `/mcp/{server}` and for REST. So all of its addresses have the same metadata. MCP clients accept
//! a resource whose URL is the one they connect to, or above it, so `…/mcp` serves `…/mcp/{server}`
//! too. The few that require equality must connect to `/mcp`.

use reqwest::header::HeaderValue;
use serde::Serialize;

use crate::config::OAuth;

/// The prefix of the metadata's path, before the resource's own path.
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

pub struct Resource {
    metadata: String,
    challenge: HeaderValue,
    challenge_for_token: HeaderValue,
}

impl Resource {
    pub fn new(config: &OAuth) -> Self {
        #[derive(Serialize)]
        struct Metadata<'a> {
            resource: &'a str,
            authorization_servers: [&'a str; 1],
            bearer_methods_supported: [&'a str; 1],
        }
        let metadata = Metadata {
            resource: &config.audience,
            authorization_servers: [&config.issuer],
            bearer_methods_supported: ["header"],
        };
        let challenge = format!("Bearer resource_metadata=\"{}\"", metadata_url(&config.audience));
        let header =
            |text: &str| HeaderValue::from_str(text).expect("a configured URL is plain text");
        Self {
            metadata: serde_json::to_string(&metadata).expect("metadata is plain data"),
            challenge_for_token: header(&format!("{challenge}, error=\"invalid_token\"")),
            challenge: header(&challenge),
        }
    }

    pub fn metadata(&self) -> &str {
        &self.metadata
    }

    /// Returns `WWW-Authenticate` for an unauthenticated request; `with_token` if it had a token or
    /// a key.
    pub fn challenge(&self, with_token: bool) -> HeaderValue {
        if with_token { self.challenge_for_token.clone() } else { self.challenge.clone() }
    }
}

/// Returns `https://host/.well-known/oauth-protected-resource/path` for `https://host/path`.
fn metadata_url(resource: &str) -> String {
    let host = resource.find("://").map_or(0, |at| at + "://".len());
    let path = resource[host..].find('/').map_or(resource.len(), |at| host + at);
    let (site, path) = resource.split_at(path);
    format!("{site}{WELL_KNOWN}{}", if path == "/" { "" } else { path })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(audience: &str) -> Resource {
        Resource::new(&OAuth {
            issuer: "https://id.example".to_owned(),
            audience: audience.to_owned(),
            jwks_url: "https://id.example/keys".parse().unwrap(),
            tenant_claim: "/tenant".to_owned(),
            client_id: None,
        })
    }

    #[test]
    fn unauthenticated_callers_are_told_where_the_metadata_is() {
        let resource = resource("https://gateway.example/mcp");
        let url = "https://gateway.example/.well-known/oauth-protected-resource/mcp";
        let challenge = format!("Bearer resource_metadata=\"{url}\"");
        assert_eq!(resource.challenge(false), challenge);
        assert_eq!(resource.challenge(true), format!("{challenge}, error=\"invalid_token\""));
    }

    #[test]
    fn the_well_known_path_stands_between_host_and_path() {
        for (resource, url) in [
            ("https://a.example", "https://a.example/.well-known/oauth-protected-resource"),
            ("https://a.example/", "https://a.example/.well-known/oauth-protected-resource"),
            ("http://[::1]:80/b/mcp", "http://[::1]:80/.well-known/oauth-protected-resource/b/mcp"),
        ] {
            assert_eq!(metadata_url(resource), url);
        }
    }

    #[test]
    fn the_metadata_are_those_of_rfc_9728() {
        assert_eq!(
            resource("https://gateway.example/mcp").metadata(),
            "{\"resource\":\"https://gateway.example/mcp\",\
             \"authorization_servers\":[\"https://id.example\"],\
             \"bearer_methods_supported\":[\"header\"]}"
        );
    }
}
