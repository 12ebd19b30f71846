//! One run of a server: from its process, or its address, to a connection that is ready for calls.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::handshake::{Greeting, HandshakeError, greet};
use super::redaction::Redaction;
use super::start_error::StartError;
use super::tools::{ListError, ToolSet};
use crate::backend::changes::recipients::Recipients;
use crate::backend::connection::{CloseReason, Connection, ConnectionOptions, RequestError};
use crate::backend::stdio::process::{ExitReason, Process, exited};
use crate::backend::stdio::stderr::StderrTail;
use crate::backend::{About, Environment, Ready, http};
use crate::common::ids::ServerId;
use crate::config;
use crate::protocol::mcp::requests::Dialect;

/// What is left in the pipe of a server that has ended is read within this time; then its calls fail.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);
/// How a server ended is told within this time after the end of its output. At the start nobody is in a
/// hurry, and the exit code is what the operator needs.
const EXIT_WAIT: Duration = Duration::from_secs(1);

/// A server that answered its handshake.
pub struct Run {
    peer: Peer,
    /// What calls need.
    pub ready: Arc<Ready>,
}

/// One start among others.
pub struct Launch {
    /// Which run of the server it makes.
    pub generation: u64,
    /// Who hears what the server says beyond its answers.
    pub recipients: Recipients,
    /// Keeps what a process last writes to standard error; for the operator only.
    pub stderr: StderrTail,
}

impl Launch {
    /// The only one.
    pub fn only(recipients: Recipients) -> Self {
        Self { generation: 1, recipients, stderr: StderrTail::default() }
    }
}

/// Where a server runs.
enum Peer {
    /// Here.
    Process(Process),
    /// Elsewhere; the task that talks to it.
    Http(JoinHandle<()>),
}

impl Run {
    /// Opens the connection to a server and lists its tools, unless told to `stop`. A program is started first,
    /// and all of that must be done within `start_timeout`; over HTTP each step has its own time. What is told of a failure
    /// has none of `secrets`, whatever the server says.
    pub async fn start(
        id: &ServerId,
        server: &config::Server,
        secrets: &Arc<config::Secrets>,
        environment: &Environment,
        launch: Launch,
        stop: &CancellationToken,
    ) -> Result<Self, StartError> {
        let started = Self::try_start(id, server, secrets, environment, launch, stop).await;
        started.map_err(|error| error.redacted(&Redaction::new(secrets)))
    }

    async fn try_start(
        id: &ServerId,
        server: &config::Server,
        secrets: &Arc<config::Secrets>,
        environment: &Environment,
        launch: Launch,
        stop: &CancellationToken,
    ) -> Result<Self, StartError> {
        let Launch { generation, recipients, stderr } = launch;
        let options = ConnectionOptions {
            generation,
            max_in_flight: server.max_in_flight as usize,
            line_len_max: environment.max_response,
            grace: environment.cancel_grace,
            ids: (environment.ids)(),
            recipients,
            exit: None,
            metrics: environment.metrics.server(id.as_str()),
        };
        let deadline = Instant::now() + server.start_timeout;
        let (peer, connection) =
            Peer::open(&server.transport, secrets, environment, options, stderr, deadline).await?;
        let prepare = async {
            let greeting = peer.greet(&connection, server, deadline).await?;
            let (deadline, setting) = match peer {
                Peer::Process(_) => (deadline, "start_timeout"),
                Peer::Http(_) => (Instant::now() + server.timeout, "timeout"),
            };
            let connection = connection.clone();
            let ready = prepare(id, connection, greeting, deadline, environment, server.pin).await;
            ready.map_err(|error| match error {
                ListError::Failed(RequestError::Expired { .. }) => StartError::late(setting),
                other => other.into(),
            })
        };
        let prepared = tokio::select! {
            prepared = prepare => prepared,
            () = stop.cancelled() => Err(StartError::stopped()),
        };
        match prepared {
            Ok(ready) => Ok(Self { peer, ready: Arc::new(ready) }),
            Err(mut error) => {
                if let (Some(CloseReason::Exited(_)), Peer::Process(process)) = (connection.close_reason(), &peer)
                    && let Ok(exit) = timeout(EXIT_WAIT, exited(process.exit())).await
                {
                    error = StartError::new(&exit.to_string(), &exit.to_string());
                }
                connection.close(&CloseReason::Stopped);
                if !stop.is_cancelled() {
                    peer.terminate();
                }
                Err(StartError { stderr: peer.leave().await, ..error })
            }
        }
    }

    /// Waits until the run is over; tells why.
    pub async fn ended(&self) -> CloseReason {
        let connection = &self.ready.connection;
        tokio::select! {
            end = connection.closed() => end,
            // The end of the output normally follows at once. If it does not, something that got away
            // from the guard holds the pipe; nobody must wait for that.
            exit = self.peer.exited() => {
                if timeout(DRAIN_TIMEOUT, connection.closed()).await.is_err() {
                    connection.close(&CloseReason::Exited(exit.to_string()));
                }
                connection.closed().await
            }
        }
    }

