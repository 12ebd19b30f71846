//! Names as browsers send them: a site in `Origin`, and the gateway itself in `Host`.
//!
//! Configuration and requests are read as the same types, so that both are compared alike.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Deserializer, de};

use super::kind::{Kind, list_of};

/// A host, perhaps with a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// In lower case; an IPv6 address without its brackets, in its usual spelling.
    name: String,
    port: Option<u16>,
}

/// The site that a web page is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebOrigin {
    /// In lower case.
    scheme: String,
    /// Without a port that the scheme implies.
    host: Host,
}

impl Host {
    /// Parses `name`, `name:port`, `[address]` or `[address]:port`.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, rest) = if let Some(text) = text.strip_prefix('[') {
            let (address, rest) = text.split_once(']')?;
            (address.parse::<Ipv6Addr>().ok()?.to_string(), rest)
        } else {
            let (name, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
            (plain_name(name)?, rest)
        };
        let port = match rest.strip_prefix(':') {
            Some(digits) => Some(port(digits)?),
            None if rest.is_empty() => None,
            None => return None,
        };
        Some(Self { name, port })
    }

    /// Returns whether this is a name that every machine has for itself.
    pub fn is_loopback(&self) -> bool {
        let address = self.name.parse::<IpAddr>();
        self.name == "localhost"
            || address.is_ok_and(|address| address.to_canonical().is_loopback())
    }

    /// Returns whether `asked` is this host. A host without a port includes all its ports.
    pub fn includes(&self, asked: &Self) -> bool {
        let right_port = match (self.port, asked.port) {
            (None, _) => true,
            // Clients leave out the port that the scheme implies, and the scheme is unknown here.
            (Some(port), None) => port == 80 || port == 443,
            (Some(port), Some(asked)) => port == asked,
        };
        right_port && self.name == asked.name
    }
}

impl WebOrigin {
    /// Parses `scheme://host` or `scheme://host:port`; nothing may follow.
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, host) = text.split_once("://")?;
        let mut host = Host::parse(host)?;
        let scheme = scheme.to_ascii_lowercase();
        if scheme.is_empty() {
            return None;
        }
        let implied = implied_port(&scheme);
        host.port = host.port.filter(|port| Some(*port) != implied);
        Some(Self { scheme, host })
    }

    /// Returns whether the page is from this host, of whichever scheme.
    pub fn is_of(&self, host: &Host) -> bool {
        let port = host.port.filter(|port| Some(*port) != implied_port(&self.scheme));
        self.host.name == host.name && self.host.port == port
    }

    /// Returns whether the page is from this machine.
    pub fn is_loopback(&self) -> bool {
        self.host.is_loopback()
    }
}

fn implied_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

fn plain_name(name: &str) -> Option<String> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    (!name.is_empty() && name.bytes().all(is_plain)).then(|| name.to_ascii_lowercase())
}

/// Parses digits only: `parse` alone would accept a sign.
fn port(digits: &str) -> Option<u16> {
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

pub(super) const ORIGINS: Kind = list_of::<WebOrigin>(
    "a list of origins, such as [\"https://app.example\"]: http or https, a host, perhaps a port, \
     and nothing after it, no wildcard",
);

pub(super) const HOSTS: Kind = list_of::<Host>(
    "a list of host names, each with or without a port, \
     such as [\"gateway.example\", \"gateway.example:8443\"], no wildcard",
);

impl<'de> Deserialize<'de> for WebOrigin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?)
            .filter(|origin| origin.scheme == "http" || origin.scheme == "https")
            .ok_or_else(|| de::Error::custom("not an origin"))
    }
}

impl<'de> Deserialize<'de> for Host {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("not a host"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same_origin(one: &str, other: &str) -> bool {
        WebOrigin::parse(one).unwrap() == WebOrigin::parse(other).unwrap()
    }

    #[test]
    fn origins_are_the_same_whatever_their_case_and_implied_port() {
        assert!(same_origin("https://app.example", "HTTPS://App.Example:443"));
        assert!(same_origin("http://app.example:80", "http://app.example"));
        assert!(same_origin("http://[::1]:3000", "http://[0:0::1]:3000"));
        assert!(!same_origin("http://app.example", "https://app.example"));
        assert!(!same_origin("http://app.example:443", "https://app.example:443"));
        assert!(!same_origin("http://app.example:8080", "http://app.example"));
        assert!(!same_origin("http://app.example", "http://www.app.example"));
    }

    #[test]
    fn what_is_no_origin_is_not_taken_for_one() {
        for bad in [
            "",
            "null",
            "*",
            "app.example",
            "https://",
            "://app.example",
            "https://*.example",
            "https://app.example/",
            "https://app.example?x",
            "https://me@app.example",
            "https://app.example:",
            "https://app.example:+80",
            "https://app.example:65536",
            "https://[::1",
            "https://[::1]x",
            "https://[app.example]",
            "https://app example",
            "https://äpp.example",
        ] {
            assert_eq!(WebOrigin::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_host_without_a_port_means_all_of_its_ports() {
        let includes =
            |host, asked| Host::parse(host).unwrap().includes(&Host::parse(asked).unwrap());
        assert!(includes("gateway.example", "Gateway.Example:8080"));
        assert!(includes("gateway.example", "gateway.example"));
        assert!(includes("gateway.example:8080", "gateway.example:8080"));
        assert!(includes("gateway.example:443", "gateway.example"));
        assert!(!includes("gateway.example:8080", "gateway.example"));
        assert!(!includes("gateway.example:8080", "gateway.example:8081"));
        assert!(!includes("gateway.example", "gateway.example.evil.example"));
    }

    #[test]
    fn this_machine_has_several_names() {
        let is_loopback = |host| Host::parse(host).unwrap().is_loopback();
        for host in ["localhost", "LOCALHOST:1", "127.1.2.3", "[::1]:80", "[::ffff:127.0.0.1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["localhost.example", "127.0.0.1.example", "10.0.0.1", "[::2]", "127.1"] {
            assert!(!is_loopback(host), "{host}");
        }
        // Pages inside of desktop and mobile programs.
        assert!(WebOrigin::parse("tauri://localhost").unwrap().is_loopback());
    }
}
