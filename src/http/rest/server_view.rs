//! How a server is shown to callers, and in full to operators.

use std::sync::Arc;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::servers::granted;
use crate::backend::instance::pool;
use crate::backend::{Backend, Ready, RunState, Suspect};
use crate::common::ids::SessionId;
use crate::config::{LeftOut, LeftOutReason};
use crate::gateway::Caller;
use crate::registry::{OwnedBackend, Registry, Server};

/// The most processes shown of a server that has one for each tenant or session.
const PROCESSES_MAX: usize = 100;

/// The one that a server is shown to.
pub(crate) enum Viewer<'a> {
    Caller {
        caller: &'a Caller,
        /// The session that the request names, if any: it sees its own processes.
        session: Option<SessionId>,
    },
    Operator,
}

#[derive(Default, Serialize, JsonSchema)]
pub(crate) struct ServerView {
    id: String,
    #[serde(flatten)]
    state: StateView,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol_version: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    era: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<usize>,
    /// The tools of a pinned server that are held back; for operators.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<usize>,
    /// The tools that cannot be used, and why; for operators.
    #[serde(skip_serializing_if = "Option::is_none")]
    tools_left_out: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance_count: Option<usize>,
    /// For operators.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    instances: Vec<InstanceView>,
    /// The tenants whose calls run apart, or are refused; for operators.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    suspects: Vec<Value>,
    /// The processes of a server that has one for each tenant or session; for operators.
    #[serde(skip_serializing_if = "Option::is_none")]
    process_count: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    processes: Vec<ProcessView>,
    /// The next backend in a rollover, while it starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    replacement: Option<ReplacementView>,
}

/// The next backend in a rollover, while it starts.
#[derive(Serialize, JsonSchema)]
struct ReplacementView {
    #[serde(flatten)]
    state: StateView,
    /// For operators.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    instances: Vec<InstanceView>,
}

#[derive(Default, Serialize, JsonSchema)]
struct StateView {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The time at which it entered this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    /// The time since which it takes no calls, through all states.
    #[serde(skip_serializing_if = "Option::is_none")]
    down_since: Option<Timestamp>,
}

#[derive(Serialize, JsonSchema)]
struct InstanceView {
    #[serde(flatten)]
    state: StateView,
    starts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stalled_since: Option<Timestamp>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    looks_serial: bool,
    /// The last lines of the process's standard error, or of the one before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stderr: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failure: Option<Value>,
}

/// The process of one tenant or of one session, as operators see it.
#[derive(Serialize, JsonSchema)]
struct ProcessView {
    tenant: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(flatten)]
    state: StateView,
    instances: Vec<InstanceView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replacement: Option<ReplacementView>,
}

impl ServerView {
    /// Shows a server; again if a rollover has replaced the server meanwhile, since the replaced
    /// backend may have stopped while it was looked at.
    pub(crate) fn new(registry: &Registry, mut server: Arc<Server>, viewer: &Viewer<'_>) -> Self {
        loop {
            let view = match viewer {
                Viewer::Caller { caller, session } => {
                    Self::for_caller(registry, &server, caller, session.as_ref())
                }
                Viewer::Operator => Self::for_operator(registry, &server),
            };
            match registry.get(server.id().as_str()) {
                Some(current) if !Arc::ptr_eq(&current, &server) => server = current,
                _ => return view,
            }
        }
    }

    /// Shows a server of an MCP client's file that is not started.
    pub(crate) fn left_out(server: &LeftOut, is_for_operator: bool) -> Self {
        let (state, reason) = match &server.reason {
            LeftOutReason::Disabled => ("disabled", "the client's file disables it".to_owned()),
            LeftOutReason::Invalid(mistake) if is_for_operator => ("invalid", mistake.clone()),
            LeftOutReason::Invalid(_) => {
                ("invalid", "its entry in the client's file has a mistake".to_owned())
            }
        };
        let state = StateView { state, reason: Some(reason), ..StateView::default() };
        Self { id: server.id.to_string(), state, ..Self::default() }
    }

    fn for_caller(
        registry: &Registry,
        server: &Server,
        caller: &Caller,
        session: Option<&SessionId>,
    ) -> Self {
        let of_session = || session.and_then(|session| server.of_session(session));
        let running = || server.running(&caller.tenant.id);
        let Some(backend) = of_session().or_else(running) else {
            return Self::without_process(server);
        };
        let ready = ready(&backend);
        let tools =
            ready.as_ref().map(|it| granted(caller, server.id().as_str(), &it.tools).count());
        let replacement = registry.replacement(server, Some(&caller.tenant.id));
        let replacement = replacement.as_deref().map(ReplacementView::for_caller);
        Self { tools, replacement, ..Self::of_backend(server, &backend, ready.as_deref()) }
    }

