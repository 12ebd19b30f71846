//! The text that is sealed into the token of a session.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

#[derive(Serialize, Deserialize)]
pub(super) struct SessionToken<'a> {
    pub(super) id: [u8; 16],
    pub(super) expires: u64,
    pub(super) version: &'a str,
    /// Its path below `/mcp`: a server, or a toolset. `None` if it shows all servers.
    #[serde(borrow, rename = "server")]
    pub(super) endpoint: Option<Cow<'a, str>>,
    /// The id of the replica that opened the session.
    pub(super) owner: &'a str,
    /// The address at which other replicas reach the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) address: Option<SocketAddr>,
    #[serde(borrow)]
    pub(super) capabilities: &'a RawValue,
}

impl<'a> SessionToken<'a> {
    /// Returns `None` for a token that has expired.
    pub(super) fn parse(plain: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(plain).ok().filter(|token: &Self| token.expires >= now())
    }
}

/// Returns the seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
