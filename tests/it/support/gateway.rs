//! The gateway under test, in this process.

use std::net::SocketAddr;
use std::ops::Deref;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use trunkline::app::App;

use super::{Api, Fake, Setup, TRUNKLINE, in_time, processes};

/// A gateway that is served on a port of its own. A test ends with [`Gateway::stop`].
pub struct Gateway {
    /// As whoever calls without a key.
    api: Api,
    pub ops_addr: Option<SocketAddr>,
    setup: Setup,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
    stopped: bool,
}

impl Gateway {
    pub(super) async fn start(setup: Setup) -> Self {
        let app = App::build(setup.config(), TRUNKLINE.into()).await.unwrap();
        let (addr, ops_addr) = (app.addr().unwrap(), app.ops_addr());
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(app.run(shutdown.clone().cancelled_owned()));
        let api = Api::new(addr, None);
        Self { api, ops_addr, setup, shutdown, running, stopped: false }
    }

    /// What it was started with.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// A new key of a tenant's.
    pub async fn new_key(&self, tenant: &str) -> String {
        self.setup.new_key(tenant).await
    }

    /// The gateway as a tenant sees it.
    pub async fn as_tenant(&self, id: &str) -> Api {
        self.with_key(&self.new_key(id).await)
    }

    /// What a misbehaving server has seen.
    pub fn fake(&self, id: &str) -> Fake {
        Fake::new(self.setup.dir.path(), id)
    }

    /// Every process it has started, guards included.
    pub fn processes(&self) -> Vec<i32> {
        processes::with_environment(&self.setup.mark)
    }

    /// Tells it to stop, without waiting for that.
    pub fn shut_down(&self) {
        self.shutdown.cancel();
    }

    /// Stops it. Of the processes it has started none may be left, not even a dead one.
    pub async fn stop(mut self) {
        let started = self.processes();
        self.stopped = true;
        self.shutdown.cancel();
        in_time("shut down", &mut self.running).await.unwrap();
        let mut left = self.processes();
        left.extend(started.into_iter().filter(|pid| processes::exists(*pid)));
        assert!(left.is_empty(), "processes {left:?} are left");
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        assert!(self.stopped || std::thread::panicking(), "the test must end with `stop`");
    }
}

impl Deref for Gateway {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}
