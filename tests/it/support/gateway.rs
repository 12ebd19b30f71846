//! The gateway under test, in this process.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use trunkline::app::App;
use trunkline::app::config_watch::ConfigWatch;
use trunkline::events::Events;

use super::{Api, Fake, Setup, TRUNKLINE, eventually, in_time, processes};

/// A gateway that is served on a port of its own. A test ends with [`Gateway::stop`].
pub struct Gateway {
    /// Returns an anonymous caller.
    api: Api,
    pub ops_addr: Option<SocketAddr>,
    pub events: Events,
    setup: Setup,
    reload: Arc<Notify>,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
    stopped: bool,
}

impl Gateway {
    pub(super) async fn start(setup: Setup) -> Self {
        let watch = ConfigWatch::new(setup.sources());
        let config = trunkline::config::load(watch.sources()).unwrap();
        let reload = Arc::new(Notify::new());
        let app = App::build(config, TRUNKLINE.into()).await.unwrap();
        let app = app.with_config_watch(watch, reload.clone());
        let (addr, ops_addr) = (app.addr().unwrap(), app.ops_addr());
        let events = app.events();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(app.run(shutdown.clone().cancelled_owned()));
        let api = Api::new(addr, None);
        Self { api, ops_addr, events, setup, reload, shutdown, running, stopped: false }
    }

    /// Has it read its configuration again, and waits until it has. Tells whether there was no
    /// mistake in it.
    pub async fn apply(&self, setup: &Setup) -> bool {
        let before = self.reloads().await;
        setup.write();
        self.reload.notify_one();
        let after = eventually("read again", async || {
            Some(self.reloads().await).filter(|now| *now != before)
        });
        let (ok, _) = after.await;
        ok > before.0
    }

    /// How often it has read its configuration again: well, and in vain.
    pub async fn reloads(&self) -> (f64, f64) {
        let metrics = self.metrics().await;
        let counted = |outcome: &str| {
            let series = format!("trunkline_config_reloads_total{{outcome=\"{outcome}\"}}");
            metrics.value(&series).unwrap_or_default()
        };
        (counted("ok"), counted("failed"))
    }

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

    /// Returns the notes of a misbehaving server.
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
