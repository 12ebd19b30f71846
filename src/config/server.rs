//! `[servers.*]`: settings of one server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderName;
use serde::Deserialize;

use super::kind::{self, Kind};
use super::secret::{HEADER, TEMPLATE};
use super::section::section;
use super::tree::Node;
use super::web::HOSTS;
use super::{Host, Place, Sources, Template, UpstreamOAuth, reader, url};
use crate::common::policy::Rate;

/// The longest deadline that a caller may name, unless the operator says otherwise.
const MAX_DEADLINE: Duration = Duration::from_secs(5 * 60);

/// Far more than one process can serve at once. Memory for them is reserved at the start.
const IN_FLIGHT_MAX: u32 = 10_000;
/// More instances of one server are probably a mistake.
const INSTANCES_MAX: u32 = 64;
/// More processes than one machine is likely to bear.
const SESSIONS_MAX: u32 = 10_000;

/// Headers that the gateway sets, beside those that begin with `mcp-`.
const RESERVED_HEADERS: [&str; 7] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "transfer-encoding",
];

section! {
    /// A server has these settings beside those of its program or of its `url`. Its name is part of
    /// URLs: at most 32 letters, digits, `-` and `_`, beginning with a letter or digit, without
    /// `__`, not ending in `_`.
    pub struct ServerConfig in "servers.NAME" {
        /// Instances of the program to run, or connections to the `url` to keep. Calls go to the
        /// least busy one. With `sharing = "tenant"` each tenant has as many; a session has one.
        instances: u32 = 1, Kind::Count(INSTANCES_MAX);
        /// Calls at once on each instance. 1 means strictly one after another, in order.
        max_in_flight: u32 = 64, Kind::Count(IN_FLIGHT_MAX);
        /// Whether to find out how many calls at once an instance can use, up to `max_in_flight`.
        adaptive: bool = false, kind::FLAG;
        /// Calls that each replica may send to the server, over all tenants and instances, per s,
        /// min or h. Unset: no limit.
        rate: Option<Rate>, kind::RATE;
        /// Era of MCP to speak with a server that speaks both. `"auto"`: the modern one, and the
        /// legacy one for a session's own instance. Clients of either era are served in any case.
        era: EraChoice = "auto", ERA;
        /// Callers that share an instance. `"shared"`: all. `"tenant"`: those of one tenant.
        /// `"session"`: one MCP session.
        sharing: Sharing = "shared", SHARING;
        /// With `sharing = "session"`: sessions that may have an instance at once.
        max_sessions: u32 = 100, Kind::Count(SESSIONS_MAX);
        /// With `sharing = "session"`: whether callers without a session are served as well, by
        /// `instances` of their tenant's. Each takes one call at a time, so that a question of the
        /// server is about that call, and reaches its client.
        sessionless: bool = false, kind::FLAG;
        /// With `sharing = "tenant"`: tenants that may have instances at once.
        max_tenants: u32 = 100, Kind::Count(SESSIONS_MAX);
        /// With `sharing = "session"` or `"tenant"`: time without calls after which an instance is
        /// stopped. Its session ends with it.
        idle_timeout: Duration = "10min", kind::DURATION;
        /// `"eager"`: the server starts with Trunkline. `"lazy"`: the first call starts it. With
        /// `sharing = "session"` or `"tenant"` callers always start it.
        start: Start = "eager", START;
        /// Whether two instances must never run at once, not even while one replaces the other.
        /// Needs `instances = 1`.
        exclusive: bool = false, kind::FLAG;
        /// When to replace a healthy instance.
        recycle: Recycle = {}, Kind::Section(&Recycle::SECTION);
        /// Deadline of a call whose caller names none.
        timeout: Duration = "30s", kind::DURATION;
        /// Longest deadline that a caller may name. A call may hold one of the server's places so
        /// long. Unset: 5 minutes, or `timeout` if that is more.
        max_deadline: Option<Duration>, kind::DURATION;
        /// Latest deadline to which progress may extend `timeout`, for MCP clients that ask for
        /// progress. Unset: progress extends nothing.
        max_timeout: Option<Duration>, kind::DURATION;
        /// Whether the server is told the milliseconds that a call has left, as
        /// `_meta["trunkline/timeoutMs"]`.
        tell_deadline: bool = false, kind::FLAG;
        /// Whether a tool call that takes longer than `task_after` goes on as an MCP task, for
        /// modern clients that declare the extension. Their calls are recorded in the store.
        tasks: bool = false, kind::FLAG;
        /// With `tasks`: time after which a call becomes a task.
        task_after: Duration = "5s", kind::DURATION;
        /// Time from the start of the program until it is ready. Programs run by npx or uvx may
        /// download first. A server with a `url` has `init_timeout` for each step instead.
        start_timeout: Duration = "60s", kind::DURATION;
        /// Calls to try again when an instance fails. `"never"`: only calls that the instance never
        /// received. `"safe"`: also calls of tools annotated as read-only or idempotent, at most
        /// one call in ten.
        retry: Retry = "never", RETRY;
        /// With `retry = "safe"`: time of one attempt, then another is made. Unset: all that the
        /// call has.
        attempt_timeout: Option<Duration>, kind::DURATION;
        /// Whether arguments are checked against the tool's `inputSchema` before a call is sent.
        validate: bool = false, kind::FLAG;
        /// Whether a tool whose definition has changed is hidden and refused until
        /// `trunkline pin approve`.
        pin: bool = false, kind::FLAG;
    }
    with {
        /// Program or URL.
        transport: Transport,
        /// Whether the operator has set `sharing`.
        sharing_is_explicit: bool,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A program on this machine, over its standard input and output.
    Stdio(Program),
    /// A URL.
    Http(Upstream),
}

section! {
    /// A server that is a program on this machine and speaks MCP over stdio.
    #[derive(Default)]
    pub struct Program in "servers.NAME with a `command`" {
        /// The program, started without a shell. `"trunkline"` is this program itself.
        command: PathBuf, kind::COMMAND;
        /// Arguments of the program.
        args: Vec<String> = [], kind::ARGUMENTS;
        /// Variables of the program. Of Trunkline's own it sees only PATH, HOME, USER, LANG,
        /// LC_ALL, TZ and TMPDIR. `${NAME}` stands for a variable of Trunkline, `${file:/path}` for
        /// the content of a file, `$${` for a plain `${`. `${secret:NAME}` stands for a secret that
        /// each tenant stores; it needs `sharing = "tenant"`.
        env: BTreeMap<String, Template> = {}, VARIABLES;
        /// Directory to start the program in. Unset: a private one, removed when the program ends.
        cwd: Option<PathBuf>, kind::TEXT;
        /// User who runs the program. Unset: the user of Trunkline. Needs the right to change
        /// users.
        user: Option<String>, kind::TEXT;
        /// Limits on the program's use of the machine.
        limits: ChildLimits = {}, Kind::Section(&ChildLimits::SECTION);
        /// Restrictions on the program's actions. Unset: none.
        sandbox: Option<Sandbox>, Kind::Section(&Sandbox::SECTION);
        /// Access tokens that the gateway gets for the program, and keeps in a file. Unset: none.
        oauth: Option<Box<UpstreamOAuth>>, Kind::Section(&UpstreamOAuth::SECTION);
    }
}

section! {
    /// Limits of a program, enforced by the kernel. A limit that is unset does not apply.
    #[derive(Default)]
    pub struct ChildLimits in "servers.NAME.limits" {
        /// Open files.
        files: Option<u64>, Kind::Count(u32::MAX);
        /// Size of a file that the program writes.
        file_size: Option<u64>, kind::BYTES;
        /// Address space.
        memory: Option<u64>, kind::BYTES;
        /// Processes of the program's user.
        processes: Option<u64>, Kind::Count(u32::MAX);
    }
}

section! {
    /// Restrictions enforced by the kernel (Landlock, seccomp). The program sees no paths but those
    /// named here.
    #[derive(Default)]
    pub struct Sandbox in "servers.NAME.sandbox" {
        /// Files and directories that the program may read and execute.
        read: Vec<PathBuf> = [], kind::PATHS;
        /// Files and directories that the program may also write.
        write: Vec<PathBuf> = [], kind::PATHS;
        /// TCP ports that the program may connect to. Unset: any.
        connect: Option<Vec<u16>>, kind::PORTS;
        /// Whether to refuse system calls that no server needs.
        syscalls: bool = true, kind::FLAG;
        /// Whether to start the program even if the kernel cannot enforce the sandbox. Otherwise
        /// the server does not start then.
        optional: bool = false, kind::FLAG;
    }
}

section! {
    /// A server over HTTP.
    pub struct Upstream in "servers.NAME with a `url`" {
        /// Address of the server.
        #[serde(deserialize_with = "url")]
        url: Url, URL;
        /// Transport of the server: `"http"` is Streamable HTTP, `"sse"` the older HTTP+SSE.
        /// `"auto"`: Streamable HTTP, or the older one if the server refuses that.
        transport: UrlTransport = "auto", URL_TRANSPORT;
        /// Headers of every request, such as `Authorization = "Bearer ${TOKEN}"`. Values may have
        /// references as in `env`.
        headers: BTreeMap<String, Template> = {}, HEADERS;
        /// Time for each step of the handshake.
        init_timeout: Duration = "5s", kind::DURATION;
        /// Hosts other than that of the `url` that redirects may lead to. Redirects to any other
        /// host are refused.
        redirect_hosts: Vec<Host> = [], HOSTS;
        /// Access tokens that the gateway gets for the server. Unset: none.
        oauth: Option<Box<UpstreamOAuth>>, Kind::Section(&UpstreamOAuth::SECTION);
    }
}

section! {
    /// Reasons to replace a healthy instance. The next one starts first; the old one ends after its
    /// last call. If calls outlast `timeout` and `max_timeout`, up to four old ones may wait for
    /// theirs. The instance of a session ends with its session, while that has no calls.
    #[derive(Default)]
    pub struct Recycle in "servers.NAME.recycle" {
        /// Number of calls. Unset: no reason.
        calls: Option<u64>, Kind::Count(u32::MAX);
        /// Age, or up to a tenth less, so that not all instances go at once. Unset: no reason.
        age: Option<Duration>, kind::DURATION;
        /// Memory of a program and all that it started, looked at every 15 s. Unset: no reason.
        memory: Option<u64>, kind::BYTES;
    }
}

/// A transport of MCP over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UrlTransport {
    Auto,
    /// Streamable HTTP.
    Http,
    /// HTTP+SSE, of 2024-11-05.
    Sse,
}

