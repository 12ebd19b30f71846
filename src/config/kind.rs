//! Kinds of values: what a setting may be, in words and as a check.
//!
//! An error reads "`key` must be ALLOWED, and it is VALUE"; the reference shows ALLOWED, too.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::Sources;
use super::tree::{Node, Table, Value};

/// Longer waits are probably mistakes.
const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Bodies are held in memory.
const SIZES: std::ops::RangeInclusive<i64> = 1 << 10..=1 << 30;

#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// Follows "must be".
    pub(super) allowed: fn() -> String,
    /// Whether the value may be secret, so that errors must not show it.
    pub(super) is_hidden: bool,
    /// For tables whose keys the operator chooses: the kind of each entry.
    pub(super) entry: Option<&'static Kind>,
    /// Turns the written value into one that serde reads. The error follows "must be ALLOWED, and".
    pub(super) read: fn(Node, &Sources) -> Result<Value, String>,
}

impl Kind {
    /// Leaves the check to the type's own `Deserialize`.
    pub(super) const fn of_type(allowed: fn() -> String) -> Self {
        Self { allowed, is_hidden: false, entry: None, read: |node, _| Ok(node.value) }
    }

    pub(super) const fn read_by(self, read: fn(Node, &Sources) -> Result<Value, String>) -> Self {
        Self { read, ..self }
    }

    /// Keeps the value out of errors.
    pub(super) const fn hidden(self) -> Self {
        Self { is_hidden: true, ..self }
    }

    pub(super) fn show(&self, node: &Node) -> String {
        if self.is_hidden { node.value.kind().to_owned() } else { node.show() }
    }
}

pub(super) const FLAG: Kind = Kind::of_type(|| "true or false".to_owned());

pub(super) const TABLE: Kind = Kind::of_type(|| "a table".to_owned()).hidden();

pub(super) const fn table_of(entry: &'static Kind) -> Kind {
    Kind { entry: Some(entry), ..TABLE }
}

pub(super) const fn count<const MAX: u32>() -> Kind {
    let kind = Kind::of_type(|| format!("a whole number from 1 to {MAX}"));
    kind.read_by(|node, _| match node.clone().untexted().value {
        Value::Integer(number) if (1..=i64::from(MAX)).contains(&number) => {
            Ok(Value::Integer(number))
        }
        _ => Err(format!("it is {}", node.show())),
    })
}

pub(super) const DURATION: Kind = Kind::of_type(|| {
    "a number with ms, s, min or h, such as \"30s\", longer than 0s and at most \"24h\"".to_owned()
})
.read_by(|node, _| checked(&node, |text| duration(text).filter(|it| !it.is_zero()).map(seconds)));

/// A duration that may be zero.
pub(super) const DELAY: Kind =
    Kind::of_type(|| "a number with ms, s, min or h, such as \"30s\", at most \"24h\"".to_owned())
        .read_by(|node, _| checked(&node, |text| duration(text).map(seconds)));

/// A number of bytes that are held in memory.
pub(super) const SIZE: Kind = Kind::of_type(|| {
    "a size from 1KiB to 1GiB: a number of bytes, or one with KiB, MiB or GiB, such as \"1MiB\""
        .to_owned()
})
.read_by(|node, _| {
    let size = bytes(&node).filter(|size| SIZES.contains(size));
    size.map(Value::Integer).ok_or_else(|| format!("it is {}", node.show()))
});

pub(super) const BYTES: Kind = Kind::of_type(|| {
    "a size: a number of bytes, or one with KiB, MiB or GiB, such as \"1MiB\"".to_owned()
})
.read_by(|node, _| {
    bytes(&node).map(Value::Integer).ok_or_else(|| format!("it is {}", node.show()))
});

pub(super) const ADDRESS: Kind = Kind::of_type(|| {
    "an IP address and a port, such as \"127.0.0.1:8080\" (of host names, only localhost)"
        .to_owned()
})
.read_by(|node, _| checked(&node, |text| address(text).map(text_of)));

/// An address that another machine can connect to.
pub(super) const PEER_ADDRESS: Kind = Kind::of_type(|| {
    "the IP address and port at which other replicas reach this one, such as \"10.0.0.3:8082\""
        .to_owned()
})
.read_by(|node, _| {
    let is_usable = |it: &SocketAddr| !it.ip().is_unspecified() && it.port() != 0;
    checked(&node, |text| address(text).filter(is_usable).map(text_of))
});

pub(super) const TEXT: Kind = Kind::of_type(|| "a text that is not empty".to_owned())
    .read_by(|node, _| checked(&node, not_empty));

pub(super) const COMMAND: Kind = Kind::of_type(|| {
    "the program to start, such as \"npx\" (a server over HTTP has a `url` instead)".to_owned()
})
.read_by(|node, _| checked(&node, not_empty));

/// A list of texts that may be secrets: keys are often passed as arguments.
pub(super) const ARGUMENTS: Kind =
    Kind::of_type(|| "a list of texts, such as [\"--verbose\"]".to_owned()).hidden();

pub(super) const PATHS: Kind =
    Kind::of_type(|| "a list of paths, such as [\"/srv/data\"]".to_owned());

pub(super) const PORTS: Kind =
    Kind::of_type(|| "a list of TCP ports from 1 to 65535, such as [443]".to_owned()).read_by(
        |node, _| match node.untexted().value {
            Value::List(items) if items.iter().any(|item| item.show() == "0") => {
                Err("one of them is 0".to_owned())
            }
            value => Ok(value),
        },
    );

pub(super) const RATE: Kind = Kind::of_type(|| "a rate, such as \"100/s\"".to_owned());

pub(super) const TENANT: Kind = Kind::of_type(|| "a tenant id, such as \"local\"".to_owned());

pub(super) const PATTERNS: Kind =
    Kind::of_type(|| "a list of patterns, such as [\"std\", \"search/*\"]".to_owned());

/// Checks a text that is not secret.
pub(super) fn checked(
    node: &Node,
    check: impl FnOnce(&str) -> Option<Value>,
) -> Result<Value, String> {
    node.text().and_then(check).ok_or_else(|| format!("it is {}", node.show()))
}

fn not_empty(text: &str) -> Option<Value> {
    (!text.is_empty()).then(|| Value::Text(text.to_owned()))
}

fn text_of(value: impl ToString) -> Value {
    Value::Text(value.to_string())
}

fn address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => Some((Ipv4Addr::LOCALHOST, port.parse().ok()?).into()),
        None => text.parse().ok(),
    }
}

fn duration(text: &str) -> Option<Duration> {
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

/// Returns a duration in the form that serde reads.
fn seconds(duration: Duration) -> Value {
    let part = |key: &str, number: u64| {
        let number = Value::Integer(number.try_into().expect("at most a day"));
        (key.to_owned(), Node::built_in(number))
    };
    let nanos = part("nanos", duration.subsec_nanos().into());
    Value::Table(Table::from([part("secs", duration.as_secs()), nanos]))
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
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::config::reader;

    fn text(text: &str) -> Node {
        Node::built_in(Value::Text(text.to_owned()))
    }

    fn integer(number: i64) -> Node {
        Node::built_in(Value::Integer(number))
    }

    fn read<T: DeserializeOwned>(kind: &'static Kind, node: Node) -> Result<T, String> {
        reader::read_value("key", node, kind, &Sources::default()).map_err(|it| it.to_string())
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
        const COUNT: Kind = count::<10_000>();
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
