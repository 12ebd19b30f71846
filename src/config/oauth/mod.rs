//! `[auth.oauth]`: the identity provider whose tokens are accepted; [`upstream`]: how the gateway
//! gets access tokens for a server.

mod upstream;

use reqwest::Url;

use super::kind::{self, Kind, checked};
use super::section::section;
use super::url;
use super::web::Host;

pub use self::upstream::{Grant, IdentityProvider, SubjectType, UpstreamOAuth};

/// Longer than the name of any real claim.
const CLAIM_LEN_MAX: usize = 256;

section! {
    /// An identity provider (OAuth 2.1) whose tokens are accepted as `Authorization: Bearer TOKEN`.
    /// Tokens must be JWTs with `exp`, signed with RS256, RS384, RS512, PS256, PS384, PS512, ES256,
    /// ES384 or EdDSA. MCP clients are told of the provider and ask it for a token themselves.
    pub struct OAuth in "auth.oauth" {
        /// The `iss` of every token, compared letter for letter.
        issuer: String, ISSUER;
        /// A value in the `aud` of every token: the URL that callers use for `/mcp`, compared
        /// letter for letter.
        audience: String, AUDIENCE;
        /// Location of the provider's keys, its `jwks_uri`. Read again every 5 minutes.
        #[serde(deserialize_with = "url")]
        jwks_url: Url, JWKS_URL;
        /// The claim that holds the tenant's id.
        tenant_claim: String, CLAIM;
        /// Id of the gateway as a client of the provider. Tokens with it in their `aud` are
        /// accepted, too, such as ID tokens for a server with `grant = "id_jag"`. Unset: no such.
        client_id: Option<String>, kind::TEXT;
    }
}

const ISSUER: Kind = Kind::Value(
    "a URL with https, such as \"https://id.example\", or with http if it is on this machine, \
     with nothing after its path",
    |node, _| checked(&node, identifier),
);

const AUDIENCE: Kind = Kind::Value(
    "a URL with https, such as \"https://gateway.example/mcp\", or with http if it is on this \
     machine, with nothing after its path",
    |node, _| checked(&node, identifier),
);

const JWKS_URL: Kind = Kind::Value(
    "a URL with https, such as \"https://id.example/keys\", or with http if it is on this machine, \
     without a user name",
    |node, _| checked(&node, |text| safe_url(text).map(String::from)),
);

const CLAIM: Kind = Kind::Value(
    "the name of a claim, such as \"tenant\", or a JSON pointer into one, such as \"/org/id\", \
     of at most 256 characters",
    |node, _| checked(&node, claim),
);

/// Keeps a URL that also is a name as it was written.
fn identifier(text: &str) -> Option<String> {
    let url = safe_url(text)?;
    (url.query().is_none() && url.fragment().is_none()).then(|| text.to_owned())
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
fn claim(text: &str) -> Option<String> {
    let is_name = !text.is_empty() && text != "/" && text.len() <= CLAIM_LEN_MAX;
    is_name.then(|| match text.starts_with('/') {
        true => text.to_owned(),
        false => format!("/{}", text.replace('~', "~0").replace('/', "~1")),
    })
}

/// The address at which browsers reach the gateway.
pub(super) const PUBLIC_URL: Kind = Kind::Value(
    "a URL with https, such as \"https://gateway.example\", or with http if it is on this machine, \
     without a path",
    |node, _| {
        checked(&node, |text| {
            let url = safe_url(text)?;
            let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
            is_bare.then(|| text.trim_end_matches('/').to_owned())
        })
    },
);
