//! The servers that an endpoint shows, by its path.

use std::borrow::Cow;

use serde::Deserialize;

use crate::common::ids::ServerId;
use crate::protocol::mcp::names;

/// The servers that an endpoint shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    One(String),
    /// The caller's toolset.
    Toolset(String),
}

/// The parameters of an endpoint's path.
#[derive(Deserialize)]
pub(super) struct EndpointPath {
    pub(super) server: Option<String>,
    pub(super) toolset: Option<String>,
}

impl Scope {
    pub(in crate::http::mcp) fn server(&self) -> Option<&str> {
        match self {
            Self::All | Self::Toolset(_) => None,
            Self::One(server) => Some(server),
        }
    }

    /// Returns the path of the endpoint below `/mcp`; `None` for `/mcp` itself.
    pub(in crate::http::mcp) fn path(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::All => None,
            Self::One(server) => Some(server.into()),
            // No server's name has a slash.
            Self::Toolset(toolset) => Some(format!("t/{toolset}").into()),
        }
    }

    /// Names the endpoint in events.
    pub(in crate::http::mcp) fn label(&self) -> Cow<'_, str> {
        match self {
            Self::All => "".into(),
            Self::One(server) => server.into(),
            Self::Toolset(toolset) => format!("toolset:{toolset}").into(),
        }
    }

    pub(in crate::http::mcp) fn shows(&self, server: &ServerId) -> bool {
        self.server().is_none_or(|shown| shown == server.as_str())
    }

    /// Returns a server's URI as the endpoint lists it.
    pub(in crate::http::mcp) fn exposed_uri(&self, server: &str, uri: &str) -> String {
        match self {
            Self::All | Self::Toolset(_) => names::resource_uri(server, uri),
            Self::One(_) => uri.to_owned(),
        }
    }

    /// Returns the server of a URI that the endpoint lists, and the server's own URI.
    pub(in crate::http::mcp) fn split_uri<'a>(
        &'a self,
        uri: &'a str,
    ) -> Option<(&'a str, Cow<'a, str>)> {
        match self {
            Self::All | Self::Toolset(_) => names::split_resource_uri(uri),
            Self::One(server) => Some((server, Cow::Borrowed(uri))),
        }
    }
}
