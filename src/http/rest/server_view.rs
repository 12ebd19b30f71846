//! A server as callers see it, and as the operator does.

use jiff::Timestamp;
use serde::Serialize;

use super::servers::granted;
use crate::backend::instance::pool;
use crate::backend::{Backend, State};
use crate::common::ids::SessionId;
use crate::gateway::Caller;
use crate::registry::{OwnedBackend, Registry, Server};

/// Processes of one server that are shown, where each tenant or session has its own.
const PROCESSES_MAX: usize = 100;

/// A caller that looks.
pub(crate) struct Viewer<'a> {
    pub(crate) caller: &'a Caller,
    /// The session that it calls in, if it says so.
    pub(crate) session: Option<SessionId>,
}

/// One server. What is not for callers is for those who see everything.
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
    /// Of a pinned server, how many more are held back; not for callers.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<usize>,
    /// Copies that are ready, and copies that there should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instances: Option<usize>,
    /// Every copy; not for callers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    copies: Vec<CopyView>,
    /// How many processes there are, where each tenant or session has its own, and some of them; not for callers.
    #[serde(skip_serializing_if = "Option::is_none")]
    process_count: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    processes: Vec<OwnView>,
    /// What takes its place as soon as it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    replacement: Option<ReplacementView>,
}

/// What takes the place of a process as soon as it is ready.
#[derive(Serialize)]
struct ReplacementView {
    #[serde(flatten)]
    state: StateView,
    /// Every copy; not for callers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    copies: Vec<CopyView>,
}

/// Where a server stands.
#[derive(Default, Serialize)]
struct StateView {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Since when it stands there.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    /// Since when it takes no calls, wherever it has stood meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    down_since: Option<Timestamp>,
}

/// One copy of a server, as the operator sees it.
#[derive(Serialize)]
struct CopyView {
    #[serde(flatten)]
    state: StateView,
    starts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    /// What its process has written last, or the one before that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stderr: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failure: Option<FailureView>,
}

/// What went wrong last.
#[derive(Serialize)]
struct FailureView {
    at: Timestamp,
    detail: String,
    stderr: Vec<String>,
}

/// The process of one tenant, or of one of its sessions, as the operator sees it.
#[derive(Serialize)]
struct OwnView {
    tenant: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(flatten)]
    state: StateView,
    copies: Vec<CopyView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replacement: Option<ReplacementView>,
}

impl ServerView {
    /// As a caller sees it.
    pub(crate) fn for_caller(registry: &Registry, server: &Server, viewer: &Viewer<'_>) -> Self {
        let Viewer { caller, session } = viewer;
        let of_session = || session.as_ref().and_then(|session| server.of_session(session));
        let Some(backend) = server.running(&caller.tenant.id).or_else(of_session) else {
            return Self::without_process(server);
        };
        let replacement = registry.replacement(server, Some(&caller.tenant.id));
        let replacement = replacement.as_deref().map(ReplacementView::for_caller);
        let view = Self { replacement, ..Self::of_backend(server, &backend) };
        let State::Ready(ready) = backend.state() else { return view };
        Self { tools: Some(granted(caller, server.id().as_str(), &ready).count()), ..view }
    }

    /// As those do who see everything.
    pub(crate) fn for_operator(registry: &Registry, server: &Server) -> Self {
        let Some(backend) = server.shared() else {
            let own = server.owned();
            let process_count = Some(own.len());
            let processes = shown(own).iter().map(OwnView::of).collect();
            return Self { process_count, processes, ..Self::without_process(server) };
        };
        let replacement = registry.replacement(server, None);
        let replacement = replacement.as_deref().map(ReplacementView::for_operator);
        let copies = CopyView::all(backend);
        let view = Self { copies, replacement, ..Self::of_backend(server, backend) };
        let State::Ready(ready) = backend.state() else { return view };
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
        let copies = backend.instances();
        let is_ready = |copy: &&pool::InstanceView| matches!(copy.state, State::Ready(_));
        let (version, era) = match backend.state() {
            State::Ready(ready) => {
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
            ready: Some(copies.iter().filter(is_ready).count()),
            instances: Some(copies.len()),
            ..Self::default()
        }
    }
}

impl ReplacementView {
    fn for_caller(backend: &Backend) -> Self {
        Self { state: StateView::of_backend(backend), copies: vec![] }
    }

    fn for_operator(backend: &Backend) -> Self {
        Self { copies: CopyView::all(backend), ..Self::for_caller(backend) }
    }
}

impl StateView {
    fn of(state: &State) -> Self {
        let reason = match state {
            State::Backoff { reason, .. } | State::Quarantined { reason, .. } => {
                Some(reason.to_string())
            }
            _ => None,
        };
        Self { state: state.as_str(), reason, ..Self::default() }
    }

    fn of_backend(backend: &Backend) -> Self {
        let (state, copies) = (backend.state(), backend.instances());
        let alike = copies.iter().filter(|copy| copy.state.as_str() == state.as_str());
        let since = alike.map(|copy| copy.since).min();
        Self { since, ..Self::of(&state) }.with(backend.down())
    }

    /// What is wrong is said as long as it is, also while it is being put right.
    fn with(self, down: Option<pool::Down>) -> Self {
        let Some(down) = down else { return self };
        let reason = self.reason.or_else(|| down.reason.map(|reason| reason.to_string()));
        Self { reason, down_since: Some(down.since), ..self }
    }
}

impl CopyView {
    fn all(backend: &Backend) -> Vec<Self> {
        backend.instances().iter().map(Self::of).collect()
    }

    fn of(copy: &pool::InstanceView) -> Self {
        let last_failure = copy.last_failure.as_ref().map(|failure| FailureView {
            at: failure.at,
            detail: failure.detail.to_string(),
            stderr: failure.stderr.to_vec(),
        });
        let state = StateView { since: Some(copy.since), ..StateView::of(&copy.state) };
        Self {
            state: state.with(copy.down.clone()),
            starts: copy.starts,
            in_flight: copy.in_flight.map(|(now, _)| now),
            limit: copy.in_flight.map(|(_, limit)| limit),
            stderr: copy.stderr.lines(),
            last_failure,
        }
    }
}

impl OwnView {
    fn of(own: &OwnedBackend) -> Self {
        Self {
            tenant: own.tenant.to_string(),
            session: own.session.as_ref().map(SessionId::short),
            state: StateView::of_backend(&own.backend),
            copies: CopyView::all(&own.backend),
            replacement: own.replacement.as_deref().map(ReplacementView::for_operator),
        }
    }
}

/// Those of many that are shown: first those that are not ready or about to be replaced, then by name.
fn shown(mut own: Vec<OwnedBackend>) -> Vec<OwnedBackend> {
    own.sort_by_cached_key(|own| {
        let is_well = matches!(own.backend.state(), State::Ready(_)) && own.replacement.is_none();
        (is_well, own.tenant.clone(), own.session.clone())
    });
    own.truncate(PROCESSES_MAX);
    own
}