const URL_TRANSPORT: Kind = kind::of::<UrlTransport>("\"auto\", \"http\" or \"sse\"");

/// Callers that share an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    Shared,
    Tenant,
    Session,
}

const SHARING: Kind = kind::of::<Sharing>("\"shared\", \"tenant\" or \"session\"");

/// The era of MCP that a server is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EraChoice {
    /// The first that works.
    Auto,
    Modern,
    Legacy,
}

const ERA: Kind = kind::of::<EraChoice>("\"auto\", \"modern\" or \"legacy\"");

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// With the gateway.
    Eager,
    /// With the first call.
    Lazy,
}

const START: Kind = kind::of::<Start>("\"eager\" or \"lazy\"");

/// Calls that are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Retry {
    /// Calls that the server never received.
    Never,
    /// Also calls of tools that are annotated as read-only or idempotent.
    Safe,
}

const RETRY: Kind = kind::of::<Retry>("\"never\" or \"safe\"");

/// An address that the operator chose. Errors do not show it: its query may hold a key.
pub(super) const URL: Kind = Kind::Value(
    "a URL with http or https, such as \"http://127.0.0.1:9000/mcp\", without a user name \
     (credentials go into `headers`)",
    |node, _| {
        let text = node.text().ok_or("it is none")?;
        if !text.contains("://") {
            return Err("it has no scheme: write `http://` or `https://` in front".to_owned());
        }
        let url = Url::parse(text).map_err(|_| "it is none")?;
        match url.scheme() {
            "http" | "https" if url.username().is_empty() && url.password().is_none() => {
                Ok(String::from(url).into())
            }
            "http" | "https" => Err("it has a user name or a password".to_owned()),
            scheme => Err(format!("it begins with `{scheme}:`")),
        }
    },
);

