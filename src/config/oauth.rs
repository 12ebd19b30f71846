//! `[auth.oauth]`: the identity provider whose tokens are accepted; `[servers.*.oauth]`: how the
//! gateway gets access tokens for a server.

use ipnet::IpNet;
use reqwest::Url;

use super::kind::{self, Kind, checked};
use super::secret::PRIVATE_TEXT;
use super::section::section;
use super::server::URL;
use super::web::Host;
use super::{Secret, url};

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

section! {
    /// The gateway gets access tokens for a server by OAuth, and sends them as
    /// `Authorization: Bearer`.
    pub struct UpstreamOAuth in "servers.NAME.oauth" {
        /// The right that the tokens stand for. `"client_credentials"`: the gateway's own, the same
        /// for all tenants. `"authorization_code"`: each tenant's, which a person of the tenant
        /// gives in a browser; needs `sharing = "tenant"`, `public_url` and `secrets.keys`.
        grant: Grant = "client_credentials", GRANT;
        /// Id under which the authorization server knows the gateway. Unset, with
        /// `grant = "authorization_code"`: the URL of a document that the gateway serves, or an id
        /// that it registers, as the authorization server allows.
        client_id: Option<String>, kind::TEXT;
        /// Secret of the gateway, perhaps `${NAME}` or `${file:/path}`. Unset: `private_key`, or
        /// with `grant = "authorization_code"` none.
        client_secret: Option<Secret>, PRIVATE_TEXT;
        /// Private key of the gateway, which signs its requests (`private_key_jwt`): PKCS #8 in
        /// PEM, of P-256, Ed25519 or RSA. Unset: `client_secret`.
        private_key: Option<Secret>, PRIVATE_TEXT;
        /// Name (`kid`) of `private_key`. Unset: none.
        key_id: Option<String>, kind::TEXT;
        /// Authorization server. Unset: the one that the server's metadata name (RFC 9728).
        #[serde(default, deserialize_with = "optional_url")]
        issuer: Option<Url>, URL;
        /// Address of its token endpoint. Unset: that of its metadata (RFC 8414).
        #[serde(default, deserialize_with = "optional_url")]
        token_url: Option<Url>, URL;
        /// Address at which it asks people. Needed with `token_url`, if
        /// `grant = "authorization_code"`. Unset: that of its metadata.
        #[serde(default, deserialize_with = "optional_url")]
        authorize_url: Option<Url>, URL;
        /// Scopes to ask for. The server may ask for more of them with a 401 or 403. With
        /// `grant = "authorization_code"` and none: those that the server's metadata name.
        scopes: Vec<String> = [], SCOPES;
        /// Resource that the tokens are for (RFC 8707). Unset: the server's `url`.
        resource: Option<String>, kind::TEXT;
        /// Networks that addresses found in metadata may lead to although they are not public,
        /// such as `["10.1.0.0/16"]`. Addresses in the configuration may lead anywhere.
        networks: Vec<IpNet> = [], kind::NETWORKS;
    }
}

/// The right that tokens for a server stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// The gateway's own.
    ClientCredentials,
    /// The right of a tenant, who has agreed in a browser.
    AuthorizationCode,
}

const GRANT: Kind = kind::of::<Grant>("\"client_credentials\" or \"authorization_code\"");

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

/// The longest scope, and the most of them.
const SCOPE_LEN_MAX: usize = 256;
const SCOPES_MAX: usize = 32;

const SCOPES: Kind =
    Kind::Value("a list of at most 32 scopes, such as [\"mcp:read\"]", |node, _| {
        let scope = |item: &super::tree::Node| match item.text() {
            Some(text) if is_scope(text) => Ok(text.into()),
            _ => Err(format!("is {}", item.show())),
        };
        match kind::list(node, scope)? {
            serde_json::Value::Array(scopes) if scopes.len() > SCOPES_MAX => {
                Err(format!("it has {}", scopes.len()))
            }
            scopes => Ok(scopes),
        }
    });

/// Returns whether a text is one scope (RFC 6749).
fn is_scope(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    (1..=SCOPE_LEN_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

fn optional_url<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Url>, D::Error> {
    url(deserializer).map(Some)
}

impl UpstreamOAuth {
    /// Returns the contradiction between settings, if there is one.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let is_of_tenants = self.grant == Grant::AuthorizationCode;
        match (&self.client_secret, &self.private_key) {
            (Some(_), Some(_)) => Some("has both `client_secret` and `private_key`: give one"),
            (None, None) if !is_of_tenants => Some("needs `client_secret` or `private_key`"),
            _ if self.key_id.is_some() && self.private_key.is_none() => {
                Some("has a `key_id` without `private_key`")
            }
            _ if self.client_id.is_none() && !is_of_tenants => Some("needs `client_id`"),
            (Some(_), _) | (_, Some(_)) if self.client_id.is_none() => {
                Some("has a `client_secret` or a `private_key` without `client_id`")
            }
            _ if is_of_tenants && self.token_url.is_some() != self.authorize_url.is_some() => {
                Some("has one of `token_url` and `authorize_url`: give both, or neither")
            }
            _ if is_of_tenants && self.token_url.is_some() && self.client_id.is_none() => {
                Some("has a `token_url` without `client_id`")
            }
            _ if !is_of_tenants && self.authorize_url.is_some() => {
                Some("has an `authorize_url`, which is for `grant = \"authorization_code\"`")
            }
            _ => None,
        }
    }
}
