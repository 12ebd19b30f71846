//! `[servers.*]`: how servers are reached and treated.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};

use super::error::{ConfigError, Place};
use super::section::{Section, into_table, refuse_unknown};
use super::tree::{Node, Table, Value, fill};
use super::{
    ChildLimits, Program, Recycle, Sandbox, Server, Sharing, Sources, Template, Transport,
    Upstream, secret, values, web,
};
use crate::common::ids::ServerId;

/// What every server may say.
const COMMON_KEYS: &[&str] = &[
    "instances",
    "max_in_flight",
    "adaptive",
    "rate",
    "sharing",
    "max_sessions",
    "max_tenants",
    "idle_timeout",
    "start",
    "exclusive",
    "recycle",
    "timeout",
    "max_timeout",
    "tell_deadline",
    "start_timeout",
    "retry",
    "attempt_timeout",
    "pin",
];
const PROGRAM_KEYS: &[&str] = &["command", "args", "env", "cwd", "user", "limits", "sandbox"];
const UPSTREAM_KEYS: &[&str] = &["url", "headers", "init_timeout", "redirect_hosts"];

const RECYCLE_KEYS: &[&str] = &["calls", "age", "memory"];
const LIMITS_KEYS: &[&str] = &["files", "file_size", "memory", "processes"];
const SANDBOX_KEYS: &[&str] = &["read", "write", "connect", "syscalls", "optional"];

/// How long a step of the handshake over HTTP may take, unless said otherwise.
const INIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Headers that are the gateway's to set.
const RESERVED_HEADERS: [&str; 9] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "transfer-encoding",
];

pub(super) fn servers(
    node: Node,
    defaults: &Table,
    sources: &Sources,
) -> Result<BTreeMap<ServerId, Server>, ConfigError> {
    let (_, table) = into_table("servers", node)?;
    let mut servers = BTreeMap::new();
    for (name, node) in table {
        let id = ServerId::parse(&name).map_err(|error| node.place.error(error.to_string()))?;
        servers.insert(id, server(&format!("servers.{name}"), node, defaults, sources)?);
    }
    Ok(servers)
}

fn server(
    path: &str,
    node: Node,
    defaults: &Table,
    sources: &Sources,
) -> Result<Server, ConfigError> {
    let (place, mut table) = into_table(path, node)?;
    let mut own = Table::new();
    let own_keys = match (table.get("url"), table.get("command")) {
        (Some(url), Some(_)) => {
            return Err(url
                .place
                .error(format!("`{path}` has both `url` and `command`: give one")));
        }
        (Some(_), None) => UPSTREAM_KEYS,
        (None, _) => PROGRAM_KEYS,
    };
    for key in own_keys {
        own.extend(table.remove_entry(*key));
    }
    if let Some((key, node)) = table.iter().find(|(key, _)| {
        PROGRAM_KEYS.contains(&key.as_str()) || UPSTREAM_KEYS.contains(&key.as_str())
    }) {
        let problem = format!(
            "`{path}.{key}` is for servers that have a `command`, and this one has a `url`"
        );
        let other =
            format!("`{path}.{key}` is for servers that have a `url`, and this one has none");
        let is_upstream = own_keys == UPSTREAM_KEYS;
        return Err(node.place.error(if is_upstream { problem } else { other }));
    }
    // Also of those that are taken out by now, to say all that there are.
    refuse_unknown(&format!("{path}."), &table, &[own_keys, COMMON_KEYS].concat())?;
    let mut common_defaults = defaults.clone();
    common_defaults.retain(|key, _| COMMON_KEYS.contains(&key.as_str()));
    fill(&mut table, &common_defaults);
    let own = Section::open(path, Node::new(Value::Table(own), place.clone()), own_keys)?;
    let transport = if own_keys == UPSTREAM_KEYS {
        Transport::Http(upstream(path, own, sources)?)
    } else {
        Transport::Stdio(program(path, own, sources)?)
    };
    let common = Section::open(path, Node::new(Value::Table(table), place.clone()), COMMON_KEYS)?;
    let server = common_settings(path, common, transport)?;
    if server.sharing != Sharing::Tenant
        && let Some(name) = server.secrets().next()
    {
        return Err(place.error(format!(
            "`{path}` refers to the tenants' secret `{name}`, and tenants share it: set `sharing = \"tenant\"`"
        )));
    }
    if server.exclusive && server.instances > 1 {
        return Err(place.error(format!(
            "`{path}` has `exclusive = true` and `instances = {}`: two copies must never run side by side then; \
             take `exclusive` away, or set `instances = 1`",
            server.instances
        )));
    }
    if let Some(most) = server.max_timeout
        && most < server.timeout
    {
        return Err(place.error(format!(
            "`{path}` has a `max_timeout` of {most:?}, which is less than its `timeout` of {:?}: it says how far progress \
             may move that; set `timeout` for all calls",
            server.timeout
        )));
    }
    Ok(server)
}

