//! What a single setting may be. An error continues the sentence that begins with the key.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::tree::{Node, Value};
use super::{Retry, Sharing, Start};
use crate::common::ids::TenantId;
use crate::common::policy::Rate;

/// Longer waits are more likely a slip than a wish.
const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const SIZE_MIN: u64 = 1 << 10;
/// Bodies are held in memory.
const SIZE_MAX: u64 = 1 << 30;
/// Far more than one process can serve at once; the room is reserved when the server starts.
const IN_FLIGHT_MAX: u32 = 10_000;
/// Copies of one server beyond this are more likely a slip than a wish.
const INSTANCES_MAX: u32 = 64;
/// More processes than one machine is likely to bear.
const SESSIONS_MAX: u32 = 10_000;

/// `127.0.0.1:8080`, `[::1]:8080` or `localhost:8080`.
pub(super) fn address(node: Node) -> Result<SocketAddr, String> {
    let text = node.text().unwrap_or_default();
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    if let Some(port) = local {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    text.parse().map_err(|_| {
        format!(
            "must be an IP address and a port, such as \"127.0.0.1:8080\", and it is {}; \
             of host names only localhost is understood",
            show(&node)
        )
    })
}

/// A duration that is not zero.
pub(super) fn duration(node: Node) -> Result<Duration, String> {
    let shown = show(&node);
    match duration_or_zero(node)? {
        Duration::ZERO => Err(format!("must be longer than nothing, and it is {shown}")),
        duration => Ok(duration),
    }
}

/// A number with a unit, such as `250ms`, `1.5s`, `5min` or `1h`.
pub(super) fn duration_or_zero(node: Node) -> Result<Duration, String> {
    let parsed = node.text().and_then(|text| {
        let (number, unit) = split_unit(text);
        let unit_s = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "min" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        number.parse::<f64>().ok().map(|number| number * unit_s)
    });
    let Some(seconds) = parsed else {
        return Err(format!(
            "is {}, which is not a duration: write a number with ms, s, min or h, such as \"30s\"",
            show(&node)
        ));
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if duration <= DURATION_MAX => Ok(duration),
        _ => Err(format!("must be at most \"24h\", and it is {}", show(&node))),
    }
}

/// A number of bytes that are held in memory, alone or with a unit, such as `64KiB`.
pub(super) fn size(node: Node) -> Result<usize, String> {
    let shown = show(&node);
    let bytes = bytes(node)?;
    if !(SIZE_MIN..=SIZE_MAX).contains(&bytes) {
        return Err(format!("must be from 1KiB to 1GiB, and it is {shown}"));
    }
    Ok(usize::try_from(bytes).expect("at most 1GiB"))
}

/// Any number of bytes.
pub(super) fn bytes(node: Node) -> Result<u64, String> {
    let bytes = match &node.value {
        Value::Integer(bytes) => u64::try_from(*bytes).ok(),
        Value::Text(text) => parse_size(text),
        _ => None,
    };
    bytes.ok_or_else(|| {
        format!(
            "is {}, which is not a size: write a number with KiB, MiB or GiB, such as \"1MiB\", or a number of bytes",
            show(&node)
        )
    })
}

fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text);
    let unit: u64 = match unit {
        "" => 1,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok().map(|number| number.saturating_mul(unit))
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(end)
}

/// A tenant's id.
pub(super) fn tenant(node: Node) -> Result<TenantId, String> {
    let Some(text) = node.text() else {
        return Err(format!("must be a tenant id, such as \"local\", and it is {}", show(&node)));
    };
    TenantId::parse(text).map_err(|error| format!("is no tenant: {error}"))
}

/// A text that is not empty.
pub(super) fn text(node: &Node) -> Result<String, String> {
    match node.text() {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        Some(_) => Err("must not be empty".to_owned()),
        None => Err(format!("must be a text, and it is {}", node.kind())),
    }
}

