//! How a server is shown to callers, and in full to operators.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::servers::granted;
use crate::backend::instance::pool;
use crate::backend::{Backend, RunState};
use crate::common::ids::SessionId;
use crate::gateway::Caller;
use crate::registry::{OwnedBackend, Registry, Server};

/// The most processes shown of a server that has one for each tenant or session.
const PROCESSES_MAX: usize = 100;

/// The caller that a server is shown to.
pub(crate) struct Viewer<'a> {
    pub(crate) caller: &'a Caller,
    /// The session that the request names, if any: it sees its own processes.
    pub(crate) session: Option<SessionId>,
}

#[derive(Default, Serialize)]
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
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance_count: Option<usize>,
    /// For operators.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    instances: Vec<InstanceView>,
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
#[derive(Serialize)]
struct ReplacementView {
    #[serde(flatten)]
    state: StateView,
    /// For operators.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    instances: Vec<InstanceView>,
}

#[derive(Default, Serialize)]
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

#[derive(Serialize)]
struct InstanceView {
    #[serde(flatten)]
    state: StateView,
    starts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    /// The last lines of the process's standard error, or of the one before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stderr: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failure: Option<FailureView>,
}

#[derive(Serialize)]
struct FailureView {
    at: Timestamp,
    detail: String,
    stderr: Vec<String>,
}

/// The process of one tenant or of one session, as operators see it.
#[derive(Serialize)]
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
    pub(crate) fn for_caller(
        registry: &Registry,
        server: &Arc<Server>,
        viewer: &Viewer<'_>,
    ) -> Self {
        Self::of_current(registry, server, |server| Self::caller_view(registry, server, viewer))
    }

    pub(crate) fn for_operator(registry: &Registry, server: &Arc<Server>) -> Self {
        Self::of_current(registry, server, |server| Self::operator_view(registry, server))
    }

    /// Builds the view of a server; again if a rollover has replaced the server meanwhile, since
    /// the replaced backend may have stopped while it was looked at.
    fn of_current(
        registry: &Registry,
        server: &Arc<Server>,
        view: impl Fn(&Server) -> Self,
    ) -> Self {
        let mut server = server.clone();
        loop {
            let built = view(&server);
            match registry.get(server.id().as_str()) {
                Some(current) if !Arc::ptr_eq(&current, &server) => server = current,
                _ => return built,
            }
        }
    }

    fn caller_view(registry: &Registry, server: &Server, viewer: &Viewer<'_>) -> Self {
        let Viewer { caller, session } = viewer;
        let of_session = || session.as_ref().and_then(|session| server.of_session(session));
        let Some(backend) = server.running(&caller.tenant.id).or_else(of_session) else {
            return Self::without_process(server);
        };
        let replacement = registry.replacement(server, Some(&caller.tenant.id));
        let replacement = replacement.as_deref().map(ReplacementView::for_caller);
        let view = Self { replacement, ..Self::of_backend(server, &backend) };
        let RunState::Ready(ready) = backend.state() else { return view };
        Self { tools: Some(granted(caller, server.id().as_str(), &ready).count()), ..view }
    }

    fn operator_view(registry: &Registry, server: &Server) -> Self {
        let Some(backend) = server.shared() else {
            let own = server.owned();
            let process_count = Some(own.len());
            let processes = select(own).iter().map(ProcessView::of).collect();
            return Self { process_count, processes, ..Self::without_process(server) };
        };
        let replacement = registry.replacement(server, None);
        let replacement = replacement.as_deref().map(ReplacementView::for_operator);
        let instances = InstanceView::all(backend);
        let view = Self { instances, replacement, ..Self::of_backend(server, backend) };
        let RunState::Ready(ready) = backend.state() else { return view };
        Self {
            tools: Some(ready.tools.iter().count()),
            held: server.config().pin.then(|| ready.tools.held_len()),
            ..view
        }
    }

    fn without_process(server: &Server) -> Self {
        let is_of_tenants = matches!(server, Server::PerTenant(_));
        let state = if is_of_tenants { "per_tenant" } else { "per_session" };
        let state = StateView { state, ..StateView::default() };
        Self { id: server.id().to_string(), state, ..Self::default() }
    }

    fn of_backend(server: &Server, backend: &Backend) -> Self {
        let instances = backend.instances();
        let is_ready =
            |instance: &&pool::InstanceStatus| matches!(instance.state, RunState::Ready(_));
        let (version, era) = match backend.state() {
            RunState::Ready(ready) => {
                let version = ready.dialect.version();
                (Some(version.as_str()), Some(version.era().to_string()))
            }
            _ => (None, None),
        };
        Self {
            id: server.id().to_string(),
            state: StateView::of_backend(backend),
            protocol_version: version,
            era,
            ready: Some(instances.iter().filter(is_ready).count()),
            instance_count: Some(instances.len()),
            ..Self::default()
        }
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
        let last_failure = instance.last_failure.as_ref().map(|failure| FailureView {
            at: failure.at,
            detail: failure.detail.to_string(),
            stderr: failure.stderr.to_vec(),
        });
        let state = StateView { since: Some(instance.since), ..StateView::of(&instance.state) };
        let in_flight = instance.in_flight();
        Self {
            state: state.with_down(instance.down.clone()),
            starts: instance.starts,
            in_flight: in_flight.map(|(now, _)| now),
            limit: in_flight.map(|(_, limit)| limit),
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
