//! Divides the descriptors that the system allows between connections and the gateway's own needs.
//!
//! Callers can open as many connections as they like. So connections get what servers, the store,
//! Valkey and other replicas leave, never the other way round: a server can be restarted, and an
//! operator can connect, however many callers there are.

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::config::{Config, ServerConfig, Sharing, Transport};
use crate::http::server::CONNECTIONS_MAX;

/// Twice as many as callers' connections: at most half are reserved.
const DESCRIPTORS_MAX: u64 = 2 * CONNECTIONS_MAX as u64;
/// Runtime, log, listeners, files, and up to 12 connections to the store and 2 to Valkey.
const GATEWAY: u64 = 64;
const OPERATORS_MAX: u64 = 32;
/// Its three streams, and one descriptor each for the gateway and the runtime to notice its end.
const PROCESS: u64 = 5;

/// The most connections of each listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionLimits {
    pub callers: usize,
    pub operators: usize,
    pub replicas: usize,
}

impl ConnectionLimits {
    /// Divides what the system allows now. Reports the result.
    pub fn current(config: &Config) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS_MAX);
        let servers = config.servers.values().map(need).sum();
        let (has_ops, has_replicas) = (config.ops_listen.is_some(), config.replicas.is_some());
        let usable = descriptors.min(DESCRIPTORS_MAX);
        let limits = Self::divide(usable, servers, has_ops, has_replicas);
        let connections = limits.callers;
        if connections < CONNECTIONS_MAX {
            tracing::warn!(
                connections,
                descriptors,
                "callers may have {connections} connections at once, because {descriptors} open \
                 files are allowed; raise `ulimit -n` (`LimitNOFILE`, `--ulimit nofile`) to \
                 {DESCRIPTORS_MAX} for {CONNECTIONS_MAX}"
            );
        } else {
            tracing::info!(connections, descriptors, "connections of callers are bounded");
        }
        limits
    }

    /// At most half is reserved, so that a configuration with more servers than the machine can run
    /// does not keep all callers out.
    fn divide(descriptors: u64, servers: u64, has_ops: bool, has_replicas: bool) -> Self {
        let operators = if has_ops { OPERATORS_MAX.min(descriptors / 16) } else { 0 };
        let replicas = if has_replicas { descriptors / 8 } else { 0 };
        // Each request to another replica takes a connection there and one here.
        let reserved = (GATEWAY + operators + 2 * replicas + servers).min(descriptors / 2);
        let callers = (descriptors - reserved).min(CONNECTIONS_MAX as u64);
        let [callers, operators, replicas] =
            [callers, operators, replicas].map(|most| usize::try_from(most.max(1)).unwrap_or(1));
        Self { callers, operators, replicas }
    }
}

/// Returns the descriptors that a server may need. Counts instances twice: the next may start
/// beside the old.
fn need(server: &ServerConfig) -> u64 {
    let groups = match server.sharing {
        Sharing::Shared => 1,
        Sharing::Tenant => server.max_tenants,
        Sharing::Session => server.max_sessions,
    };
    let instance = match &server.transport {
        Transport::Stdio(_) => PROCESS,
        // A connection for each call, and one for notifications.
        Transport::Http(_) => u64::from(server.max_in_flight) + 1,
    };
    2 * u64::from(groups) * u64::from(server.instances) * instance
}

/// Raises the limit of descriptors: every connection takes one, and the usual limit is 1,024.
pub fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(wanted);
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "the limit of open files stays as it is");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Program;

    fn divide(descriptors: u64, servers: u64) -> [usize; 3] {
        let limits = ConnectionLimits::divide(descriptors, servers, true, true);
        [limits.callers, limits.operators, limits.replicas]
    }

    #[test]
    fn the_usual_limit_serves_all_callers_whatever_else_is_needed() {
        for servers in [0, 10, 1_000_000] {
            assert_eq!(divide(DESCRIPTORS_MAX, servers), [CONNECTIONS_MAX, 32, 4096]);
        }
    }

    #[test]
    fn few_descriptors_are_divided_and_never_promised_twice() {
        assert_eq!(divide(1024, 20), [652, 32, 128]);
        assert_eq!(divide(1024, 4000), [512, 32, 128]);
        assert_eq!(divide(256, 20), [128, 16, 32]);
        for descriptors in [64, 256, 1024, 4096, DESCRIPTORS_MAX] {
            let all: usize = divide(descriptors, 100).iter().sum();
            assert!((all as u64) < descriptors, "{all} of {descriptors}");
        }
        let alone = ConnectionLimits::divide(256, 20, false, false);
        assert_eq!(alone.callers, 256 - 64 - 20);
    }

    #[test]
    fn a_server_needs_its_instances_twice() {
        let mut server = ServerConfig::new(Transport::Stdio(Program::default()));
        assert_eq!(need(&server), 10);
        (server.instances, server.sharing, server.max_tenants) = (2, Sharing::Tenant, 7);
        assert_eq!(need(&server), 140);
    }
}