    /// What it and all it started use of the machine's memory, in bytes, if it runs here.
    pub async fn memory(&self) -> Option<u64> {
        match &self.peer {
            Peer::Process(process) => process.memory().await,
            Peer::Http(_) => None,
        }
    }

    /// Gives up a server that is not alive: calls fail, and it is told to end. Followed by [`Run::stop`].
    pub fn give_up(&self, end: &CloseReason) {
        self.ready.connection.close(end);
        self.peer.terminate();
    }

    /// Ends the run: calls fail, the process and all it started are gone when this is done, and a server
    /// elsewhere has been told. Gives what the server last wrote to standard error.
    pub async fn stop(self, end: &CloseReason) -> Vec<String> {
        self.ready.connection.close(end);
        self.peer.leave().await
    }
}

impl Peer {
    /// A process must be there by `deadline`.
    async fn open(
        transport: &config::Transport,
        secrets: &Arc<config::Secrets>,
        environment: &Environment,
        mut options: ConnectionOptions,
        stderr: StderrTail,
        deadline: Instant,
    ) -> Result<(Self, Arc<Connection>), StartError> {
        match transport {
            config::Transport::Stdio(program) => {
                let guard = environment.own_program.clone();
                let (program, secrets) = (program.clone(), secrets.clone());
                // The thread that starts a process stands still until its program is loaded: no call may wait for that.
                let spawn =
                    spawn_blocking(move || Process::spawn(&guard, &program, &secrets, stderr));
                // One that comes later all the same is told to end, since nobody has it.
                let spawned = timeout_at(deadline, spawn).await;
                let spawned = spawned.map_err(|_| StartError::late("start_timeout"))?;
                let (process, stdin, stdout) = spawned.map_err(StartError::system)??;
                options.exit = Some(process.exit());
                Ok((Self::Process(process), Connection::open(stdin, stdout, options)))
            }
            config::Transport::Http(upstream) => {
                let (upstream, secrets) = (upstream.clone(), secrets.clone());
                // All CAs that the system trusts are read first: no call may wait for that either.
                let open = spawn_blocking(move || http::open(&upstream, &secrets, options));
                let (connection, driving) = open.await.map_err(StartError::system)??;
                Ok((Self::Http(driving), connection))
            }
        }
    }

    async fn greet(
        &self,
        connection: &Arc<Connection>,
        server: &config::Server,
        deadline: Instant,
    ) -> Result<Greeting, StartError> {
        let (greeting, setting) = match &server.transport {
            config::Transport::Stdio(_) => (greet(connection, deadline).await, "start_timeout"),
            config::Transport::Http(upstream) => {
                (http::handshake(connection, upstream.init_timeout).await, "init_timeout")
            }
        };
        greeting.map_err(|error| match error {
            HandshakeError::Failed(RequestError::Expired { .. }) => StartError::late(setting),
            other => other.into(),
        })
    }

    /// Done when the process has ended; tells how.
    async fn exited(&self) -> ExitReason {
        match self {
            Self::Process(process) => exited(process.exit()).await,
            Self::Http(_) => std::future::pending().await,
        }
    }

    /// Does not wait until it notices that nobody talks to it any more.
    fn terminate(&self) {
        if let Self::Process(process) = self {
            process.terminate();
        }
    }

    /// Cleans up after a connection that is closed.
    async fn leave(self) -> Vec<String> {
        match self {
            Self::Process(process) => {
                let stderr = process.stderr().clone();
                process.stop().await;
                stderr.lines()
            }
            Self::Http(driving) => {
                let _ = driving.await;
                vec![]
            }
        }
    }
}

async fn prepare(
    id: &ServerId,
    connection: Arc<Connection>,
    greeting: Greeting,
    deadline: Instant,
    environment: &Environment,
    is_pinned: bool,
) -> Result<Ready, ListError> {
    let dialect = Arc::new(Dialect::new(greeting.version));
    let tools = match greeting.capabilities.tools {
        Some(_) => {
            ToolSet::list(&connection, &dialect, deadline, id, environment, is_pinned).await?
        }
        None => Arc::default(),
    };
    let about = About {
        info: greeting.info,
        capabilities: greeting.capabilities,
        instructions: greeting.instructions,
    };
    Ok(Ready { connection, dialect, about: Arc::new(about), tools })
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
            spawn_blocking(move || until.recv());
            let id = ServerId::parse("test").unwrap();
            let server = config::Server {
                start_timeout: Duration::from_millis(10),
                ..config::Server::new(Transport::Stdio(Program::default()))
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
