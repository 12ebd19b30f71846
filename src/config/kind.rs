//! Kinds of values: what a setting may be, in words and as a check.
//!
//! An error reads "`key` must be ALLOWED, and it is VALUE"; the reference shows ALLOWED, too.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use super::Sources;
use super::section::Section;
use super::tree::{Node, Value};
use crate::common::ids::TenantName;
use crate::common::policy::{CallbackHost, Grant, Pattern, Rate};

/// Longer waits are probably mistakes.
const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Bodies are held in memory.
const SIZES: std::ops::RangeInclusive<i64> = 1 << 10..=1 << 30;

pub(super) enum Kind {
    /// The words follow "must be". The function returns the value as serde reads it, or an error
    /// that follows "must be ALLOWED, and".
    Value(&'static str, fn(Node, &Sources) -> Result<Json, String>),
    /// A whole number from 1 to this.
    Count(u32),
    /// A table that is a section of its own.
    Section(&'static Section),
    /// A table whose keys the operator chooses. `name` returns the key as it is used, or an error
    /// that follows the key.
    Table { name: fn(&str) -> Result<String, String>, entry: &'static Kind },
}

impl Kind {
    pub(super) fn allowed(&self) -> String {
        match self {
            Self::Value(allowed, _) => (*allowed).to_owned(),
            Self::Count(max) => format!("a whole number from 1 to {max}"),
            Self::Section(section) => format!("the table `[{}]`", section.header),
            Self::Table { entry, .. } => format!("a table; each value is {}", entry.allowed()),
        }
    }
}

/// A value that its type checks.
pub(super) const fn of<T: DeserializeOwned>(allowed: &'static str) -> Kind {
    Kind::Value(allowed, |node, _| typed::<T>(&node).ok_or_else(|| it_is(&node)))
}

pub(super) const fn list_of<T: DeserializeOwned>(allowed: &'static str) -> Kind {
    Kind::Value(allowed, |node, _| {
        list(node, |item| typed::<T>(item).ok_or_else(|| format!("is {}", item.show())))
    })
}

pub(super) const FLAG: Kind = of::<bool>("true or false");

pub(super) const DURATION: Kind = Kind::Value(
    "a number with ms, s, min or h, such as \"30s\", longer than 0s and at most \"24h\"",
    |node, _| checked(&node, |text| duration(text).filter(|it| !it.is_zero())),
);

/// A duration that may be zero.
pub(super) const DELAY: Kind =
    Kind::Value("a number with ms, s, min or h, such as \"30s\", at most \"24h\"", |node, _| {
        checked(&node, duration)
    });

/// A number of bytes that are held in memory.
pub(super) const SIZE: Kind = Kind::Value(
    "a size from 1KiB to 1GiB: a number of bytes, or one with KiB, MiB or GiB, such as \"1MiB\"",
    |node, _| {
        let size = bytes(&node).filter(|size| SIZES.contains(size));
        size.map(Json::from).ok_or_else(|| it_is(&node))
    },
);

pub(super) const BYTES: Kind = Kind::Value(
    "a size: a number of bytes, or one with KiB, MiB or GiB, such as \"1MiB\"",
    |node, _| bytes(&node).map(Json::from).ok_or_else(|| it_is(&node)),
);

pub(super) const ADDRESS: Kind = Kind::Value(
    "an IP address and a port, such as \"127.0.0.1:8080\" (of host names, only localhost)",
    |node, _| checked(&node, address),
);

/// An address that another machine can connect to.
pub(super) const PEER_ADDRESS: Kind = Kind::Value(
    "the IP address and port at which other replicas reach this one, such as \"10.0.0.3:8082\"",
    |node, _| {
        let is_usable = |it: &SocketAddr| !it.ip().is_unspecified() && it.port() != 0;
        checked(&node, |text| address(text).filter(is_usable))
    },
);

pub(super) const TEXT: Kind =
    Kind::Value("a text that is not empty", |node, _| checked(&node, not_empty));

pub(super) const COMMAND: Kind = Kind::Value(
    "the program to start, such as \"npx\" (a server over HTTP has a `url` instead)",
    |node, _| checked(&node, not_empty),
);

/// A list of texts. Errors show none of it: arguments are often secret.
pub(super) const ARGUMENTS: Kind =
    Kind::Value("a list of texts, such as [\"--verbose\"]", |node, _| {
        list(node, |item| item.text_or_kind().map(Json::from))
    });

pub(super) const PATHS: Kind = list_of::<String>("a list of paths, such as [\"/srv/data\"]");

pub(super) const PORTS: Kind = list_of::<NonZeroU16>("a list of TCP ports, such as [443]");

pub(super) const RATE: Kind =
    of::<Rate>("a whole number from 1 to 1000000, `/` and `s`, `min` or `h`, such as \"100/s\"");

pub(super) const TENANT: Kind = of::<TenantName>(
    "a tenant id: 1 to 64 characters of A-Z, a-z, 0-9, `-` and `_`, \
     starting with a letter or digit",
);

pub(super) const PATTERNS: Kind = list_of::<Pattern>(
    "a list of servers, such as `search`, or tools, such as `search/query`; \
     `*` stands for any characters",
);

pub(super) const GRANTS: Kind = list_of::<Grant>(
    "a list of servers, such as `search`, tools, such as `search/query`, or toolsets, such as \
     `toolset:research`; `*` stands for any characters",
);

pub(super) const NETWORKS: Kind =
    list_of::<IpNet>("a list of networks, such as [\"10.1.0.0/16\", \"fd00::/8\"]");

pub(super) const CALLBACK_HOSTS: Kind = list_of::<CallbackHost>(
    "a list of host names or addresses without ports, such as [\"hooks.example.com\"], no wildcard",
);

pub(super) fn it_is(node: &Node) -> String {
    format!("it is {}", node.show())
}

/// Checks a text that is not secret.
pub(super) fn checked<T: serde::Serialize>(
    node: &Node,
    check: impl FnOnce(&str) -> Option<T>,
) -> Result<Json, String> {
    node.text().and_then(check).map(|value| json!(value)).ok_or_else(|| it_is(node))
}

/// Reads a list. An error of `read` follows "item 1".
pub(super) fn list(
    node: Node,
    read: impl Fn(&Node) -> Result<Json, String>,
) -> Result<Json, String> {
    match node.untexted().value {
        Value::List(items) => (1..)
            .zip(&items)
            .map(|(number, item)| read(item).map_err(|what| format!("item {number} {what}")))
            .collect(),
        other => Err(format!("it is {}", other.kind())),
    }
}

/// Returns the value as it is written, if its type can be read from it.
fn typed<T: DeserializeOwned>(node: &Node) -> Option<Json> {
    let values = [node.value.to_json(), node.clone().untexted().value.to_json()];
    values.into_iter().find(|value| T::deserialize(value).is_ok())
}

fn not_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => Some((Ipv4Addr::LOCALHOST, port.parse().ok()?).into()),
        None => text.parse().ok(),
    }
}

/// Parses a number with a unit of time, at most 24 hours.
pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text);
    let unit_s = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let duration = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit_s).ok()?;
    (duration <= DURATION_MAX).then_some(duration)
}

