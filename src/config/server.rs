//! One server, as it is configured.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;

use super::{Host, Template};
use crate::common::policy::Rate;

/// The longest deadline that a caller can ask for.
pub const CALL_MAX: Duration = Duration::from_secs(60 * 60);

/// A server: how to reach it, how much to ask of it, and what to do when it fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// How it is reached.
    pub transport: Transport,
    /// Copies to run, or connections to keep, 1 to 64.
    pub instances: u32,
    /// Calls at once on each of them, 1 to 10,000.
    pub max_in_flight: u32,
    /// Whether to find out how many at once do it good, up to that.
    pub adaptive: bool,
    /// What it may be asked, over all tenants.
    pub rate: Option<Rate>,
    /// Who shares it.
    pub sharing: Sharing,
    /// Whether the operator has said so.
    pub sharing_is_explicit: bool,
    /// Where each session has its own: sessions at once, 1 to 10,000.
    pub max_sessions: u32,
    /// Where each tenant has its own: tenants at once, 1 to 10,000.
    pub max_tenants: u32,
    /// Where each session or tenant has its own: how long one may be unused before it is stopped.
    pub idle_timeout: Duration,
    /// When to start it.
    pub start: Start,
    /// Whether two copies must never run at once, not even while one replaces the other.
    pub exclusive: bool,
    /// When to replace a copy that is well.
    pub recycle: Recycle,
    /// The deadline of calls that name none.
    pub timeout: Duration,
    /// How far progress may move that deadline; without it, not at all.
    pub max_timeout: Option<Duration>,
    /// Whether the server is told how much time a call has left.
    pub tell_deadline: bool,
    /// From spawn to the end of the handshake.
    pub start_timeout: Duration,
    /// Which calls may be tried again.
    pub retry: Retry,
    /// Where they may: the deadline of one attempt. Without it, a third of what the call has.
    pub attempt_timeout: Option<Duration>,
    /// Whether changed tools are held back until they are approved.
    pub pin: bool,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A program of this machine, over its standard input and output.
    Stdio(Program),
    /// Streamable HTTP.
    Http(Upstream),
}

/// A program that speaks MCP over stdio.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// As written, so that a bare name is still to be found on the PATH.
    pub command: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables beyond the few that every child gets.
    pub env: BTreeMap<String, Template>,
    /// Its directory, if not one of its own.
    pub cwd: Option<PathBuf>,
    /// Who runs it, if not whoever runs the gateway.
    pub user: Option<String>,
    /// What it may use.
    pub limits: ChildLimits,
    /// What it may do, if not everything.
    pub sandbox: Option<Sandbox>,
}

/// What a child may use of the machine; what is absent is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildLimits {
    /// Open files.
    pub files: Option<u64>,
    /// The size of a file it writes, in bytes.
    pub file_size: Option<u64>,
    /// Its address space, in bytes.
    pub memory: Option<u64>,
    /// Processes of its user.
    pub processes: Option<u64>,
}

/// What a child may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// Files and directories it may read and execute.
    pub read: Vec<PathBuf>,
    /// Those it may also write.
    pub write: Vec<PathBuf>,
    /// The TCP ports it may connect to; absent: any.
    pub connect: Option<Vec<u16>>,
    /// Whether system calls that no server needs are refused.
    pub syscalls: bool,
    /// Whether to start it all the same where the kernel cannot do that.
    pub optional: bool,
}

/// An MCP server over Streamable HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Its address.
    pub url: Url,
    /// Sent with every request.
    pub headers: BTreeMap<String, Template>,
    /// How long each step of the handshake may take.
    pub init_timeout: Duration,
    /// Other hosts that it may redirect to.
    pub redirect_hosts: Vec<Host>,
}

/// Who shares a server's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// All callers.
    Shared,
    /// The callers of a tenant.
    Tenant,
    /// Nobody: each MCP session has its own.
    Session,
}

/// When to start a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the gateway.
    Eager,
    /// With the first call.
    Lazy,
}

/// When a copy that is well is replaced all the same; what is absent is no reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recycle {
    /// After so many calls.
    pub calls: Option<u64>,
    /// When it is so old.
    pub age: Option<Duration>,
    /// When it and all it started use so much memory, in bytes.
    pub memory: Option<u64>,
}

/// Which calls are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Those that the server never saw.
    Never,
    /// Also those of tools that say they change nothing, or the same again.
    Safe,
}

impl Server {
    /// A server of which nothing else is said.
    pub fn new(transport: Transport) -> Self {
        let mut defaults = super::tree::parse_built_in(super::DEFAULTS);
        let defaults = super::server_defaults(&mut defaults);
        super::servers::with_defaults(transport, &defaults)
    }

    /// How long a call may take that asks for no deadline of its own, at most.
    pub fn usual_call(&self) -> Duration {
        self.timeout.max(self.max_timeout.unwrap_or_default())
    }

    /// How long any call may take.
    pub fn longest_call(&self) -> Duration {
        self.usual_call().max(CALL_MAX)
    }

    /// The names of the tenants' secrets it needs.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let templates = match &self.transport {
            Transport::Stdio(program) => &program.env,
            Transport::Http(upstream) => &upstream.headers,
        };
        templates.values().flat_map(Template::secrets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_longer_than_the_longest_that_callers_or_the_configuration_ask_for() {
        let hours = |hours: u64| Duration::from_secs(hours * 60 * 60);
        let server = Server::new(Transport::Stdio(Program::default()));
        assert!(server.usual_call() < CALL_MAX && server.longest_call() == CALL_MAX);
        let slow = Server { timeout: hours(2), ..server.clone() };
        assert_eq!((slow.usual_call(), slow.longest_call()), (hours(2), hours(2)));
        let patient = Server { max_timeout: Some(hours(3)), ..slow };
        assert_eq!((patient.usual_call(), patient.longest_call()), (hours(3), hours(3)));
    }
}