    fn for_operator(registry: &Registry, server: &Server) -> Self {
        let Some(backend) = server.shared() else {
            let own = server.owned();
            let process_count = Some(own.len());
            let processes = select(own).iter().map(ProcessView::of).collect();
            return Self { process_count, processes, ..Self::without_process(server) };
        };
        let ready = ready(backend);
        let replacement = registry.replacement(server, None);
        Self {
            tools: ready.as_ref().map(|ready| ready.tools.iter().count()),
            held: ready.as_ref().filter(|_| server.config().pin).map(|it| it.tools.held_len()),
            tools_left_out: ready.as_ref().and_then(|ready| {
                let left_out = ready.tools.left_out();
                (!left_out.is_empty()).then(|| left_out.to_string())
            }),
            instances: InstanceView::all(backend),
            suspects: backend.suspects().iter().map(suspect_view).collect(),
            replacement: replacement.as_deref().map(ReplacementView::for_operator),
            ..Self::of_backend(server, backend, ready.as_deref())
        }
    }

    fn without_process(server: &Server) -> Self {
        let is_of_tenants = matches!(server, Server::PerTenant(_));
        let state = if is_of_tenants { "per_tenant" } else { "per_session" };
        let state = StateView { state, ..StateView::default() };
        Self { id: server.id().to_string(), state, ..Self::default() }
    }

    fn of_backend(server: &Server, backend: &Backend, ready: Option<&Ready>) -> Self {
        let instances = backend.instances();
        let is_ready =
            |instance: &&pool::InstanceStatus| matches!(instance.state, RunState::Ready(_));
        let version = ready.map(|ready| ready.dialect.version());
        Self {
            id: server.id().to_string(),
            state: StateView::of_backend(backend),
            protocol_version: version.map(|version| version.as_str()),
            era: version.map(|version| version.era().to_string()),
            ready: Some(instances.iter().filter(is_ready).count()),
            instance_count: Some(instances.len()),
            ..Self::default()
        }
    }
}

fn suspect_view(suspect: &Suspect) -> Value {
    let state = if suspect.is_quarantined { "quarantined" } else { "apart" };
    json!({"tenant": suspect.tenant.name().as_str(), "state": state, "until": suspect.until})
}

pub(crate) fn ready(backend: &Backend) -> Option<Arc<Ready>> {
    match backend.state() {
        RunState::Ready(ready) => Some(ready),
        _ => None,
    }
}

impl ReplacementView {
    fn for_caller(backend: &Backend) -> Self {
        Self { state: StateView::of_backend(backend), instances: vec![] }
    }

    fn for_operator(backend: &Backend) -> Self {
        Self { instances: InstanceView::all(backend), ..Self::for_caller(backend) }
    }
}

impl StateView {
    fn of(state: &RunState) -> Self {
        let reason = match state {
            RunState::Backoff { reason, .. } | RunState::Quarantined { reason, .. } => {
                Some(reason.to_string())
            }
            _ => None,
        };
        Self { state: state.as_str(), reason, ..Self::default() }
    }

    fn of_backend(backend: &Backend) -> Self {
        let (state, instances) = (backend.state(), backend.instances());
        let alike = instances.iter().filter(|it| it.state.as_str() == state.as_str());
        let since = alike.map(|it| it.since).min();
        Self { since, ..Self::of(&state) }.with_down(backend.down())
    }

    /// Adds why it is down, for as long as it is, also while it starts again.
    fn with_down(self, down: Option<pool::Down>) -> Self {
        let Some(down) = down else { return self };
        let reason = self.reason.or_else(|| down.reason.map(|reason| reason.to_string()));
        Self { reason, down_since: Some(down.since), ..self }
    }
}

impl InstanceView {
    fn all(backend: &Backend) -> Vec<Self> {
        backend.instances().iter().map(Self::of).collect()
    }

    fn of(instance: &pool::InstanceStatus) -> Self {
        let last_failure = instance.last_failure.as_ref().map(|failure| {
            let mut shown = json!({
                "at": failure.at, "detail": &*failure.detail, "stderr": &*failure.stderr,
            });
            if !failure.stdout.is_empty() {
                shown["stdout"] = json!(&*failure.stdout);
            }
            shown
        });
        let state = StateView { since: Some(instance.since), ..StateView::of(&instance.state) };
        let in_flight = instance.in_flight();
        Self {
            state: state.with_down(instance.down.clone()),
            starts: instance.starts,
            in_flight: in_flight.map(|(now, _)| now),
            limit: in_flight.map(|(_, limit)| limit),
            stalled_since: instance.stalled_since,
            looks_serial: instance.looks_serial(),
            stderr: instance.stderr.lines(),
            last_failure,
        }
    }
}

impl ProcessView {
    fn of(own: &OwnedBackend) -> Self {
        Self {
            tenant: own.tenant.to_string(),
            session: own.session.as_ref().map(SessionId::short),
            state: StateView::of_backend(&own.backend),
            instances: InstanceView::all(&own.backend),
            replacement: own.replacement.as_deref().map(ReplacementView::for_operator),
        }
    }
}

/// Selects the processes to show: first those that are not ready or in a rollover, then by name.
fn select(mut own: Vec<OwnedBackend>) -> Vec<OwnedBackend> {
    own.sort_by_cached_key(|own| {
        let is_well =
            matches!(own.backend.state(), RunState::Ready(_)) && own.replacement.is_none();
        (is_well, own.tenant.clone(), own.session.clone())
    });
    own.truncate(PROCESSES_MAX);
    own
}
