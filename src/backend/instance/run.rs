//! One run of an instance: from its process, or its address, to a connection that is ready for
//! calls.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::endpoint::Endpoint;
use super::handshake::{Greeting, HandshakeError, greet};
use super::redaction::Redaction;
use super::start_error::StartError;
use super::start_hints;
use super::tools::{ListError, ToolSet};
use crate::backend::changes::recipients::Recipients;
use crate::backend::connection::{
    CloseOnDrop, CloseReason, Connection, ConnectionOptions, RequestError,
};
use crate::backend::http::oauth::TenantGrant;
use crate::backend::stdio::line_tail::LineTail;
use crate::backend::stdio::process::{ExitReason, exited};
use crate::backend::{Environment, Ready, http};
use crate::common::ids::ServerId;
use crate::config::{self, UrlTransport};
use crate::protocol::mcp::method;
use crate::protocol::mcp::requests::Dialect;
use crate::telemetry::tasks::catch_panic;

/// The output of a process that has ended is read for this long; then its calls fail.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);
/// A start that failed waits this long for the exit code, which the operator needs.
const FAILED_START_WAIT: Duration = Duration::from_secs(1);

/// A server that has answered its handshake.
pub struct Run {
    endpoint: Endpoint,
    pub ready: Arc<Ready>,
    /// Fails the calls of a run that is dropped without [`Run::stop`], as a panic does.
    _close: CloseOnDrop,
}

/// The part of a start that differs from run to run.
#[derive(Clone)]
pub struct Launch {
    pub generation: u64,
    /// Hears what the server says beyond its answers.
    pub recipients: Recipients,
    /// Keeps the last lines of standard error; for the operator only.
    pub stderr: LineTail,
}

impl Launch {
    /// The launch of the only run.
    pub fn only(recipients: Recipients) -> Self {
        Self { generation: 1, recipients, stderr: LineTail::default() }
    }
}

impl Run {
    /// Opens the connection to a server and lists its tools, unless told to `stop`. A process must
    /// be ready within `start_timeout`; over HTTP each step has its own time. An error tells none
    /// of `secrets`, whatever the server says.
    pub async fn start(
        id: &ServerId,
        server: &config::ServerConfig,
        secrets: &Arc<config::Secrets>,
        environment: &Environment,
        launch: Launch,
        stop: &CancellationToken,
    ) -> Result<Self, StartError> {
        let start = async |transport: UrlTransport| {
            let launch = launch.clone();
            let started =
                Self::try_start(id, server, transport, secrets, environment, launch, stop).await;
            started.map_err(|error| error.redacted(&Redaction::new(secrets)))
        };
        let transport = match &server.transport {
            config::Transport::Http(upstream) => upstream.transport,
            config::Transport::Stdio(_) => UrlTransport::Http,
        };
        match start(transport).await {
            // The server may be of the time before Streamable HTTP.
            Err(error) if transport == UrlTransport::Auto && error.may_speak_sse => {
                start(UrlTransport::Sse).await.map_err(|_| error)
            }
            started => started,
        }
    }

    async fn try_start(
        id: &ServerId,
        server: &config::ServerConfig,
        url_transport: UrlTransport,
        secrets: &Arc<config::Secrets>,
        environment: &Environment,
        launch: Launch,
        stop: &CancellationToken,
    ) -> Result<Self, StartError> {
        let Launch { generation, recipients, stderr } = launch;
        let is_over_sse = url_transport == UrlTransport::Sse;
        let options = ConnectionOptions {
            generation,
            max_in_flight: server.max_in_flight as usize,
            line_len_max: environment.max_response,
            grace: environment.cancel_grace,
            ids: (environment.ids)(),
            recipients,
            exit: None,
            metrics: environment.metrics.server(id.as_str()),
            offload: environment.offload.clone(),
        };
        let deadline = Instant::now() + server.start_timeout;
        let tenant = TenantGrant {
            connections: environment.connections.clone(),
            tenant: environment.tenant.clone(),
            server: id.clone(),
        };
        let open = Endpoint::open(
            server,
            tenant,
            is_over_sse,
            secrets,
            environment,
            options,
            stderr,
            deadline,
        );
        let (endpoint, connection) = open.await?;
        let _close = CloseOnDrop::new(&connection, "the gateway gave it up");
        let prepared = async {
            if server.wants_caller_tokens() {
                // The handshake needs the token of a caller, which is on its way.
                let callers = environment.tokens.of_callers(&environment.tenant, id, server);
                tokio::select! {
                    () = callers.ready() => {}
                    () = stop.cancelled() => {}
                }
            }
            tokio::select! {
                prepared = prepare(id, server, is_over_sse, environment, &connection, deadline) => {
                    prepared
                }
                () = stop.cancelled() => Err(StartError::stopped()),
            }
        };
        // Caught here, so that the process is gone before the next one starts.
        let prepared = catch_panic(&environment.metrics, "start", prepared).await;
        match prepared.unwrap_or_else(|| Err(StartError::panicked())) {
            Ok(ready) => Ok(Self { endpoint, ready: Arc::new(ready), _close }),
            Err(mut error) => {
                let mut exit = None;
                if let (
                    Some(CloseReason::Exited(_) | CloseReason::Lost(_)),
                    Endpoint::Process(process),
                ) = (connection.close_reason(), &endpoint)
                {
                    exit = timeout(FAILED_START_WAIT, exited(process.exit())).await.ok();
                    if let Some(exit) = &exit {
                        error = StartError::new(&exit.to_string(), &exit.to_string());
                    }
                }
                connection.close(&CloseReason::Stopped);
                if !stop.is_cancelled() {
                    endpoint.terminate();
                }
                error.stdout = connection.stray_output.redacted(&Redaction::new(secrets));
                error.stderr = endpoint.shut_down().await;
                if exit == Some(ExitReason::NoDirectory)
                    && let Some(cause) = error.stderr.last()
                {
                    // The guard's own words: the program has not run.
                    error.detail.clone_from(cause);
                    return Err(error);
                }
                Err(match &server.transport {
                    config::Transport::Stdio(program) if !stop.is_cancelled() => {
                        start_hints::of_program(error, program, exit.as_ref())
                    }
                    _ => error,
                })
            }
        }
    }

