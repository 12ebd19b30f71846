//! Warnings about secrets of tenants that processes of others can read.

use std::collections::BTreeMap;

use super::{Program, ServerConfig, Template, Transport};
use crate::common::ids::ServerId;

/// Warns of each server whose `env` has secrets of tenants that other processes can read.
///
/// Processes of the same user can, unless they have a `sandbox`. Each tenant has a process of its
/// own, so those of the server itself count. `own_program` reads nothing.
pub(super) fn warnings(
    servers: &BTreeMap<ServerId, ServerConfig>,
    own_program: &std::path::Path,
) -> Vec<String> {
    let programs = || servers.iter().filter_map(|(id, server)| Some((id, program(server)?)));
    let mut warnings = vec![];
    for (id, program) in programs().filter(|(_, program)| has_secrets(program)) {
        let can_read = |other: &&Program| {
            other.sandbox.is_none() && other.user == program.user && other.command != own_program
        };
        let readers = programs().filter(|(_, other)| can_read(other));
        let readers: Vec<&str> = readers.map(|(id, _)| id.as_str()).collect();
        if !readers.is_empty() {
            warnings.push(format!(
                "`servers.{id}.env` has secrets of tenants. Processes of the same user without a \
                 `sandbox` can read them: those of `{}`",
                readers.join("`, `")
            ));
        }
    }
    warnings
}

fn program(server: &ServerConfig) -> Option<&Program> {
    match &server.transport {
        Transport::Stdio(program) => Some(program),
        Transport::Http(_) => None,
    }
}

fn has_secrets(program: &Program) -> bool {
    program.env.values().flat_map(Template::secrets).next().is_some()
}
