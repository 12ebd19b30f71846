//! Opens the state that tenants need (store, directory, shared limits, identity provider, pins),
//! and runs the tasks that keep it up to date beside the calls.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::pin_sync;
use crate::backend::Backend;
use crate::backend::instance::pins::Pins;
use crate::config::{Config, ServerConfig, Transport};
use crate::gateway::Gateway;
use crate::protocol::mcp::Era;
use crate::store::{Missing, Store};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::tasks::restart_on_panic;
use crate::tenants::Directory;
use crate::tenants::connections::Connections;
use crate::tenants::limits::SharedLimits;
use crate::tenants::limits::shared::ANSWER_TIMEOUT;
use crate::tenants::oauth::Verifier;
use crate::tenants::usage_writer::UsageWriter;

/// Together shorter than what a container engine allows beyond `drain_delay` and `drain_timeout`.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(4);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The opened state. Nothing follows the store yet.
pub struct TenantServices {
    pub directory: Arc<Directory>,
    /// Verifies tokens of the identity provider, if one is configured.
    pub oauth: Option<Arc<Verifier>>,
    pub pins: Arc<Pins>,
    /// Tenants that have connected themselves to servers.
    pub connections: Arc<Connections>,
    shared_limits: Option<Arc<SharedLimits>>,
}

/// Begins the work of a task, once more after each panic.
type Work = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

async fn keep(metrics: Metrics, task: &'static str, mut work: Work) {
    restart_on_panic(&metrics, task, &mut work, |work| work()).await;
}

/// The tasks that run beside the calls.
pub struct BackgroundTasks {
    stop: CancellationToken,
    usage_writer: JoinHandle<UsageWriter>,
    others: TaskTracker,
    store: Store,
}

impl TenantServices {
    /// Opens the store and reads tenants, keys and approved tools.
    pub async fn open(config: &Config, metrics: &Metrics) -> Result<Self> {
        let store = Store::configured(config, Missing::Create).await?;
        tracing::info!(store = store.place(), "opened the store");
        let connect = |url| SharedLimits::connect(url, ANSWER_TIMEOUT, metrics);
        let shared_limits = config.limits.shared.as_ref().map(connect).transpose()?;
        let pins = pin_sync::open(config, &store, metrics).await;
        let directory = Directory::open(store, config, shared_limits.clone()).await?;
        if config.auth.oauth.is_none() {
            directory.warn_if_nobody_can_call();
        }
        let oauth = config.auth.oauth.as_ref().map(Verifier::new).transpose();
        let oauth = oauth.context("cannot verify tokens (`auth.oauth`)")?;
        let directory = Arc::new(directory);
        let connections = Arc::new(Connections::new(config, directory.clone()));
        Ok(Self { directory, oauth, pins, connections, shared_limits })
    }

    /// Counts the replicas, for shared limits while Valkey cannot be asked.
    pub fn members(&self) -> Arc<AtomicU32> {
        self.shared_limits.as_ref().map(|shared| shared.members().clone()).unwrap_or_default()
    }

    /// Starts the tasks.
    pub fn start(self, gateway: Arc<Gateway>, metrics: &Metrics) -> BackgroundTasks {
        let stop = CancellationToken::new();
        let store = self.directory.store().clone();
        let usage = metrics.usage();
        let mut usage_writer = UsageWriter::new(store.clone(), self.directory.clone(), usage);
        let (until, counted) = (stop.clone(), metrics.clone());
        let usage_writer = tokio::spawn(async move {
            let write =
                restart_on_panic(&counted, "usage", &mut usage_writer, |it| it.run().boxed());
            until.run_until_cancelled(write).await;
            usage_writer
        });
        let others = TaskTracker::new();
        let keep = |task, work: Work| keep(metrics.clone(), task, work);
        let until_stopped = |running| others.spawn(stop.clone().run_until_cancelled_owned(running));
        let directory = self.directory.clone();
        let follow = move || {
            let directory = directory.clone();
            async move { directory.follow().await }.boxed()
        };
        until_stopped(keep("directory", Box::new(follow)));
        let directory = self.directory;
        let warn = move || {
            let (gateway, directory) = (gateway.clone(), directory.clone());
            async move {
                let unconfined = warn_of_unconfined(&gateway, &directory);
                tokio::join!(warn_of_shared_state(&gateway, &directory), unconfined);
            }
            .boxed()
        };
        until_stopped(keep("warnings", Box::new(warn)));
        // Even if nothing is pinned: a new configuration may pin a server.
        let (pins, pinned) = (self.pins, store.clone());
        let follow = move || pin_sync::follow(pins.clone(), pinned.clone()).boxed();
        until_stopped(keep("pins", Box::new(follow)));
        let connections = self.connections;
        let run = move || {
            let connections = connections.clone();
            async move { connections.run().await }.boxed()
        };
        until_stopped(keep("connections", Box::new(run)));
        if let Some(oauth) = self.oauth {
            let stop = stop.clone();
            let run = move || oauth.clone().run(stop.clone()).boxed();
            others.spawn(keep("oauth", Box::new(run)));
        }
        if let Some(shared) = self.shared_limits {
            let stop = stop.clone();
            let run = move || shared.clone().run(stop.clone()).boxed();
            others.spawn(keep("shared_limits", Box::new(run)));
        }
        others.close();
        BackgroundTasks { stop, usage_writer, others, store }
    }
}