/// A server with these defaults alone.
pub(super) fn with_defaults(transport: Transport, defaults: &Table) -> Server {
    let mut common = defaults.clone();
    common.retain(|key, _| COMMON_KEYS.contains(&key.as_str()));
    let common = Node::new(Value::Table(common), Place::BuiltIn);
    let server = Section::open("servers", common, COMMON_KEYS)
        .and_then(|common| common_settings("servers", common, transport));
    server.expect("the embedded defaults are valid")
}

fn common_settings(
    path: &str,
    mut server: Section,
    transport: Transport,
) -> Result<Server, ConfigError> {
    let recycle = match server.table("recycle") {
        Some(node) => recycle(&format!("{path}.recycle"), node)?,
        None => Recycle::default(),
    };
    let sharing_is_explicit = !server.is_built_in("sharing");
    Ok(Server {
        transport,
        instances: server.required("instances", values::instances)?,
        max_in_flight: server.required("max_in_flight", values::in_flight)?,
        adaptive: server.required("adaptive", values::flag)?,
        rate: server.optional("rate", values::rate)?,
        sharing: server.required("sharing", values::sharing)?,
        sharing_is_explicit,
        max_sessions: server.required("max_sessions", values::sessions)?,
        max_tenants: server.required("max_tenants", values::sessions)?,
        idle_timeout: server.required("idle_timeout", values::duration)?,
        start: server.required("start", values::start)?,
        exclusive: server.required("exclusive", values::flag)?,
        recycle,
        timeout: server.required("timeout", values::duration)?,
        max_timeout: server.optional("max_timeout", values::duration)?,
        tell_deadline: server.required("tell_deadline", values::flag)?,
        start_timeout: server.required("start_timeout", values::duration)?,
        retry: server.required("retry", values::retry)?,
        attempt_timeout: server.optional("attempt_timeout", values::duration)?,
        pin: server.required("pin", values::flag)?,
    })
}

fn recycle(path: &str, node: Node) -> Result<Recycle, ConfigError> {
    let mut recycle = Section::open(path, node, RECYCLE_KEYS)?;
    let calls = recycle.optional("calls", |node| values::count(node, u32::MAX))?;
    Ok(Recycle {
        calls: calls.map(u64::from),
        age: recycle.optional("age", values::duration)?,
        memory: recycle.optional("memory", values::bytes)?,
    })
}

fn program(path: &str, mut program: Section, sources: &Sources) -> Result<Program, ConfigError> {
    let command = program.optional("command", values::path)?.ok_or_else(|| {
        program.missing("command", "name the program to start, such as \"npx\", or give a `url`")
    })?;
    let env = match program.table("env") {
        Some(node) => variables(&format!("{path}.env"), node, sources)?,
        None => BTreeMap::new(),
    };
    let limits = match program.table("limits") {
        Some(node) => limits(&format!("{path}.limits"), node)?,
        None => ChildLimits::default(),
    };
    let sandbox = match program.table("sandbox") {
        Some(node) => Some(sandbox(&format!("{path}.sandbox"), node)?),
        None => None,
    };
    Ok(Program {
        command: own_or_other(command, sources),
        args: program.optional("args", values::arguments)?.unwrap_or_default(),
        env,
        cwd: program.optional("cwd", values::path)?,
        user: program.optional("user", |node| values::text(&node))?,
        limits,
        sandbox,
    })
}

fn limits(path: &str, node: Node) -> Result<ChildLimits, ConfigError> {
    let mut limits = Section::open(path, node, LIMITS_KEYS)?;
    let count = |node| values::count(node, u32::MAX).map(u64::from);
    Ok(ChildLimits {
        files: limits.optional("files", count)?,
        file_size: limits.optional("file_size", values::bytes)?,
        memory: limits.optional("memory", values::bytes)?,
        processes: limits.optional("processes", count)?,
    })
}

