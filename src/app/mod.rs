//! Assembles the gateway. `main` and the tests build the same one.

pub mod announce;
pub mod background;
mod call_log;
pub mod config_watch;
pub mod descriptors;
mod join;
pub(crate) mod pin_sync;
pub mod reload;
pub mod service_manager;
pub mod signals;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use arc_swap::ArcSwap;
use futures_util::FutureExt;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use self::call_log::CallLogTask;
use self::descriptors::ConnectionLimits;
use self::join::JoinedCluster;
use crate::app::background::TenantServices;
use crate::app::config_watch::ConfigWatch;
use crate::app::reload::Reload;
use crate::app::service_manager::ServiceManager;
use crate::backend::Environment;
use crate::config::Config;
use crate::events::Events;
use crate::gateway::Gateway;
use crate::http::server::ConnectionBounds;
use crate::http::{self, AppState};
use crate::otel::{self, Telemetry};
use crate::registry::Registry;
use crate::telemetry::logging::{self, LineLog};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::tasks::restart_on_panic;

/// From the end of the servers until the answers to their calls are written.
const FINAL_ANSWERS_TIMEOUT: Duration = Duration::from_secs(1);

/// A gateway that listens, and whose servers are starting.
pub struct App {
    /// The configuration in force.
    config: Arc<ArcSwap<Config>>,
    /// Reloads the configuration when its files change or when notified.
    watch: Option<(ConfigWatch, Arc<Notify>)>,
    service_manager: ServiceManager,
    metrics: Metrics,
    state: Arc<AppState>,
    tenants: TenantServices,
    listener: TcpListener,
    ops_listener: Option<TcpListener>,
    cluster: Option<JoinedCluster>,
    call_log: CallLogTask,
    telemetry: Telemetry,
    servers: TaskTracker,
    stop_servers: CancellationToken,
}

impl App {
    /// Binds the ports and starts the servers. `own_program` is this executable.
    pub async fn build(config: Config, own_program: PathBuf) -> Result<Self> {
        let listener = bind(config.listen, "listen").await?;
        let ops_listener = match config.ops_listen {
            Some(address) => Some(bind(address, "ops_listen").await?),
            None => None,
        };
        let metrics = Metrics::new();
        logging::count_dropped_in(metrics.dropped_log_lines());
        let tenants = TenantServices::open(&config, &metrics).await?;
        let mut cluster = match &config.replicas {
            Some(replicas) => {
                let listener = bind(replicas.listen, "replicas.listen").await?;
                let (store, count) = (tenants.directory.store(), tenants.members());
                Some(JoinedCluster::join(listener, &config, store, count).await?)
            }
            None => None,
        };
        let mut environment = Environment::new(own_program, config.max_response, metrics.clone());
        environment.pins = tenants.pins.clone();
        environment.connections = Some(tenants.connections.clone());
        let servers = TaskTracker::new();
        let stop_servers = CancellationToken::new();
        let vault = tenants.directory.secrets().vault();
        let registry =
            Registry::start(&config.servers, &environment, vault, &servers, &stop_servers);
        registry.set_left_out(config.left_out.clone());
        announce::warn_without_effect(&tenants.directory.tenants(), &config);
        let sampler = otel::sampler(&config.otel);
        let gateway = Gateway::new(registry, metrics.clone())
            .with_sampler(sampler)
            .with_toolsets(&config.toolsets);
        let gateway = Arc::new(gateway);
        let (directory, oauth) = (tenants.directory.clone(), tenants.oauth.clone());
        let telemetry = Telemetry::open(&config.otel, &metrics, gateway.events())
            .context("cannot export telemetry (`OTEL_*` variables)")?;
        let events = gateway.events();
        let call_log = CallLogTask::open(&config.log, &metrics, events, telemetry.log())?;
        let mut state = AppState::new(gateway, directory, oauth, &config);
        state.set_connections(tenants.connections.clone());
        if let Some(cluster) = &mut cluster {
            let attached = cluster.attach(state, &config).await;
            state = attached.inspect_err(|_| stop_servers.cancel())?;
        }
        Ok(Self {
            config: Arc::new(ArcSwap::from_pointee(config)),
            watch: None,
            service_manager: ServiceManager::default(),
            metrics,
            state: Arc::new(state),
            tenants,
            listener,
            ops_listener,
            cluster,
            call_log,
            telemetry,
            servers,
            stop_servers,
        })
    }

    /// Reloads the configuration when its files change, and when `asked` is notified.
    pub fn with_config_watch(self, watch: ConfigWatch, asked: Arc<Notify>) -> Self {
        Self { watch: Some((watch, asked)), ..self }
    }

    /// Tells the service manager when the gateway is ready, reloads and stops.
    pub fn with_service_manager(self, service_manager: ServiceManager) -> Self {
        Self { service_manager, ..self }
    }

    /// Returns the events of this gateway.
    pub fn events(&self) -> Events {
        self.state.gateway().events().clone()
    }

    /// Returns the log whose file is opened again on SIGHUP.
    pub fn line_log(&self) -> LineLog {
        self.call_log.lines.clone()
    }

    /// Returns the address for callers.
    pub fn addr(&self) -> Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Returns the address for operators, if it is a separate one.
    pub fn ops_addr(&self) -> Option<SocketAddr> {
        self.ops_listener.as_ref()?.local_addr().ok()
    }

