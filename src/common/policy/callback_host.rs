//! Hosts that callbacks of a tenant may go to.

use std::fmt;
use std::net::Ipv6Addr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const LEN_MAX: usize = 253;

/// Says in the API's description which hosts there are. IPv6 as in RFC 3986.
fn pattern() -> String {
    let group = "[0-9A-Fa-f]{1,4}";
    let byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    let last_two = format!(r"({group}:{group}|{byte}(\.{byte}){{3}})");
    // So many groups after `::`, and at most 7 with those before it.
    let shortened = (0..=5).map(|after| {
        let before = match 4 - after {
            -1 => String::new(),
            more => format!("(({group}:){{0,{more}}}{group})?"),
        };
        format!("{before}::({group}:){{{after}}}{last_two}")
    });
    let forms = [
        format!("({group}:){{6}}{last_two}"),
        format!("(({group}:){{0,5}}{group})?::{group}"),
        format!("(({group}:){{0,6}}{group})?::"),
    ];
    let v6: Vec<_> = forms.into_iter().chain(shortened).collect();
    let v6 = v6.join("|");
    format!(r"^([A-Za-z0-9._-]{{1,{LEN_MAX}}}|{v6}|\[({v6})\])$")
}

/// A host name or an address, as URLs have it: in lower case, IPv6 in brackets. All its ports are
/// meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("pattern" = pattern()))]
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
    use serde_json::json;

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
    fn the_described_pattern_takes_what_is_a_host_and_nothing_else() {
        let pattern = jsonschema::validator_for(&json!({"pattern": pattern()})).unwrap();
        let compare = |text: &str| {
            let is_host = CallbackHost::parse(text).is_ok();
            assert_eq!(pattern.is_valid(&json!(text)), is_host, "{text}");
        };
        let long = "a".repeat(LEN_MAX);
        for host in [&long, &format!("{long}a"), "a.b", "", "a b", "[a]", "[::1", "::1]", "[[::]]"]
        {
            compare(host);
        }
        // Addresses of up to 9 groups: shortened anywhere or nowhere, with an IPv4 end or without.
        for groups in 0..=9 {
            for gap in 0..=groups + 1 {
                for end in ["f", "0:f", "1.2.3.255", "1.2.3.256", "1.2.3.04", "1.2.3", ""] {
                    let (before, after) = (gap.min(groups), groups - gap.min(groups));
                    let part = |len| vec!["0a"; len].join(":");
                    let (head, tail) = (part(before), part(after));
                    let tail = if after > 0 { format!("{tail}:{end}") } else { end.to_owned() };
                    let middle = if gap > groups { ":" } else { "::" };
                    compare(&format!("{head}{middle}{tail}"));
                    compare(&format!("[{head}{middle}{tail}]"));
                }
            }
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
