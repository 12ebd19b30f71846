//! The section `replicas`: how other gateways that stand for the same one reach this one.

use std::net::SocketAddr;

use super::error::ConfigError;
use super::section::Section;
use super::tree::Node;
use super::values;

const KEYS: &[&str] = &["listen", "address"];

/// How other replicas reach this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// Where it listens for them.
    pub listen: SocketAddr,
    /// What they are told, if that is another address.
    pub address: Option<SocketAddr>,
}

/// Reads the section. Without `listen` the gateway stands alone.
pub(super) fn replicas(
    node: Node,
    has_session_keys: bool,
) -> Result<Option<Replicas>, ConfigError> {
    let place = node.place.clone();
    let mut section = Section::open("replicas", node, KEYS)?;
    let address = section.optional("address", reachable)?;
    let Some(listen) = section.optional("listen", values::address)? else {
        return match address {
            Some(_) => Err(section.missing("listen", "there must be something at `address`")),
            None => Ok(None),
        };
    };
    if !has_session_keys {
        return Err(place.error(
            "`replicas.listen` needs `session_keys`, by which replicas know each other: set \
             `session_keys = [\"${file:/run/secrets/session-key}\"]`, the same in all of them"
                .to_owned(),
        ));
    }
    Ok(Some(Replicas { listen, address }))
}

/// An address that somebody can connect to.
fn reachable(node: Node) -> Result<SocketAddr, String> {
    let address = values::address(node)?;
    if address.ip().is_unspecified() || address.port() == 0 {
        return Err(format!(
            "must be the address and port at which other replicas reach this one, such as \
             \"10.0.0.3:8082\", and it is \"{address}\""
        ));
    }
    Ok(address)
}