/// A list of ports.
pub(super) fn ports(node: Node) -> Result<Vec<u16>, String> {
    let node = node.untexted();
    let wrong = |shown| format!("must be a list of ports, such as [443], and {shown}");
    let Value::List(items) = node.value else {
        return Err(wrong(format!("it is {}", node.kind())));
    };
    let port = |item: Node| match item.value {
        Value::Integer(port) => u16::try_from(port).ok().filter(|port| *port > 0),
        _ => None,
    };
    let ports: Option<Vec<u16>> = items.into_iter().map(port).collect();
    ports.ok_or_else(|| wrong("one of them is none".to_owned()))
}

/// A program or a directory.
pub(super) fn path(node: Node) -> Result<PathBuf, String> {
    text(&node).map(PathBuf::from)
}

/// A list of texts. Errors do not show them: keys are often passed as arguments.
pub(super) fn texts(node: Node, example: &str) -> Result<Vec<String>, String> {
    let node = node.untexted();
    let wrong = |kind| format!("must be a list of texts, such as [{example:?}], and {kind}");
    let Value::List(items) = node.value else {
        return Err(wrong(format!("it is {}", node.kind())));
    };
    let text = |(index, item): (usize, Node)| match item.value {
        Value::Text(text) => Ok(text),
        _ => Err(wrong(format!("item {} is {}", index + 1, item.kind()))),
    };
    items.into_iter().enumerate().map(text).collect()
}

/// A program's arguments.
pub(super) fn arguments(node: Node) -> Result<Vec<String>, String> {
    texts(node, "--verbose")
}

/// How many calls may be under way at once.
pub(super) fn in_flight(node: Node) -> Result<u32, String> {
    count(node, IN_FLIGHT_MAX)
}

/// How many sessions or tenants may have a process of their own at once.
pub(super) fn sessions(node: Node) -> Result<u32, String> {
    count(node, SESSIONS_MAX)
}

/// A whole number that is not zero.
pub(super) fn count(node: Node, max: u32) -> Result<u32, String> {
    let node = node.untexted();
    let number = match node.value {
        Value::Integer(number) => u32::try_from(number).ok(),
        _ => None,
    };
    number
        .filter(|number| (1..=max).contains(number))
        .ok_or_else(|| format!("must be a whole number from 1 to {max}, and it is {}", show(&node)))
}

/// When a server is started.
pub(super) fn start(node: Node) -> Result<Start, String> {
    match node.text() {
        Some("eager") => Ok(Start::Eager),
        Some("lazy") => Ok(Start::Lazy),
        _ => Err(format!("must be \"eager\" or \"lazy\", and it is {}", show(&node))),
    }
}

/// How many copies to run.
pub(super) fn instances(node: Node) -> Result<u32, String> {
    count(node, INSTANCES_MAX)
}

/// Who shares a child.
pub(super) fn sharing(node: Node) -> Result<Sharing, String> {
    match node.text() {
        Some("shared") => Ok(Sharing::Shared),
        Some("tenant") => Ok(Sharing::Tenant),
        Some("session") => Ok(Sharing::Session),
        _ => {
            Err(format!("must be \"shared\", \"tenant\" or \"session\", and it is {}", show(&node)))
        }
    }
}

/// What is tried again.
pub(super) fn retry(node: Node) -> Result<Retry, String> {
    match node.text() {
        Some("never") => Ok(Retry::Never),
        Some("safe") => Ok(Retry::Safe),
        _ => Err(format!("must be \"never\" or \"safe\", and it is {}", show(&node))),
    }
}

/// Yes or no.
pub(super) fn flag(node: Node) -> Result<bool, String> {
    let node = node.untexted();
    match node.value {
        Value::Flag(flag) => Ok(flag),
        _ => Err(format!("must be true or false, and it is {}", show(&node))),
    }
}

/// So many in such a time.
pub(super) fn rate(node: Node) -> Result<Rate, String> {
    let text = node
        .text()
        .ok_or_else(|| format!("must be a text such as \"100/s\", and it is {}", node.kind()))?;
    text.parse().map_err(|error| format!("cannot be used: {error}"))
}