fn bytes(node: &Node) -> Option<i64> {
    let (number, unit) = match &node.value {
        Value::Integer(bytes) => return (*bytes >= 0).then_some(*bytes),
        Value::Text(text) => split_unit(text),
        _ => return None,
    };
    let unit: i64 = match unit {
        "" => 1,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    Some(number.parse::<i64>().ok()?.saturating_mul(unit))
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Place, reader};

    fn text(text: &str) -> Node {
        Node::new(Value::Text(text.to_owned()), Place::BuiltIn)
    }

    fn integer(number: i64) -> Node {
        Node::new(Value::Integer(number), Place::BuiltIn)
    }

    fn read<T: DeserializeOwned>(kind: &'static Kind, node: Node) -> Result<T, String> {
        let value = reader::value("key", node, kind, &Sources::default());
        value.map(|value| serde_json::from_value(value).unwrap()).map_err(|it| it.to_string())
    }

    fn error<T: DeserializeOwned + std::fmt::Debug>(kind: &'static Kind, node: Node) -> String {
        read::<T>(kind, node).unwrap_err()
    }

    #[test]
    fn durations_have_a_unit_and_an_end() {
        let ms = |written| read::<Duration>(&DURATION, text(written)).unwrap().as_millis();
        assert_eq!(ms("250ms"), 250);
        assert_eq!(ms("1.5s"), 1_500);
        assert_eq!(ms("5min"), 300_000);
        assert_eq!(ms("24h"), 86_400_000);
        for bad in ["", "s", "30", "30 parsecs", "-1s", "1..5s", ".s", "1e3s", "NaNs", "30S"] {
            let error = error::<Duration>(&DURATION, text(bad));
            assert!(error.contains("ms, s, min or h, such as \"30s\""), "{error}");
            assert!(error.ends_with(&format!(", and it is {bad:?}")), "{error}");
        }
        assert!(error::<Duration>(&DURATION, text("24.1h")).contains("at most \"24h\""));
        assert!(read::<Duration>(&DURATION, text(&format!("{}h", "9".repeat(400)))).is_err());
        assert!(error::<Duration>(&DURATION, integer(30)).ends_with("and it is 30"));
    }

    #[test]
    fn no_time_at_all_is_for_delays_only() {
        assert_eq!(read(&DELAY, text("0s")), Ok(Duration::ZERO));
        assert!(error::<Duration>(&DURATION, text("0ms")).contains("longer than 0s"));
    }

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        let size = |node| read::<usize>(&SIZE, node);
        assert_eq!(size(text("64KiB")), Ok(65_536));
        assert_eq!(size(text("1MiB")), Ok(1 << 20));
        assert_eq!(size(text("1GiB")), Ok(1 << 30));
        assert_eq!(size(text("500KB")), Ok(500_000));
        assert_eq!(size(integer(2048)), Ok(2048));
        assert_eq!(size(text("2048")), Ok(2048));
        for bad in [text("1 MiB"), text("big"), text("1.5MiB"), text(""), integer(-1)] {
            assert!(size(bad.clone()).unwrap_err().contains("KiB, MiB or GiB"));
            assert!(error::<u64>(&BYTES, bad).contains("KiB, MiB or GiB"));
        }
        for bad in [text("2GiB"), text("1023"), integer(0), text("99999999999999999GiB")] {
            assert!(size(bad).unwrap_err().contains("from 1KiB to 1GiB"));
        }
    }

    #[test]
    fn an_address_is_an_ip_and_a_port() {
        let parse = |written| {
            read::<SocketAddr>(&ADDRESS, text(written)).map(|address| address.to_string())
        };
        assert_eq!(parse("0.0.0.0:80"), Ok("0.0.0.0:80".to_owned()));
        assert_eq!(parse("[::1]:8080"), Ok("[::1]:8080".to_owned()));
        assert_eq!(parse("localhost:8080"), Ok("127.0.0.1:8080".to_owned()));
        for bad in ["8080", ":8080", "example.com:80", "127.0.0.1", "localhost", "localhost:x"] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains("such as \"127.0.0.1:8080\"") && error.contains(bad), "{error}");
        }
        assert!(read::<SocketAddr>(&ADDRESS, integer(8080)).is_err());
    }

    #[test]
    fn counts_are_bounded() {
        const COUNT: Kind = Kind::Count(10_000);
        assert_eq!(read(&COUNT, integer(1)), Ok(1));
        assert_eq!(read(&COUNT, integer(10_000)), Ok(10_000));
        for bad in [integer(0), integer(10_001), integer(-1), integer(i64::MAX), text("4")] {
            assert!(error::<u32>(&COUNT, bad).contains("from 1 to 10000"));
        }
    }

    #[test]
    fn a_flag_is_no_word() {
        assert!(error::<bool>(&FLAG, text("yes")).contains("must be true or false"));
    }
}
