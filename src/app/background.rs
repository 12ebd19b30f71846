//! Opens the state that tenants need (store, directory, shared limits, identity provider, pins),
//! and runs the tasks that keep it up to date beside the calls.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::pin_sync;
use crate::backend::Backend;
use crate::backend::instance::pins::Pins;
use crate::config::Config;
use crate::gateway::Gateway;
use crate::protocol::mcp::Era;
use crate::store::Store;
use crate::telemetry::metrics::Metrics;
use crate::tenants::Directory;
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
    shared_limits: Option<Arc<SharedLimits>>,
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
        let store = Store::open(&config.store.url, config.auth.hash_key.as_ref()).await?;
        let connect = |url| SharedLimits::connect(url, ANSWER_TIMEOUT, metrics);
        let shared_limits = config.limits.shared.as_ref().map(connect).transpose()?;
        let pins = pin_sync::open(config, &store, metrics).await;
        let directory = Directory::open(store, config, shared_limits.clone()).await?;
        if config.auth.oauth.is_none() {
            directory.warn_if_nobody_can_call();
        }
        let oauth = config.auth.oauth.as_ref().map(Verifier::new).transpose();
        let oauth = oauth.context("cannot verify tokens (`auth.oauth`)")?;
        Ok(Self { directory: Arc::new(directory), oauth, pins, shared_limits })
    }

    /// Counts the replicas, for shared limits while Valkey cannot be asked.
    pub fn members(&self) -> Arc<AtomicU32> {
        self.shared_limits.as_ref().map(|shared| shared.members().clone()).unwrap_or_default()
    }

    /// Starts the tasks.
    pub fn start(self, gateway: Arc<Gateway>) -> BackgroundTasks {
        let stop = CancellationToken::new();
        let store = self.directory.store().clone();
        let mut usage_writer =
            UsageWriter::new(store.clone(), self.directory.clone(), gateway.metrics().usage());
        let until = stop.clone();
        let usage_writer = tokio::spawn(async move {
            until.run_until_cancelled(usage_writer.run()).await;
            usage_writer
        });
        let others = TaskTracker::new();
        let directory = self.directory.clone();
        let run = |task: BoxFuture<'static, ()>| {
            others.spawn(stop.clone().run_until_cancelled_owned(task));
        };
        run(Box::pin(async move { directory.follow().await }));
        run(Box::pin(async move { warn_of_shared_state(&gateway, &self.directory).await }));
        // Even if nothing is pinned: a new configuration may pin a server.
        run(Box::pin(pin_sync::follow(self.pins, store.clone())));
        self.oauth.map(|oauth| others.spawn(oauth.run(stop.clone())));
        self.shared_limits.map(|shared| others.spawn(shared.run(stop.clone())));
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
                warnings.push(warn_if_legacy(backend.clone(), directory));
                known.push(backend);
            }
        }
        tokio::select! {
            Some(()) = warnings.next() => {}
            changed = changed.changed() => if changed.is_err() { return },
        }
    }
}

async fn warn_if_legacy(backend: Weak<Backend>, directory: &Directory) {
    let Some(backend) = backend.upgrade() else { return };
    let Some(ready) = backend.first_ready().await else { return };
    if ready.dialect.version().era() != Era::Legacy {
        return;
    }
    let server = backend.id();
    let tenants = directory.tenants();
    let sharing: BTreeSet<_> =
        tenants.iter().filter(|it| it.sees(server.as_str())).map(|it| &it.id).collect();
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
