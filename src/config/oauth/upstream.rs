//! `[servers.*.oauth]`: how the gateway gets access tokens for a server.

use ipnet::IpNet;
use reqwest::Url;

use crate::config::kind::{self, Kind};
use crate::config::secret::PRIVATE_TEXT;
use crate::config::section::section;
use crate::config::server::{ServerConfig, Transport, URL};
use crate::config::{Secret, url};

section! {
    /// The gateway gets access tokens for a server by OAuth, and sends them as
    /// `Authorization: Bearer`. A program gets them in a file.
    #[derive(Default)]
    pub struct UpstreamOAuth in "servers.NAME.oauth" {
        /// The right that the tokens stand for. `"client_credentials"`: the gateway's own, the same
        /// for all tenants. `"authorization_code"`: each tenant's, which a person of the tenant
        /// gives in a browser; needs `sharing = "tenant"`, `public_url` and `secrets.keys`.
        /// `"token_exchange"`: each caller's, whose token of `[auth.oauth]` is exchanged (RFC
        /// 8693); `"id_jag"`: the same by an assertion of the identity provider (ID-JAG). Both need
        /// `sharing = "tenant"`, and take no callers with an API key.
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
        /// Resource that the tokens are for (RFC 8707). Unset: the name that the server's metadata
        /// have, if they are asked, else its `url`.
        resource: Option<String>, kind::TEXT;
        /// With `grant = "token_exchange"`: name of the server at the authorization server, sent as
        /// `audience`. Unset: `resource` alone says it.
        audience: Option<String>, kind::TEXT;
        /// Type of the callers' tokens, as the authorization server is told: `"access_token"`,
        /// `"id_token"` or `"jwt"`. Unset: `"access_token"`, with `grant = "id_jag"` `"id_token"`.
        subject_type: Option<SubjectType>, SUBJECT_TYPE;
        /// With `grant = "id_jag"`: the provider of callers' tokens, and the gateway as its client.
        identity_provider: Option<Box<IdentityProvider>>,
            Kind::Section(&IdentityProvider::SECTION);
        /// For a program: variable that gets the path of a file with the token. The file is
        /// replaced before the token ends.
        variable: Option<String>, VARIABLE;
        /// Networks that addresses found in metadata may lead to although they are not public,
        /// such as `["10.1.0.0/16"]`. Addresses in the configuration may lead anywhere.
        networks: Vec<IpNet> = [], kind::NETWORKS;
    }
}

/// The right that tokens for a server stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// The gateway's own.
    #[default]
    ClientCredentials,
    /// The right of a tenant, who has agreed in a browser.
    AuthorizationCode,
    /// The right of a caller, whose token is exchanged.
    TokenExchange,
    /// The right of a caller, by an assertion of its identity provider.
    IdJag,
}

const GRANT: Kind = kind::of::<Grant>(
    "\"client_credentials\", \"authorization_code\", \"token_exchange\" or \"id_jag\"",
);

impl Grant {
    /// Returns whether each caller has tokens of its own.
    pub fn is_of_callers(self) -> bool {
        matches!(self, Self::TokenExchange | Self::IdJag)
    }
}

/// The type of a caller's token (RFC 8693, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubjectType {
    AccessToken,
    IdToken,
    Jwt,
}

const SUBJECT_TYPE: Kind = kind::of::<SubjectType>("\"access_token\", \"id_token\" or \"jwt\"");

impl SubjectType {
    /// Returns the name that RFC 8693 gives it.
    pub fn urn(self) -> &'static str {
        match self {
            Self::AccessToken => "urn:ietf:params:oauth:token-type:access_token",
            Self::IdToken => "urn:ietf:params:oauth:token-type:id_token",
            Self::Jwt => "urn:ietf:params:oauth:token-type:jwt",
        }
    }
}

section! {
    /// The identity provider that asserts to other authorization servers who a caller is (ID-JAG).
    pub struct IdentityProvider in "servers.NAME.oauth.identity_provider" {
        /// Name of the provider, whose metadata name its token endpoint.
        #[serde(default, deserialize_with = "optional_url")]
        issuer: Option<Url>, URL;
        /// Address of its token endpoint. Unset: that of its metadata.
        #[serde(default, deserialize_with = "optional_url")]
        token_url: Option<Url>, URL;
        /// Id under which the provider knows the gateway.
        client_id: String, kind::TEXT;
        /// Secret of the gateway, perhaps `${NAME}` or `${file:/path}`. Unset: `private_key`, or
        /// none.
        client_secret: Option<Secret>, PRIVATE_TEXT;
        /// Private key of the gateway, which signs its requests (`private_key_jwt`): PKCS #8 in
        /// PEM. Unset: `client_secret`, or none.
        private_key: Option<Secret>, PRIVATE_TEXT;
        /// Name (`kid`) of `private_key`. Unset: none.
        key_id: Option<String>, kind::TEXT;
    }
}

const VARIABLE: Kind = Kind::Value("the name of a variable, such as \"TOKEN_FILE\"", |node, _| {
    let is_name = |text: &str| !text.is_empty() && !text.contains(['=', '\0']);
    match node.text() {
        Some(text) if is_name(text) => Ok(text.into()),
        _ => Err(format!("it is {}", node.show())),
    }
});

