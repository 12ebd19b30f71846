//! The line that closes a start: which servers are ready, which are not and why, and the addresses
//! to use.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::backend::{Backend, RunState};
use crate::common::ids::ServerId;
use crate::config::{Config, Start};
use crate::registry::Registry;
use crate::tenants::Tenant;

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Servers that are named with their reasons; further ones are counted.
const NAMED_MAX: usize = 5;

/// Waits until every server has been tried, and logs the line.
pub(super) async fn announce(
    registry: Registry,
    callers: SocketAddr,
    ops: Option<SocketAddr>,
    link: Option<String>,
) {
    while !registry.is_settled() {
        sleep(LOOK_EVERY).await;
    }
    let eager: Vec<_> =
        registry.shared().filter(|server| server.config().start == Start::Eager).collect();
    let broken: Vec<_> = eager.iter().filter_map(|server| broken(server)).collect();
    let (ready, all) = (eager.len() - broken.len(), eager.len());
    let url = format!("http://{}", on_this_machine(callers));
    let dashboard = on_this_machine(ops.unwrap_or(callers));
    // After `#`: no log of a proxy has it, and neither has any request.
    let link = link.map(|token| format!("#link={token} (opens once)")).unwrap_or_default();
    tracing::info!(
        ready,
        servers = all,
        "ready: {ready} of {all} servers{}; REST at {url}/v1, MCP at {url}/mcp, live page at \
         http://{dashboard}/dashboard{link}",
        describe(&broken)
    );
}

/// Warns of tenants of the store whose grants or limits match no server. Those of the file are
/// warned of where it is read.
pub(super) fn warn_without_effect(tenants: &[Arc<Tenant>], config: &Config) {
    let servers: Vec<&str> = config.servers.keys().map(ServerId::as_str).collect();
    if servers.is_empty() {
        return;
    }
    let of_store = tenants.iter().filter(|it| !config.tenants.contains_key(it.id.name()));
    let problems: Vec<_> = of_store
        .flat_map(|tenant| {
            let problems = tenant.policy.without_effect(&servers).into_iter();
            problems.map(|problem| format!("tenant `{}`: {problem}", tenant.id.name()))
        })
        .collect();
    for problem in problems.iter().take(NAMED_MAX) {
        tracing::warn!("{problem}");
    }
    if let Some(more) = problems.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        tracing::warn!("{more} more grants and limits of tenants match no server");
    }
}

/// Returns the id of a server that is not ready, and why.
fn broken(server: &Backend) -> Option<(String, String)> {
    let state = server.state();
    if matches!(state, RunState::Ready(_)) {
        return None;
    }
    let reason = server.down().and_then(|down| down.reason);
    let reason = reason.map_or_else(|| state.as_str().to_owned(), |reason| reason.to_string());
    Some((server.id().to_string(), reason))
}

fn describe(broken: &[(String, String)]) -> String {
    if broken.is_empty() {
        return String::new();
    }
    let named = broken.iter().take(NAMED_MAX).map(|(id, reason)| format!("`{id}`: {reason}"));
    let mut text = format!(" (not {}", named.collect::<Vec<_>>().join("; "));
    if let Some(more) = broken.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        text += &format!("; and {more} more");
    }
    text + ")"
}

/// Returns the address by which a listener is reached from its own machine.
pub fn on_this_machine(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_addresses_is_reached_by_loopback() {
        for (listen, reached) in [
            ("0.0.0.0:8080", "127.0.0.1:8080"),
            ("[::]:8080", "[::1]:8080"),
            ("192.0.2.7:80", "192.0.2.7:80"),
        ] {
            let listen = listen.parse().unwrap();
            assert_eq!(on_this_machine(listen).to_string(), reached);
        }
    }

    #[test]
    fn many_broken_servers_are_counted() {
        let broken = |number: u32| (format!("s{number}"), "no luck".to_owned());
        assert_eq!(describe(&[]), "");
        assert_eq!(describe(&[broken(0), broken(1)]), " (not `s0`: no luck; `s1`: no luck)");
        let many: Vec<_> = (0..7).map(broken).collect();
        assert!(describe(&many).ends_with("`s4`: no luck; and 2 more)"));
    }
}