fn sandbox(path: &str, node: Node) -> Result<Sandbox, ConfigError> {
    let mut sandbox = Section::open(path, node, SANDBOX_KEYS)?;
    let paths = |node| {
        let texts = values::texts(node, "/srv/data")?;
        Ok(texts.into_iter().map(PathBuf::from).collect())
    };
    Ok(Sandbox {
        read: sandbox.optional("read", paths)?.unwrap_or_default(),
        write: sandbox.optional("write", paths)?.unwrap_or_default(),
        connect: sandbox.optional("connect", values::ports)?,
        syscalls: sandbox.optional("syscalls", values::flag)?.unwrap_or(true),
        optional: sandbox.optional("optional", values::flag)?.unwrap_or(false),
    })
}

fn upstream(path: &str, mut upstream: Section, sources: &Sources) -> Result<Upstream, ConfigError> {
    let url = upstream.required("url", |node| url(&node))?;
    let headers = match upstream.table("headers") {
        Some(node) => headers(&format!("{path}.headers"), node, sources)?,
        None => BTreeMap::new(),
    };
    Ok(Upstream {
        url,
        headers,
        init_timeout: upstream.optional("init_timeout", values::duration)?.unwrap_or(INIT_TIMEOUT),
        redirect_hosts: upstream.optional("redirect_hosts", web::hosts)?.unwrap_or_default(),
    })
}

/// An address of the operator's choosing. It is not shown in full: a query may hold a key.
fn url(node: &Node) -> Result<Url, String> {
    let wrong = |what: &str| {
        format!("must be a URL with http or https, such as \"http://127.0.0.1:9000/mcp\", {what}")
    };
    let url = node.text().and_then(|text| Url::parse(text).ok());
    match url {
        None => Err(wrong("and it is none")),
        Some(url) if !["http", "https"].contains(&url.scheme()) => {
            Err(wrong(&format!("and it begins with `{}:`", url.scheme())))
        }
        Some(url) if !url.username().is_empty() || url.password().is_some() => {
            Err(wrong("without a user name: put credentials into `headers`"))
        }
        Some(url) => Ok(url),
    }
}

/// "trunkline" must also be found where it is not on the PATH.
fn own_or_other(command: PathBuf, sources: &Sources) -> PathBuf {
    if command.as_os_str() == "trunkline" { sources.own_program.clone() } else { command }
}

fn variables(
    path: &str,
    node: Node,
    sources: &Sources,
) -> Result<BTreeMap<String, Template>, ConfigError> {
    templates(path, node, sources, |name| {
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        is_name.then(|| name.to_owned()).ok_or_else(|| {
            "is not a variable's name: it must not be empty or contain `=`".to_owned()
        })
    })
}

fn headers(
    path: &str,
    node: Node,
    sources: &Sources,
) -> Result<BTreeMap<String, Template>, ConfigError> {
    let place = node.place.clone();
    let headers = templates(path, node, sources, |name| {
        let header: HeaderName = name.parse().map_err(|_| "is not a header's name".to_owned())?;
        let is_ours =
            RESERVED_HEADERS.contains(&header.as_str()) || header.as_str().starts_with("mcp-");
        if is_ours {
            return Err("is a header that the protocol sets itself".to_owned());
        }
        Ok(header.as_str().to_owned())
    })?;
    for (name, template) in &headers {
        let filled = template.fill(
            &template
                .secrets()
                .map(|it| (it.to_owned(), secret::Secret::new(String::new())))
                .collect(),
        );
        let is_value = filled.is_ok_and(|text| HeaderValue::from_str(text.expose()).is_ok());
        if !is_value {
            return Err(
                place.error(format!("`{path}.{name}` has characters that no header can have"))
            );
        }
    }
    Ok(headers)
}

/// A table of texts. Errors do not show them: they may be secrets, or secrets of the wrong type.
fn templates(
    path: &str,
    node: Node,
    sources: &Sources,
    checked: impl Fn(&str) -> Result<String, String>,
) -> Result<BTreeMap<String, Template>, ConfigError> {
    let (_, table) = into_table(path, node)?;
    let mut templates = BTreeMap::new();
    for (name, node) in table {
        let error = |problem: &str| node.place.error(format!("`{path}.{name}` {problem}"));
        let checked_name = checked(&name).map_err(|problem| error(&problem))?;
        let text = node
            .text()
            .ok_or_else(|| error(&format!("must be a text, and it is {}", node.kind())))?;
        let template = secret::template(text, &sources.env, &sources.working_dir)
            .map_err(|problem| error(&problem))?;
        templates.insert(checked_name, template);
    }
    Ok(templates)
}