/// The longest scope, and the most of them.
const SCOPE_LEN_MAX: usize = 256;
const SCOPES_MAX: usize = 32;

const SCOPES: Kind =
    Kind::Value("a list of at most 32 scopes, such as [\"mcp:read\"]", |node, _| {
        let scope = |item: &crate::config::tree::Node| match item.text() {
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
    /// Returns the type of callers' tokens.
    pub fn subject_type(&self) -> SubjectType {
        let usual = match self.grant {
            Grant::IdJag => SubjectType::IdToken,
            _ => SubjectType::AccessToken,
        };
        self.subject_type.unwrap_or(usual)
    }

    /// Returns the contradiction between settings, if there is one. A program has no address that
    /// could name an authorization server.
    pub(in crate::config) fn contradiction(&self, is_program: bool) -> Option<&'static str> {
        let is_of_tenants = self.grant == Grant::AuthorizationCode;
        let needs_proof = !is_of_tenants;
        match (&self.client_secret, &self.private_key) {
            (Some(_), Some(_)) => Some("has both `client_secret` and `private_key`: give one"),
            (None, None) if needs_proof => Some("needs `client_secret` or `private_key`"),
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
            _ if is_program => self.contradiction_of_program(),
            _ if self.variable.is_some() => {
                Some("has a `variable`, which is for servers that have a `command`")
            }
            _ => self.contradiction_of_callers(),
        }
    }

    fn contradiction_of_program(&self) -> Option<&'static str> {
        if self.variable.is_none() {
            return Some(
                "needs `variable`: a program gets the token in a file, whose path the variable has",
            );
        }
        if self.grant.is_of_callers() {
            return Some(
                "has tokens of each caller, which a program cannot tell apart: they are for \
                 servers that have a `url`",
            );
        }
        (self.issuer.is_none() && self.token_url.is_none())
            .then_some("needs `issuer` or `token_url`: a program has no metadata that name them")
    }

    fn contradiction_of_callers(&self) -> Option<&'static str> {
        let provider = self.identity_provider.as_deref();
        if self.audience.is_some() && self.grant != Grant::TokenExchange {
            return Some("has an `audience`, which is for `grant = \"token_exchange\"`");
        }
        if self.subject_type.is_some() && !self.grant.is_of_callers() {
            return Some(
                "has a `subject_type`, which is for `grant = \"token_exchange\"` and \"id_jag\"",
            );
        }
        match (self.grant, provider) {
            // A server that could name the authorization server would get callers' tokens.
            (Grant::TokenExchange, _) if self.issuer.is_none() && self.token_url.is_none() => Some(
                "needs `issuer` or `token_url`: callers' tokens go to no address that a \
                      server names",
            ),
            (Grant::IdJag, None) => Some("needs an `identity_provider`"),
            (Grant::IdJag, Some(it)) => it.contradiction().or_else(|| {
                (self.token_url.is_some() && self.issuer.is_none())
                    .then_some("has a `token_url` without `issuer`, which assertions name")
            }),
            (_, Some(_)) => Some("has an `identity_provider`, which is for `grant = \"id_jag\"`"),
            (_, None) => None,
        }
    }
}

impl ServerConfig {
    /// Returns how the gateway gets access tokens for the server, if it does.
    pub fn oauth(&self) -> Option<&UpstreamOAuth> {
        match &self.transport {
            Transport::Http(upstream) => upstream.oauth.as_deref(),
            Transport::Stdio(program) => program.oauth.as_deref(),
        }
    }

    /// Returns the server's address, unless it is a program.
    pub fn url(&self) -> Option<&Url> {
        match &self.transport {
            Transport::Http(upstream) => Some(&upstream.url),
            Transport::Stdio(_) => None,
        }
    }

    /// Returns whether the server is called in the name of each caller, with a token of its own.
    pub fn wants_caller_tokens(&self) -> bool {
        self.oauth().is_some_and(|oauth| oauth.grant.is_of_callers())
    }

    /// Returns whether each tenant has to connect itself to the server (OAuth).
    pub fn needs_connection(&self) -> bool {
        self.oauth().is_some_and(|oauth| oauth.grant == Grant::AuthorizationCode)
    }
}

impl IdentityProvider {
    fn contradiction(&self) -> Option<&'static str> {
        if self.issuer.is_none() && self.token_url.is_none() {
            return Some("has an `identity_provider` without `issuer` or `token_url`");
        }
        if self.client_secret.is_some() && self.private_key.is_some() {
            return Some(
                "has an `identity_provider` with both `client_secret` and `private_key`: give one",
            );
        }
        (self.key_id.is_some() && self.private_key.is_none())
            .then_some("has an `identity_provider` with a `key_id` without `private_key`")
    }

    /// Returns the gateway as a client of the provider.
    pub fn as_client(&self, networks: &[IpNet]) -> UpstreamOAuth {
        UpstreamOAuth {
            client_id: Some(self.client_id.clone()),
            client_secret: self.client_secret.clone(),
            private_key: self.private_key.clone(),
            key_id: self.key_id.clone(),
            issuer: self.issuer.clone(),
            token_url: self.token_url.clone(),
            networks: networks.to_vec(),
            ..UpstreamOAuth::default()
        }
    }
}
