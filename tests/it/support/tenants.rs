//! One gateway, several front ends: each takes its callers for another tenant.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trunkline::backend::Environment;
use trunkline::backend::supervise::restart_policy::Budget;
use trunkline::common::ids::TenantName;
use trunkline::common::policy::Policy;
use trunkline::gateway::Gateway;
use trunkline::http::server::{CONNECTIONS_MAX, ConnectionBounds};
use trunkline::http::{self, AppState};
use trunkline::registry::Registry;
use trunkline::telemetry::metrics::Metrics;
use trunkline::tenants::Directory;

use super::{Api, Fake, Mcp, Setup, TRUNKLINE, in_time, processes};

/// A test ends with [`Tenants::stop`].
pub struct Tenants {
    addrs: Vec<SocketAddr>,
    setup: Setup,
    serving: TaskTracker,
    servers: TaskTracker,
    stop_serving: CancellationToken,
    stop_servers: CancellationToken,
}

impl Setup {
    /// Starts one gateway that is shared by these tenants.
    pub async fn start_for(self, tenants: &[&str]) -> Tenants {
        self.start_within(Budget::default(), tenants).await
    }

    /// Sets the tenants up with another bound on starts.
    pub async fn start_within(self, budget: Budget, tenants: &[&str]) -> Tenants {
        let mut config = self.config();
        let store = self.store().await;
        let metrics = Metrics::new();
        let mut environment =
            Environment::new(TRUNKLINE.into(), config.max_response, metrics.clone());
        environment.budget = budget;
        let (servers, stop_servers) = (TaskTracker::new(), CancellationToken::new());
        let vault = Arc::default();
        let registry =
            Registry::start(&config.servers, &environment, &vault, &servers, &stop_servers);
        let gateway = Arc::new(Gateway::new(registry, metrics.clone()));
        let (serving, stop_serving) = (TaskTracker::new(), CancellationToken::new());
        let mut addrs = vec![];
        for tenant in tenants {
            let id = TenantName::parse(tenant).unwrap();
            config.tenants.entry(id.clone()).or_insert_with(Policy::unlimited);
            config.auth.anonymous_tenant = Some(id);
            let directory = Directory::open(store.clone(), &config, None).await.unwrap();
            let app = AppState::new(gateway.clone(), Arc::new(directory), None, &config);
            let listener = TcpListener::bind(config.listen).await.unwrap();
            addrs.push(listener.local_addr().unwrap());
            let bounds = ConnectionBounds {
                all: CONNECTIONS_MAX,
                per_peer: None,
                head_timeout: config.header_timeout,
            };
            serving.spawn(http::server::serve(
                listener,
                http::router(Arc::new(app), false),
                bounds,
                metrics.connections("callers"),
                stop_serving.clone(),
                stop_serving.clone(),
            ));
        }
        Tenants { addrs, setup: self, serving, servers, stop_serving, stop_servers }
    }
}

impl Tenants {
    /// A client of each tenant at one endpoint.
    pub fn mcp<const N: usize>(&self, path: &str) -> [Mcp; N] {
        let clients = self.addrs.iter().map(|addr| Mcp::new(format!("http://{addr}{path}")));
        clients.collect::<Vec<_>>().try_into().ok().expect("as many as there are tenants")
    }

    /// The gateway as the first of them sees it.
    pub fn first(&self) -> Api {
        Api::new(self.addrs[0], None)
    }

    /// Returns the notes of the server over all tenants.
    pub fn fake(&self, id: &str) -> Fake {
        Fake::new(self.setup.dir.path(), id)
    }

    /// Stops it. Of the processes it has started none may be left.
    pub async fn stop(self) {
        self.stop_serving.cancel();
        self.stop_servers.cancel();
        for tasks in [&self.serving, &self.servers] {
            tasks.close();
            in_time("stopped", tasks.wait()).await;
        }
        assert_eq!(processes::with_environment(&self.setup.mark), [] as [i32; 0]);
    }
}
