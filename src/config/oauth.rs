//! `[auth.oauth]`: the identity provider whose tokens are accepted.

use reqwest::Url;

use super::kind::{Kind, checked};
use super::section::section;
use super::tree::Value;
use super::url;
use super::web::Host;

/// Longer than the name of any real claim.
const CLAIM_LEN_MAX: usize = 256;

section! {
    /// An identity provider (OAuth 2.1) whose tokens are accepted as `Authorization: Bearer TOKEN`.
    /// Tokens must be JWTs with `exp`, signed with RS256, RS384, RS512, PS256, PS384, PS512, ES256,
    /// ES384 or EdDSA. MCP clients are told of the provider and ask it for a token themselves.
    pub struct OAuth in "auth.oauth" {
        /// The `iss` of every token, compared letter for letter.
        issuer: String, ISSUER;
        /// A value in the `aud` of every token: the URL that callers use for `/mcp`, letter for letter.
        audience: String, AUDIENCE;
        /// Location of the provider's keys, its `jwks_uri`. Read again every 5 minutes.
        #[serde(deserialize_with = "url")]
        jwks_url: Url, JWKS_URL;
        /// The claim that holds the tenant's id.
        tenant_claim: String, CLAIM;
    }
}

const ISSUER: Kind = Kind::of_type(|| identifier_allowed("https://id.example"))
    .read_by(|node, _| checked(&node, identifier));

const AUDIENCE: Kind = Kind::of_type(|| identifier_allowed("https://gateway.example/mcp"))
    .read_by(|node, _| checked(&node, identifier));

const JWKS_URL: Kind = Kind::of_type(|| allowed("https://id.example/keys", "no user name"))
    .read_by(|node, _| checked(&node, |text| safe_url(text).map(|url| Value::Text(url.into()))));

const CLAIM: Kind = Kind::of_type(|| {
    format!(
        "the name of a claim, such as \"tenant\", or a JSON pointer into one, such as \"/org/id\", \
         of at most {CLAIM_LEN_MAX} characters"
    )
})
.read_by(|node, _| checked(&node, claim));

fn identifier_allowed(example: &str) -> String {
    allowed(example, "nothing after its path")
}

fn allowed(example: &str, without: &str) -> String {
    format!(
        "a URL with https, such as {example:?}, or with http if it is on this machine, \
         with {without}"
    )
}

/// Keeps a URL that also is a name as it was written.
fn identifier(text: &str) -> Option<Value> {
    let url = safe_url(text)?;
    let is_path = url.query().is_none() && url.fragment().is_none();
    is_path.then(|| Value::Text(text.to_owned()))
}

/// Parses a URL that nobody can read or change on its way.
fn safe_url(text: &str) -> Option<Url> {
    // `Url` accepts much that a comparison of texts does not, and the text goes into a header.
    let is_plain = text.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\');
    let url = Url::parse(text).ok().filter(|_| is_plain)?;
    let is_safe = text.starts_with("https://")
        || text.starts_with("http://") && Host::parse(url.host_str()?)?.is_loopback();
    (is_safe && url.username().is_empty() && url.password().is_none()).then_some(url)
}

/// Returns a JSON pointer (RFC 6901), also for the plain name of a claim.
fn claim(text: &str) -> Option<Value> {
    if text.is_empty() || text == "/" || text.len() > CLAIM_LEN_MAX {
        return None;
    }
    if text.starts_with('/') {
        return Some(Value::Text(text.to_owned()));
    }
    Some(Value::Text(format!("/{}", text.replace('~', "~0").replace('/', "~1"))))
}