    /// Returns the address for other replicas, if replicas are configured.
    pub fn replicas_addr(&self) -> Option<SocketAddr> {
        self.cluster.as_ref()?.listener.local_addr().ok()
    }

    /// Serves until `shutdown`, then ends in order: not ready, no new connections, calls in flight
    /// finished within `drain_timeout`, servers stopped.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let (drain, abort) = (CancellationToken::new(), CancellationToken::new());
        let drain_replicas = CancellationToken::new();
        let (serving, serving_replicas) = (TaskTracker::new(), TaskTracker::new());
        let config = self.config.load_full();
        let limits = ConnectionLimits::current(&config);
        let head_timeout = config.header_timeout;
        let bounds = |all, per_peer| ConnectionBounds { all, per_peer, head_timeout };
        let serve = |listener, router, bounds, name, drain: &CancellationToken| {
            let (drain, abort) = (drain.clone(), abort.clone());
            let metrics = self.metrics.connections(name);
            http::server::serve(listener, router, bounds, metrics, drain, abort)
        };
        let announcing = self.addr().ok().map(|callers| {
            let registry = self.state.gateway().registry().clone();
            let line =
                announce::announce(registry, callers, self.ops_addr(), self.state.sign_in_link());
            let manager = self.service_manager.clone();
            AbortOnDropHandle::new(tokio::spawn(async move {
                line.await;
                manager.tell_ready();
            }))
        });
        let router = http::router(self.state.clone(), self.ops_listener.is_none());
        let callers = bounds(limits.callers, config.max_connections_per_peer);
        serving.spawn(serve(self.listener, router, callers, "callers", &drain));
        if let Some(listener) = self.ops_listener {
            let router = http::ops_router(self.state.clone());
            let bounds = bounds(limits.operators, None);
            serving.spawn(serve(listener, router, bounds, "operators", &drain));
        }
        let cluster = self.cluster.map(|cluster| {
            let (listener, tasks) = cluster.start(self.state.clone());
            let router = http::replicas_router(self.state.clone());
            let bounds = bounds(limits.replicas, None);
            serving_replicas.spawn(serve(listener, router, bounds, "replicas", &drain_replicas));
            tasks
        });
        serving.close();
        serving_replicas.close();

        let (mut state, metrics) = (self.state.clone(), self.metrics.clone());
        let sweeping = AbortOnDropHandle::new(tokio::spawn(async move {
            restart_on_panic(&metrics, "sessions", &mut state, |it| it.sweep_sessions().boxed())
                .await;
        }));
        let (mut trunk, metrics) = (self.state.trunk().clone(), self.metrics.clone());
        let sampling = AbortOnDropHandle::new(tokio::spawn(async move {
            restart_on_panic(&metrics, "history", &mut trunk, |it| it.run().boxed()).await;
        }));
        let reloading = self.watch.map(|(watch, asked)| {
            let mut reload = Reload {
                watch,
                asked,
                config: self.config.clone(),
                gateway: self.state.gateway().clone(),
                directory: self.tenants.directory.clone(),
                connections: self.tenants.connections.clone(),
                metrics: self.metrics.config(),
                service_manager: self.service_manager.clone(),
            };
            let metrics = self.metrics.clone();
            AbortOnDropHandle::new(tokio::spawn(async move {
                restart_on_panic(&metrics, "reload", &mut reload, |it| it.run().boxed()).await;
            }))
        });
        let logging = self.call_log.start(&self.metrics);
        let state = self.state.clone();
        let telemetry = self.telemetry.start(&self.metrics, Arc::new(move || state.read_metrics()));
        let calls = self.state.calls().start(&self.metrics);
        let tenants = self.tenants.start(self.state.gateway().clone(), &self.metrics);
        let alive = AbortOnDropHandle::new(tokio::spawn(self.service_manager.clone().tell_alive()));
        shutdown.await;
        self.service_manager.tell_stopping();
        drop((announcing, sweeping, sampling, reloading));
        tracing::info!("shutting down");
        self.state.start_draining();
        let config = self.config.load_full();
        sleep(config.drain_delay).await;
        drain.cancel();
        self.state.close_streams();
        self.state.calls().close();
        let served = async {
            serving.wait().await;
            // Kept calls go on without their callers.
            self.state.calls().ended().await;
            // Last: calls in flight may wait for requests from other replicas.
            drain_replicas.cancel();
            serving_replicas.wait().await;
        };
        tokio::pin!(served);
        if timeout(config.drain_timeout, &mut served).await.is_err() {
            tracing::warn!("calls were still in flight at the end of `drain_timeout`");
            // Stopping the servers answers their calls: not executed, or outcome unknown.
            self.stop_servers.cancel();
            drain_replicas.cancel();
            if timeout(FINAL_ANSWERS_TIMEOUT, &mut served).await.is_err() {
                abort.cancel();
                served.await;
            }
        }
        self.stop_servers.cancel();
        self.servers.close();
        self.servers.wait().await;
        let leave = async {
            // First: the calls of a replica that has left count as given up.
            calls.stop().await;
            if let Some(cluster) = cluster {
                cluster.leave().await;
            }
        };
        // After the last call, so that its usage is written too.
        tokio::join!(tenants.stop(leave), telemetry.stop());
        logging.stop();
        drop(alive);
        tracing::info!("shut down");
    }
}

async fn bind(address: SocketAddr, key: &str) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} (`{key}`)"))
}
