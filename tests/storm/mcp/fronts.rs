//! One gateway, served once for each tenant: whoever comes to a tenant's front is that tenant.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trunkline::common::ids::TenantName;
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
    fronts: Vec<Arc<Front>>,
    serving: TaskTracker,
    drain: CancellationToken,
    _following: JoinSet<()>,
}

/// The front of one tenant, which may be removed and added again.
pub struct Front {
    pub address: SocketAddr,
    tenant: TenantName,
    directory: Arc<Directory>,
    with_tenant: Config,
    without_tenant: Config,
    /// Counts removals twice: at their begin, and when the next tenant of the name is there.
    changes: AtomicU64,
}

impl Fronts {
    /// Serves `gateway` to so many tenants. No configuration lies in `empty_dir`: the defaults
    /// apply.
    pub async fn open(gateway: &Arc<Gateway>, tenants: usize, empty_dir: &Path) -> Self {
        let (serving, drain) = (TaskTracker::new(), CancellationToken::new());
        let store = empty_dir.join("trunkline.db");
        let store = Secret::new(format!("sqlite://{}", store.display()));
        let store = Store::open(&store, None).await.expect("the directory is ours");
        let (mut fronts, mut following) = (Vec::with_capacity(tenants), JoinSet::new());
        for tenant in 0..tenants {
            let config = || {
                let mut config = defaults(empty_dir);
                let names = (0..tenants).map(|tenant| (tenant_name(tenant), Policy::unlimited()));
                config.tenants.extend(names);
                config.auth.anonymous_tenant = Some(tenant_name(tenant));
                config
            };
            let (with_tenant, mut without_tenant) = (config(), config());
            without_tenant.tenants.remove(&tenant_name(tenant));
            let directory = Directory::open(store.clone(), &with_tenant, None).await;
            let directory = Arc::new(directory.expect("the store is open"));
            let app = AppState::new(gateway.clone(), directory.clone(), None, &with_tenant);
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
            let listener = listener.expect("there are ports enough");
            let address = listener.local_addr().expect("it is bound");
            let abort = CancellationToken::new();
            let routes = http::router(Arc::new(app), false);
            let head_timeout = with_tenant.header_timeout;
            let bounds = ConnectionBounds { all: CONNECTIONS_MAX, per_peer: None, head_timeout };
            let metrics = Metrics::new().connections("callers");
            let drain = drain.clone();
            serving.spawn(http::server::serve(listener, routes, bounds, metrics, drain, abort));
            if Front::is_remade(tenant) {
                let directory = directory.clone();
                following.spawn(async move { directory.follow().await });
            }
            fronts.push(Arc::new(Front {
                address,
                tenant: tenant_name(tenant),
                directory,
                with_tenant,
                without_tenant,
                changes: AtomicU64::new(0),
            }));
        }
        serving.close();
        Self { fronts, serving, drain, _following: following }
    }

    pub fn of(&self, tenant: usize) -> &Arc<Front> {
        &self.fronts[tenant]
    }

    /// Done when no connection is left.
    pub async fn close(&self) {
        self.drain.cancel();
        self.serving.wait().await;
    }
}

impl Front {
    /// Returns whether a tenant is removed now and then. The first one is not: it calls the quiet
    /// servers, where only one tenant may ever have called.
    pub fn is_remade(tenant: usize) -> bool {
        tenant % 4 == 1
    }

    /// Removes the tenant and adds another of its name. Servers may still work on calls of the old
    /// one, which had the same ids.
    pub async fn remake_tenant(&self) {
        let id = || self.directory.tenant(&self.tenant).map(|tenant| tenant.id.clone());
        let before = id();
        let mut changed = self.directory.changed();
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.directory.set_config(&self.without_tenant);
        self.directory.set_config(&self.with_tenant);
        while id().is_none() || id() == before {
            changed.changed().await.expect("the directory stays");
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of the tenant, which is even; an odd one while it is removed.
    pub fn tenancy(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
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