const VARIABLES: Kind = Kind::Table {
    name: |name| match name.is_empty() || name.contains(['=', '\0']) {
        true => Err("is not a variable's name: it must not be empty or contain `=`".to_owned()),
        false => Ok(name.to_owned()),
    },
    entry: &TEMPLATE,
};

const HEADERS: Kind = Kind::Table {
    name: |name| match name.parse::<HeaderName>() {
        Err(_) => Err("is not a header's name".to_owned()),
        Ok(it) if RESERVED_HEADERS.contains(&it.as_str()) || it.as_str().starts_with("mcp-") => {
            Err("is a header that the protocol sets itself".to_owned())
        }
        // In lower case.
        Ok(it) => Ok(it.to_string()),
    },
    entry: &HEADER,
};

impl Default for Transport {
    fn default() -> Self {
        Self::Stdio(Program::default())
    }
}

impl ServerConfig {
    /// Returns a server with all settings at their defaults.
    pub fn new(transport: Transport) -> Self {
        let nothing = Node::table(BTreeMap::new(), Place::BuiltIn);
        let defaults = reader::read("servers", nothing, &Sources::default());
        Self { transport, ..defaults.expect("every default is allowed") }
    }

    /// Returns the longest time that a call may take whose caller names no deadline.
    pub fn usual_call(&self) -> Duration {
        self.timeout.max(self.max_timeout.unwrap_or_default())
    }

    /// Returns the longest deadline that a caller may name.
    pub fn max_deadline(&self) -> Duration {
        self.max_deadline.unwrap_or(self.timeout.max(MAX_DEADLINE))
    }

    /// Returns the longest time that any call may take.
    pub fn longest_call(&self) -> Duration {
        self.usual_call().max(self.max_deadline())
    }

    /// Returns the names of the tenants' secrets that the server needs.
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
        let server = ServerConfig::new(Transport::Stdio(Program::default()));
        assert!(server.usual_call() < MAX_DEADLINE && server.longest_call() == MAX_DEADLINE);
        let strict = ServerConfig { max_deadline: Some(hours(0)), ..server.clone() };
        assert_eq!(strict.longest_call(), strict.usual_call());
        let slow = ServerConfig { timeout: hours(2), ..server.clone() };
        assert_eq!((slow.usual_call(), slow.longest_call()), (hours(2), hours(2)));
        let patient = ServerConfig { max_timeout: Some(hours(3)), ..slow };
        assert_eq!((patient.usual_call(), patient.longest_call()), (hours(3), hours(3)));
    }
}
