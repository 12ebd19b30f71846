//! The two ways to an instance: a process, or the address of a server.

use std::sync::Arc;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout_at};

use super::start_error::StartError;
use crate::backend::connection::{Connection, ConnectionOptions};
use crate::backend::http::oauth::TenantGrant;
use crate::backend::stdio::line_tail::LineTail;
use crate::backend::stdio::process::{ExitReason, Process, exited};
use crate::backend::stdio::token_file::ProgramToken;
use crate::backend::{Environment, http};
use crate::config;

pub(super) enum Endpoint {
    Process(Process),
    /// The task that talks to a server with a `url`.
    Http(JoinHandle<()>),
}

impl Endpoint {
    /// A process must have been spawned by `deadline`.
    #[expect(clippy::too_many_arguments)]
    pub(super) async fn open(
        server: &config::ServerConfig,
        tenant: TenantGrant,
        is_over_sse: bool,
        secrets: &Arc<config::Secrets>,
        environment: &Environment,
        mut options: ConnectionOptions,
        stderr: LineTail,
        deadline: Instant,
    ) -> Result<(Self, Arc<Connection>), StartError> {
        match &server.transport {
            config::Transport::Stdio(program) => {
                let token = program_token(server, tenant, environment, deadline).await?;
                let guard = environment.own_program.clone();
                let (program, secrets) = (program.clone(), secrets.clone());
                // The thread that spawns a process blocks until its program is loaded: no call may
                // wait for that.
                let spawn = spawn_blocking(move || {
                    Process::spawn(&guard, &program, &secrets, token, stderr)
                });
                // A process that is spawned later is told to end when it is dropped.
                let spawned = timeout_at(deadline, spawn).await;
                let spawned = spawned.map_err(|_| StartError::timed_out("start_timeout"))?;
                let (process, stdin, stdout) = spawned.map_err(StartError::system)??;
                options.exit = Some(process.exit());
                Ok((Self::Process(process), Connection::open(stdin, stdout, options)))
            }
            config::Transport::Http(upstream) => {
                let (server, secrets) = (server.clone(), secrets.clone());
                let (upstream, sources) = (upstream.clone(), environment.tokens.clone());
                // All CAs that the system trusts are read first: no call may wait for that.
                let open = if is_over_sse { http::open_over_sse } else { http::open };
                let open = spawn_blocking(move || {
                    let tokens = sources.of(&server, tenant)?;
                    open(&upstream, &secrets, tokens, options)
                });
                let (connection, driving) = open.await.map_err(StartError::system)??;
                Ok((Self::Http(driving), connection))
            }
        }
    }

    /// Waits until the process has ended; says how.
    pub(super) async fn exited(&self) -> ExitReason {
        match self {
            Self::Process(process) => exited(process.exit()).await,
            Self::Http(_) => std::future::pending().await,
        }
    }

    /// Does not wait until the process notices that its input is closed.
    pub(super) fn terminate(&self) {
        if let Self::Process(process) = self {
            process.terminate();
        }
    }

    /// Cleans up after a connection that is closed.
    pub(super) async fn shut_down(self) -> Vec<String> {
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

/// Returns the token that a program gets in a file, if it wants one.
async fn program_token(
    server: &config::ServerConfig,
    tenant: TenantGrant,
    environment: &Environment,
    deadline: Instant,
) -> Result<Option<ProgramToken>, StartError> {
    let Some(variable) = server.oauth().and_then(|oauth| oauth.variable.clone()) else {
        return Ok(None);
    };
    let (server, sources) = (server.clone(), environment.tokens.clone());
    // All CAs that the system trusts are read first: no call may wait for that.
    let source = spawn_blocking(move || sources.shared(&server, tenant)).await;
    let Some(source) = source.map_err(StartError::system)?? else { return Ok(None) };
    let token = timeout_at(deadline, source.token()).await;
    let token = token.map_err(|_| StartError::timed_out("start_timeout"))?;
    let token = token.map_err(|error| {
        // Names the authorization server, for the operator alone.
        StartError::new("the gateway has no access token for it", &error.to_string())
    })?;
    Ok(Some(ProgramToken { variable, source, token }))
}
