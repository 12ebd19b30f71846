//! One run of a server: from its process to a connection that is ready for calls.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::client::Audience;
use super::connection::{Connection, Options};
use super::handshake::{HandshakeError, greet};
use super::pending::End;
use super::process::{Process, SpawnError, exited};
use super::request_ids::IdSource;
use super::tools::{ListError, ToolSet};
use super::{About, Environment, Ready};
use crate::config;
use crate::ids::ServerId;
use crate::mcp::requests::Dialect;

/// What is left in the pipe of a server that has ended is read within this time; then its calls fail.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);
/// How a server ended is told within this time after the end of its output. At the start nobody is in a
/// hurry, and the exit code is what the operator needs.
const EXIT_WAIT: Duration = Duration::from_secs(1);

/// What is kept of the story of a failed start.
const DETAIL_CHARS_MAX: usize = 1000;

/// A server that answered its handshake.
pub struct Run {
    process: Process,
    /// What calls need.
    pub ready: Arc<Ready>,
}

/// Why a server did not start.
#[derive(Debug)]
pub struct StartError {
    /// In words that may be shown to callers.
    pub reason: String,
    /// The whole story, for the operator.
    pub detail: String,
    /// What the server last wrote to standard error; for the operator only.
    pub stderr: Vec<String>,
}

impl Run {
    /// Starts the server's process, opens the connection and lists the tools, all within `start_timeout`
    /// and unless told to `stop`.
    #[expect(clippy::too_many_arguments, reason = "each is another thing that a start needs")]
    pub async fn start(
        id: &ServerId,
        server: &config::Server,
        generation: u64,
        ids: Arc<dyn IdSource>,
        environment: &Environment,
        secrets: &Arc<config::Secrets>,
        audience: Audience,
        stop: &CancellationToken,
    ) -> Result<Self, StartError> {
        let deadline = Instant::now() + server.start_timeout;
        let config::Transport::Stdio(program) = &server.transport else {
            return Err(StartError::new("it is not a program", "it is not a program"));
        };
        let (process, stdin, stdout) = Process::spawn(&environment.own_program, program, secrets)?;
        let options = Options {
            generation,
            max_in_flight: server.max_in_flight as usize,
            line_len_max: environment.max_response,
            grace: environment.cancel_grace,
            ids,
            audience,
            exit: Some(process.exit()),
            metrics: environment.metrics.server(id.as_str()),
        };
        let connection = Connection::open(stdin, stdout, options);
        let prepared = tokio::select! {
            prepared = prepare(id, connection.clone(), deadline, environment) => prepared,
            () = stop.cancelled() => Err(StartError::new("it was stopped", "it was stopped")),
        };
        match prepared {
            Ok(ready) => Ok(Self { process, ready: Arc::new(ready) }),
            Err(mut error) => {
                if let Some(End::Exited(_)) = connection.end()
                    && let Ok(exit) = timeout(EXIT_WAIT, exited(process.exit())).await
                {
                    error = StartError::new(&exit, &exit);
                }
                connection.close(&End::Stopped);
                let stderr = process.stderr().clone();
                process.stop().await;
                Err(StartError { stderr: stderr.lines(), ..error })
            }
        }
    }

    /// Waits until the run is over; tells why.
    pub async fn ended(&self) -> End {
        let connection = &self.ready.connection;
        tokio::select! {
            end = connection.closed() => end,
            // The end of the output normally follows at once. If it does not, something that got away
            // from the guard holds the pipe; nobody must wait for that.
            exit = exited(self.process.exit()) => {
                if timeout(DRAIN_TIMEOUT, connection.closed()).await.is_err() {
                    connection.close(&End::Exited(exit));
                }
                connection.closed().await
            }
        }
    }

    /// Ends the run: calls fail, the process and all it started are gone when this is done. Gives what the
    /// server last wrote to standard error.
    pub async fn stop(self, end: &End) -> Vec<String> {
        self.ready.connection.close(end);
        let stderr = self.process.stderr().clone();
        self.process.stop().await;
        stderr.lines()
    }
}

async fn prepare(
    id: &ServerId,
    connection: Arc<Connection>,
    deadline: Instant,
    environment: &Environment,
) -> Result<Ready, StartError> {
    let greeting = greet(&connection, deadline).await?;
    let dialect = Arc::new(Dialect::new(greeting.version));
    let tools = match greeting.capabilities.tools {
        Some(_) => ToolSet::list(&connection, &dialect, deadline, id, &environment.metrics).await?,
        None => ToolSet::default(),
    };
    let about = About {
        info: greeting.info,
        capabilities: greeting.capabilities,
        instructions: greeting.instructions,
    };
    Ok(Ready { connection, dialect, about: Arc::new(about), tools: Arc::new(tools) })
}

impl StartError {
    fn new(reason: &str, detail: &str) -> Self {
        // A server can put as much as it likes into an error.
        let detail = detail.chars().take(DETAIL_CHARS_MAX).collect();
        Self { reason: reason.to_owned(), detail, stderr: vec![] }
    }
}

impl From<SpawnError> for StartError {
    fn from(error: SpawnError) -> Self {
        // Where programs lie on this machine is not for callers.
        Self::new("its program cannot be started", &error.to_string())
    }
}

impl From<HandshakeError> for StartError {
    fn from(error: HandshakeError) -> Self {
        let detail = error.to_string();
        match error {
            HandshakeError::Failed(_) => Self::new(&detail, &detail),
            // Nor are a server's own words: they are often about its credentials.
            _ => Self::new("its handshake failed", &detail),
        }
    }
}

impl From<ListError> for StartError {
    fn from(error: ListError) -> Self {
        let detail = error.to_string();
        match error {
            ListError::Failed(_) | ListError::Endless(_) => Self::new(&detail, &detail),
            _ => Self::new("its tools could not be listed", &detail),
        }
    }
}