/// The value, for errors of settings that are never secret.
pub(super) fn show(node: &Node) -> String {
    match &node.value {
        Value::Text(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        _ => node.kind().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::Place;
    use super::*;

    fn text(text: &str) -> Node {
        Node::new(Value::Text(text.to_owned()), Place::BuiltIn)
    }

    fn integer(number: i64) -> Node {
        Node::new(Value::Integer(number), Place::BuiltIn)
    }

    #[test]
    fn durations_have_a_unit_and_an_end() {
        let ms = |written| duration(text(written)).unwrap().as_millis();
        assert_eq!(ms("250ms"), 250);
        assert_eq!(ms("1.5s"), 1_500);
        assert_eq!(ms("5min"), 300_000);
        assert_eq!(ms("24h"), 86_400_000);
        for bad in ["", "s", "30", "30 parsecs", "-1s", "1..5s", ".s", "1e3s", "NaNs", "30S"] {
            let error = duration(text(bad)).unwrap_err();
            assert!(error.contains("ms, s, min or h, such as \"30s\""), "{error}");
        }
        assert!(duration(text("24.1h")).unwrap_err().contains("at most \"24h\""));
        assert!(duration(text(&format!("{}h", "9".repeat(400)))).is_err());
        assert!(duration(integer(30)).unwrap_err().contains("is 30, which is not a duration"));
    }

    #[test]
    fn no_time_at_all_is_for_delays_only() {
        assert_eq!(duration_or_zero(text("0s")), Ok(Duration::ZERO));
        assert!(duration(text("0ms")).unwrap_err().contains("longer than nothing"));
    }

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        assert_eq!(size(text("64KiB")), Ok(65_536));
        assert_eq!(size(text("1MiB")), Ok(1 << 20));
        assert_eq!(size(text("1GiB")), Ok(1 << 30));
        assert_eq!(size(text("500KB")), Ok(500_000));
        assert_eq!(size(integer(2048)), Ok(2048));
        assert_eq!(size(text("2048")), Ok(2048));
        for bad in [text("1 MiB"), text("big"), text("1.5MiB"), text(""), integer(-1)] {
            assert!(size(bad).unwrap_err().contains("KiB, MiB or GiB"));
        }
        for bad in [text("2GiB"), text("1023"), integer(0), text("99999999999999999GiB")] {
            assert!(size(bad).unwrap_err().contains("from 1KiB to 1GiB"));
        }
    }

    #[test]
    fn an_address_is_an_ip_and_a_port() {
        let parse = |written| address(text(written)).map(|address| address.to_string());
        assert_eq!(parse("0.0.0.0:80"), Ok("0.0.0.0:80".to_owned()));
        assert_eq!(parse("[::1]:8080"), Ok("[::1]:8080".to_owned()));
        assert_eq!(parse("localhost:8080"), Ok("127.0.0.1:8080".to_owned()));
        for bad in ["8080", ":8080", "example.com:80", "127.0.0.1", "localhost", "localhost:x"] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains("such as \"127.0.0.1:8080\"") && error.contains(bad), "{error}");
        }
        assert!(address(integer(8080)).is_err());
    }

    #[test]
    fn calls_at_once_are_bounded() {
        assert_eq!(in_flight(integer(1)), Ok(1));
        assert_eq!(in_flight(integer(10_000)), Ok(10_000));
        for bad in [integer(0), integer(10_001), integer(-1), integer(i64::MAX), text("4")] {
            assert!(in_flight(bad.clone()).unwrap_err().contains("from 1 to 10000"));
            assert!(sessions(bad).unwrap_err().contains("from 1 to 10000"));
        }
    }

    #[test]
    fn words_are_those_that_are_allowed() {
        assert_eq!(instances(integer(64)), Ok(64));
        assert!(instances(integer(65)).unwrap_err().contains("from 1 to 64"));
        assert!(sharing(text("all")).unwrap_err().contains("\"tenant\" or \"session\""));
        assert!(start(text("now")).unwrap_err().contains("\"eager\" or \"lazy\""));
        assert!(retry(text("always")).unwrap_err().contains("\"never\" or \"safe\""));
        assert!(flag(text("yes")).unwrap_err().contains("must be true or false"));
    }
}