    /// Waits until the run is over; says why.
    pub async fn ended(&self) -> CloseReason {
        let connection = &self.ready.connection;
        tokio::select! {
            end = connection.closed() => end,
            // The end of the output normally follows at once. If not, a process that escaped the
            // guard holds the pipe; nobody must wait for that.
            exit = self.endpoint.exited() => {
                if timeout(DRAIN_TIMEOUT, connection.closed()).await.is_err() {
                    connection.close(&CloseReason::Exited(exit));
                }
                connection.closed().await
            }
        }
    }

    /// Returns the memory of a process and all that it started, in bytes.
    pub async fn memory(&self) -> Option<u64> {
        match &self.endpoint {
            Endpoint::Process(process) => process.memory().await,
            Endpoint::Http(_) => None,
        }
    }

    /// Returns the last lines of standard output before the handshake that were no messages,
    /// without `secrets`.
    pub fn stray_output(&self, secrets: &config::Secrets) -> Vec<String> {
        self.ready.connection.stray_output.redacted(&Redaction::new(secrets))
    }

    /// Gives up a server that is not alive: its calls fail, and it is told to end. [`Run::stop`]
    /// must follow.
    pub fn give_up(&self, end: &CloseReason) {
        self.ready.connection.close(end);
        self.endpoint.terminate();
    }

    /// Ends the run: its calls fail, the process and all that it started are gone, and a server
    /// with a `url` has been told. Returns the last lines of standard error.
    pub async fn stop(self, end: &CloseReason) -> Vec<String> {
        self.ready.connection.close(end);
        self.endpoint.shut_down().await
    }
}

/// Greets a server and lists its tools. The handshake of a process, and its tools, must be there by
/// `deadline`.
async fn prepare(
    id: &ServerId,
    server: &config::ServerConfig,
    is_over_sse: bool,
    environment: &Environment,
    connection: &Arc<Connection>,
    deadline: Instant,
) -> Result<Ready, StartError> {
    let (greeting, setting) = match &server.transport {
        config::Transport::Stdio(_) => {
            (greet(connection, server.era, deadline).await, "start_timeout")
        }
        config::Transport::Http(upstream) if is_over_sse => {
            (http::greet_over_sse(connection, upstream.init_timeout).await, "init_timeout")
        }
        config::Transport::Http(upstream) => {
            (http::handshake(connection, server.era, upstream.init_timeout).await, "init_timeout")
        }
    };
    let Greeting { version, about } = greeting.map_err(|error| match &server.transport {
        transport if matches!(error, HandshakeError::Failed(RequestError::Expired { .. })) => {
            let hint = match transport {
                config::Transport::Stdio(_) => None,
                config::Transport::Http(upstream) => Some(start_hints::of_silence(upstream)),
            };
            StartError::timed_out(setting).with_hint(hint)
        }
        config::Transport::Stdio(_) => error.into(),
        config::Transport::Http(upstream) => {
            let detail = start_hints::of_url(&error, upstream);
            let error = StartError::from(error);
            StartError { detail: detail.unwrap_or(error.detail), ..error }
        }
    })?;
    let (deadline, setting) = match server.transport {
        config::Transport::Stdio(_) => (deadline, "start_timeout"),
        config::Transport::Http(_) => (Instant::now() + server.timeout, "timeout"),
    };
    let declared = about.own_words.declared();
    let dialect = Arc::new(Dialect::new(version).with_tasks(declared.has_tasks));
    let _ = connection.declared.set(declared.clone());
    let pins_skills = server.pin && declared.has(method::SKILLS_LIST);
    let tools = match about.capabilities.tools.is_some() || pins_skills {
        true => ToolSet::list(connection, &dialect, deadline, id, environment, server.pin).await,
        false => Ok(Arc::default()),
    };
    let tools = tools.map_err(|error| match error {
        ListError::Failed(RequestError::Expired { .. }) => StartError::timed_out(setting),
        other => other.into(),
    })?;
    Ok(Ready { connection: connection.clone(), dialect, about: Arc::new(about), tools })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use tokio::runtime::Builder;

    use super::*;
    use crate::backend::testing::environment;
    use crate::config::{Program, Transport};

    #[test]
    fn a_process_that_does_not_come_up_is_a_failed_start() {
        // No thread is left to start it.
        let runtime =
            Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (release, until) = channel::<()>();
            tokio::task::spawn_blocking(move || until.recv());
            let id = ServerId::parse("test").unwrap();
            let server = config::ServerConfig {
                start_timeout: Duration::from_millis(10),
                ..config::ServerConfig::new(Transport::Stdio(Program::default()))
            };
            let (secrets, environment) = (Arc::default(), environment());
            let launch = Launch::only(Recipients::new(id.clone(), None));
            let never = CancellationToken::new();
            let start = Run::start(&id, &server, &secrets, &environment, launch, &never);
            let started = timeout(Duration::from_secs(10), start).await.expect("it is given up");
            assert_eq!(
                started.err().unwrap().reason,
                "it did not answer in time (`start_timeout`)"
            );
            drop(release);
        });
    }
}
