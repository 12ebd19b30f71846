//! Hosts that callbacks of a tenant may go to.

use std::fmt;
use std::net::Ipv6Addr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const LEN_MAX: usize = 253;

/// A host name or an address, as URLs have it: in lower case, IPv6 in brackets. All its ports are
/// meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct CallbackHost(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a host: write a name such as `hooks.example.com`, or an address, without scheme, \
     port and path"
)]
pub struct InvalidCallbackHost(String);

impl CallbackHost {
    pub fn parse(text: &str) -> Result<Self, InvalidCallbackHost> {
        let invalid = || InvalidCallbackHost(text.chars().take(LEN_MAX).collect());
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse::<Ipv6Addr>() {
            return Ok(Self(format!("[{address}]")));
        }
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        if !(1..=LEN_MAX).contains(&text.len()) || !text.bytes().all(is_plain) {
            return Err(invalid());
        }
        Ok(Self(text.to_ascii_lowercase()))
    }

    /// Compares with the host of a parsed URL.
    pub fn is(&self, host: &str) -> bool {
        self.0 == host
    }
}

impl fmt::Display for CallbackHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for CallbackHost {
    type Error = InvalidCallbackHost;

    fn try_from(text: String) -> Result<Self, InvalidCallbackHost> {
        Self::parse(&text)
    }
}

impl From<CallbackHost> for String {
    fn from(host: CallbackHost) -> Self {
        host.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::Url;

    #[test]
    fn a_host_is_compared_as_urls_write_it() {
        for (host, url) in [
            ("Hooks.Example", "https://HOOKS.example:8443/run"),
            ("10.0.0.1", "https://10.0.0.1/"),
            ("10.0.0.1", "https://0x0a.1/"),
            ("::1", "https://[0:0::1]:1/"),
            ("[::1]", "https://[::1]/"),
        ] {
            let url = Url::parse(url).unwrap();
            assert!(CallbackHost::parse(host).unwrap().is(url.host_str().unwrap()), "{host}");
        }
        let other = CallbackHost::parse("hooks.example").unwrap();
        for host in ["hooks.example.evil.example", "ooks.example", "hooks.example."] {
            assert!(!other.is(host), "{host}");
        }
    }

    #[test]
    fn all_else_is_no_host() {
        for bad in ["", "*", "*.example", "a b", "https://a", "a:443", "a/b", "ä.example", "[::1"]
        {
            assert!(CallbackHost::parse(bad).is_err(), "{bad}");
        }
    }
}
