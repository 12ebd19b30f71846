//! The addresses that requests may reach whose host another party names. A name may lead to any
//! address, and to another one each time it is looked up. Addresses are checked when they are
//! dialled, not before.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::net::lookup_host;

/// Looks up the addresses of a host.
pub type Lookup =
    Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// The addresses that may be dialled: public ones, and those of networks that the operator allows.
#[derive(Clone)]
pub struct Allowed {
    networks: Arc<[IpNet]>,
    has_public: bool,
}

impl Allowed {
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self { networks: networks.into(), has_public: true }
    }

    /// Returns the addresses of the operator's networks alone.
    pub fn without_public(&self) -> Self {
        Self { has_public: false, ..self.clone() }
    }

    pub fn includes(&self, address: IpAddr) -> bool {
        let address = unwrapped(address);
        self.networks.iter().any(|network| network.contains(&address))
            || self.has_public
                && match address {
                    IpAddr::V4(address) => is_public_v4(address),
                    IpAddr::V6(address) => is_public_v6(address),
                }
    }
}

/// Resolves names to addresses that may be dialled.
pub struct CheckedResolver {
    pub lookup: Lookup,
    pub allowed: Allowed,
}

#[derive(Debug, thiserror::Error)]
#[error("`{host}` has no address that may be reached; private addresses are refused")]
pub struct NoPublicAddress {
    host: String,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (allowed, host) = (self.allowed.clone(), name.as_str().to_owned());
        let found = (self.lookup)(host.clone());
        Box::pin(async move {
            let mut open = found.await?;
            open.retain(|address| allowed.includes(address.ip()));
            if open.is_empty() {
                return Err(NoPublicAddress { host }.into());
            }
            Ok(Box::new(open.into_iter()) as Addrs)
        })
    }
}

/// Looks up hosts as all programs of this machine do.
pub fn system_lookup() -> Lookup {
    Arc::new(|host| Box::pin(async move { Ok(lookup_host((host, 0)).await?.collect()) }))
}

/// Returns the IPv4 address that an IPv6 address stands for: mapped, compatible, translated by
/// NAT64 or tunnelled by 6to4. Networks deliver these to the IPv4 address.
fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => v4(g, h).into(),
        [0, 0, 0, 0, 0, 0] if g != 0 => v4(g, h).into(),
        [0x2002, ..] => v4(b, c).into(),
        _ => address,
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = address.is_private()
        || address.is_loopback()
        // Addresses of machines' metadata services are link-local.
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || matches!(
            (a, b, c),
            // This network, shared by carriers, protocol assignments, relays of 6to4, benchmarks.
            (0, ..) | (100, 64..=127, _) | (192, 0, 0) | (192, 88, 99) | (198, 18..=19, _)
        )
        // Reserved, broadcast included.
        || a >= 240;
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    // All public addresses so far are in 2000::/3.
    let is_global = a & 0xe000 == 0x2000;
    // Documentation, Teredo and other protocol assignments, and documentation again.
    let is_special = (a == 0x2001 && (b < 0x200 || b == 0xdb8)) || (a == 0x3fff && b < 0x1000);
    is_global && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str) -> bool {
        Allowed::new(vec![]).includes(text.parse().unwrap())
    }

    #[test]
    fn public_addresses_are_open() {
        for address in ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::101:101"] {
            assert!(open(address), "{address}");
        }
    }

    #[test]
    fn addresses_of_this_machine_and_its_networks_are_not() {
        for address in [
            "127.0.0.1",
            "127.1.2.3",
            "0.0.0.0",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.100.100.200",
            "192.0.0.192",
            "198.18.0.1",
            "203.0.113.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
        ] {
            assert!(!open(address), "{address}");
        }
    }

    #[test]
    fn an_ipv4_address_in_ipv6_clothes_is_seen() {
        for address in [
            "::ffff:127.0.0.1",
            "::ffff:a9fe:a9fe",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
        ] {
            assert!(!open(address), "{address}");
        }
    }

    #[test]
    fn the_operator_may_open_a_network() {
        let networks = ["10.1.0.0/16".parse().unwrap(), "::1/128".parse().unwrap()];
        let allowed = Allowed::new(networks.to_vec());
        let open = |text: &str| allowed.includes(text.parse().unwrap());
        assert!(open("10.1.2.3") && open("::ffff:10.1.2.3") && open("::1"));
        assert!(!open("10.2.0.1") && open("1.1.1.1"));
        let without_public = allowed.without_public();
        assert!(without_public.includes("10.1.2.3".parse().unwrap()));
        assert!(!without_public.includes("1.1.1.1".parse().unwrap()));
    }
}
