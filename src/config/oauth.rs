//! `[auth.oauth]`: the identity provider whose tokens are accepted.

use reqwest::Url;

use super::error::ConfigError;
use super::section::Section;
use super::tree::Node;
use super::values::show;
use super::web::Host;

const KEYS: &[&str] = &["issuer", "audience", "jwks_url", "tenant_claim"];
/// Longer than any claim's name that was ever meant.
const CLAIM_LEN_MAX: usize = 256;

/// An identity provider, and what its tokens must say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuth {
    /// What a token's `iss` must be, letter for letter.
    pub issuer: String,
    /// What must be in a token's `aud`, letter for letter: the URL of this gateway, as callers know it.
    pub audience: String,
    /// Where the provider's keys are.
    pub jwks_url: Url,
    /// Where in a token's claims its tenant stands, as a JSON pointer (RFC 6901).
    pub tenant_claim: String,
}

pub(super) fn oauth(node: Node) -> Result<OAuth, ConfigError> {
    let mut oauth = Section::open("auth.oauth", node, KEYS)?;
    let mut needed = |key, hint, read: fn(Node) -> Result<String, String>| {
        oauth.optional(key, read)?.ok_or_else(|| oauth.missing(key, hint))
    };
    Ok(OAuth {
        issuer: needed("issuer", "give what its tokens have as `iss`", issuer)?,
        audience: needed("audience", "give the URL that callers have for /mcp", audience)?,
        tenant_claim: needed("tenant_claim", "name the claim that is the tenant", claim)?,
        jwks_url: oauth.optional("jwks_url", jwks_url)?.ok_or_else(|| {
            oauth.missing("jwks_url", "give the `jwks_uri` of the provider's metadata")
        })?,
    })
}

fn issuer(node: Node) -> Result<String, String> {
    identifier(&node, "https://id.example")
}

fn audience(node: Node) -> Result<String, String> {
    identifier(&node, "https://gateway.example/mcp")
}

/// A URL that also is a name: it is kept as it was written, and has nothing beyond its path.
fn identifier(node: &Node, example: &str) -> Result<String, String> {
    let text = node.text().unwrap_or_default();
    match url(text) {
        Some(url) if url.query().is_none() && url.fragment().is_none() => Ok(text.to_owned()),
        _ => Err(not_a_url(node, example, "nothing after its path")),
    }
}

fn jwks_url(node: Node) -> Result<Url, String> {
    url(node.text().unwrap_or_default())
        .ok_or_else(|| not_a_url(&node, "https://id.example/keys", "no user name"))
}

fn not_a_url(node: &Node, example: &str, without: &str) -> String {
    format!(
        "must be a URL with https, such as {example:?}, or with http if it is on this machine, and have {without}; \
         it is {}",
        show(node)
    )
}

/// What others could read or change on its way is not trusted.
fn url(text: &str) -> Option<Url> {
    // `Url` forgives much that a comparison of texts would not, and this goes into a header as it is.
    let is_plain = text.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\');
    let url = Url::parse(text).ok().filter(|_| is_plain)?;
    let is_safe = text.starts_with("https://")
        || text.starts_with("http://") && Host::parse(url.host_str()?)?.is_loopback();
    (is_safe && url.username().is_empty() && url.password().is_none()).then_some(url)
}

/// A claim's name, or with a `/` before it a path to what is inside of claims.
fn claim(node: Node) -> Result<String, String> {
    let text = node.text().unwrap_or_default();
    let is_valid = text.len() <= CLAIM_LEN_MAX && !text.is_empty() && text != "/";
    if !is_valid {
        return Err(format!(
            "must be the name of a claim, such as \"tenant\", or a JSON pointer into one, such as \"/org/id\", \
             of at most {CLAIM_LEN_MAX} characters, and it is {}",
            show(&node)
        ));
    }
    if text.starts_with('/') {
        return Ok(text.to_owned());
    }
    Ok(format!("/{}", text.replace('~', "~0").replace('/', "~1")))
}
