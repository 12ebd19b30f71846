//! One gateway, served once for each tenant: whoever comes to a tenant's front is that tenant.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trunkline::common::policy::Policy;
use trunkline::config::{self, Config, Secret, Sources};
use trunkline::gateway::Gateway;
use trunkline::http::server::{CONNECTIONS_MAX, ConnectionBounds};
use trunkline::http::{self, AppState};
use trunkline::store::Store;
use trunkline::telemetry::metrics::Metrics;
use trunkline::tenants::Directory;

use crate::worker::tenant_name;

/// The fronts of all tenants.
pub struct Fronts {
    addresses: Vec<SocketAddr>,
    serving: TaskTracker,
    drain: CancellationToken,
}

impl Fronts {
    /// Serves `gateway` to so many tenants. No configuration lies in `empty_dir`: the defaults
    /// apply.
    pub async fn open(gateway: &Arc<Gateway>, tenants: usize, empty_dir: &Path) -> Self {
        let (serving, drain) = (TaskTracker::new(), CancellationToken::new());
        let mut config = defaults(empty_dir);
        let store = empty_dir.join("trunkline.db");
        let store = Secret::new(format!("sqlite://{}", store.display()));
        let store = Store::open(&store, None).await.expect("the directory is ours");
        let mut addresses = Vec::with_capacity(tenants);
        for tenant in 0..tenants {
            config.tenants.insert(tenant_name(tenant), Policy::unlimited());
            config.auth.anonymous_tenant = Some(tenant_name(tenant));
            let directory = Directory::open(store.clone(), &config, None).await;
            let directory = Arc::new(directory.expect("the store is open"));
            let app = Arc::new(AppState::new(gateway.clone(), directory, None, &config));
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
            let listener = listener.expect("there are ports enough");
            addresses.push(listener.local_addr().expect("it is bound"));
            let abort = CancellationToken::new();
            let routes = http::router(app, false);
            let head_timeout = config.header_timeout;
            let bounds = ConnectionBounds { all: CONNECTIONS_MAX, per_peer: None, head_timeout };
            let metrics = Metrics::new().connections("callers");
            let drain = drain.clone();
            serving.spawn(http::server::serve(listener, routes, bounds, metrics, drain, abort));
        }
        serving.close();
        Self { addresses, serving, drain }
    }

    /// Returns the address of a tenant's front.
    pub fn address(&self, tenant: usize) -> SocketAddr {
        self.addresses[tenant]
    }

    /// Done when no connection is left.
    pub async fn close(&self) {
        self.drain.cancel();
        self.serving.wait().await;
    }
}

fn defaults(empty_dir: &Path) -> Config {
    let sources = Sources {
        file: None,
        mcp_file: None,
        listen: None,
        env: vec![],
        working_dir: empty_dir.to_owned(),
        own_program: "storm".into(),
    };
    config::load(&sources).expect("the defaults are valid")
}