impl BackgroundTasks {
    /// Stops the tasks after the last call. All final writes happen at once, `leave_cluster` among
    /// them: a store that hangs delays each of them until its timeout.
    pub async fn stop(self, leave_cluster: impl Future<Output = ()>) {
        self.stop.cancel();
        let write = async {
            if let Ok(mut usage_writer) = self.usage_writer.await
                && !matches!(timeout(FINAL_WRITE_TIMEOUT, usage_writer.write()).await, Ok(Ok(())))
            {
                tracing::error!("the store is away: the latest usage is lost");
            }
        };
        let others = async { tokio::join!(leave_cluster, self.others.wait()) };
        let _ = tokio::join!(write, timeout(FINAL_WRITE_TIMEOUT, others));
        let _ = timeout(CLOSE_TIMEOUT, self.store.close()).await;
    }
}

/// Warns, once each, of servers that several tenants use and that could end the gateway for all of
/// them: programs of the gateway's own user, without a sandbox. Setting `user` explicitly, even to
/// that user, silences the warning.
async fn warn_of_unconfined(gateway: &Gateway, directory: &Directory) {
    let registry = gateway.registry();
    let (mut servers_changed, mut tenants_changed) = (registry.changed(), directory.changed());
    let mut warned = BTreeSet::new();
    loop {
        servers_changed.borrow_and_update();
        tenants_changed.borrow_and_update();
        let tenants = directory.tenants();
        for server in registry.servers() {
            let id = server.id();
            if is_unconfined(server.config(), registry.own_program())
                && tenants.iter().filter(|it| gateway.is_used_by(it, id.as_str())).take(2).count()
                    > 1
                && warned.insert(id.clone())
            {
                tracing::warn!(
                    server = %id,
                    "several tenants use server `{id}`, which runs as the gateway's own user and \
                     without a `sandbox`: it can end the gateway and all other servers. Set \
                     `sandbox`, or `user` to another user; if you trust it, to the gateway's own"
                );
            }
        }
        let changed = tokio::select! {
            changed = servers_changed.changed() => changed,
            changed = tenants_changed.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Returns whether a server is a program that may signal the gateway and its guards. `own_program`
/// signals nobody.
fn is_unconfined(server: &ServerConfig, own_program: &Path) -> bool {
    match &server.transport {
        Transport::Stdio(program) => {
            program.sandbox.is_none() && program.user.is_none() && program.command != own_program
        }
        Transport::Http(_) => false,
    }
}

/// Warns of shared servers of the legacy era: they may keep state for the connection that all
/// tenants share. Setting `sharing` explicitly silences the warning.
async fn warn_of_shared_state(gateway: &Gateway, directory: &Directory) {
    let mut changed = gateway.registry().changed();
    let mut known: Vec<Weak<Backend>> = vec![];
    let mut warnings = FuturesUnordered::new();
    loop {
        changed.borrow_and_update();
        known.retain(|backend| backend.strong_count() > 0);
        for backend in gateway.registry().shared() {
            let is_explicit = backend.config().sharing_is_explicit;
            let backend = Arc::downgrade(&backend);
            if !is_explicit && !known.iter().any(|it| it.ptr_eq(&backend)) {
                warnings.push(warn_if_legacy(backend.clone(), gateway, directory));
                known.push(backend);
            }
        }
        tokio::select! {
            Some(()) = warnings.next() => {}
            changed = changed.changed() => if changed.is_err() { return },
        }
    }
}

async fn warn_if_legacy(backend: Weak<Backend>, gateway: &Gateway, directory: &Directory) {
    let Some(backend) = backend.upgrade() else { return };
    let Some(ready) = backend.first_ready().await else { return };
    if ready.dialect.version().era() != Era::Legacy {
        return;
    }
    let server = backend.id();
    let tenants = directory.tenants();
    let sharing = tenants.iter().filter(|it| gateway.is_used_by(it, server.as_str()));
    let sharing: BTreeSet<_> = sharing.map(|it| &it.id).collect();
    if sharing.len() > 1 {
        tracing::warn!(
            %server,
            tenants = sharing.len(),
            "server `{server}` is shared by {} tenants, and may keep state for its connection: \
             set `sharing = \"tenant\"` or `\"session\"` if it does, `\"shared\"` if it does not",
            sharing.len()
        );
    }
}
