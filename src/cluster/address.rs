//! The address at which other replicas reach this one.

use std::io;
use std::net::SocketAddr;

use tokio::net::lookup_host;

#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error(
        "`replicas.address` is not set, and this machine's name, `{name}`, cannot be resolved \
         ({cause}): set `replicas.address` to where other replicas reach this one"
    )]
    Unknown {
        name: String,
        /// Not a `source`: the message contains it already.
        cause: io::Error,
    },
    #[error(
        "`replicas.address` is not set, and this machine's name, `{0}`, has no address that others \
         could reach: set `replicas.address` to where other replicas reach this one"
    )]
    OnlyLocal(String),
}

/// Returns the advertised address: the configured one, else the bound one. If that is unspecified,
/// returns the first reachable address of the machine's name.
pub(super) async fn own(
    advertised: Option<SocketAddr>,
    bound: SocketAddr,
) -> Result<SocketAddr, AddressError> {
    let bound_to_one = (!bound.ip().is_unspecified()).then_some(bound);
    if let Some(address) = advertised.or(bound_to_one) {
        return Ok(address);
    }
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let found = lookup_host((name.as_str(), bound.port())).await;
    match found.map(|found| first(found, bound)) {
        Ok(found) => found.ok_or(AddressError::OnlyLocal(name)),
        Err(cause) => Err(AddressError::Unknown { name, cause }),
    }
}

/// Returns the first address that other replicas can reach, of the family that is bound.
fn first(mut found: impl Iterator<Item = SocketAddr>, bound: SocketAddr) -> Option<SocketAddr> {
    let is_served = |address: &SocketAddr| bound.is_ipv6() || address.is_ipv4();
    let is_local = |address: &SocketAddr| {
        let ip = address.ip().to_canonical();
        ip.is_loopback() || ip.is_unspecified()
    };
    found.find(|address| is_served(address) && !is_local(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn the_configured_address_counts_then_the_bound_one() {
        let (told, bound) = (parse("10.0.0.3:82"), parse("10.0.0.4:80"));
        assert_eq!(own(Some(told), bound).await.unwrap(), told);
        assert_eq!(own(None, bound).await.unwrap(), bound);
    }

    #[test]
    fn the_first_reachable_address_of_a_machine_counts() {
        let found = ["127.0.1.1:80", "[::1]:80", "[fd00::2]:80", "10.0.0.2:80", "10.0.0.3:80"];
        let found = found.map(parse);
        assert_eq!(first(found.into_iter(), parse("0.0.0.0:80")), Some(found[3]));
        assert_eq!(first(found.into_iter(), parse("[::]:80")), Some(found[2]));
        assert_eq!(first(found[..2].iter().copied(), parse("[::]:80")), None);
    }
}
