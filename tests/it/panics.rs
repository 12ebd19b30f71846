//! The gateway's own tasks that panic: the source of ids is made to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trunkline::backend::Environment;
use trunkline::backend::connection::CallIdentity;
use trunkline::backend::connection::request_ids::{IdSource, RequestIds};
use trunkline::common::ids::{CallId, TenantGeneration, TenantId, TenantName};
use trunkline::common::policy::Policy;
use trunkline::gateway::{Call, CallError, Caller, Gateway, Operation, Reply, ToolName};
use trunkline::protocol::jsonrpc::RawObject;
use trunkline::protocol::mcp::requests::CallMeta;
use trunkline::registry::Registry;
use trunkline::telemetry::metrics::Metrics;
use trunkline::tenants::Tenant;
use trunkline::tenants::budgets::Budgets;
use trunkline::tenants::limits::Cost;

use crate::support::{Fake, Setup, TRUNKLINE, eventually, exists, in_time};

/// Panics once at the next request of the gateway itself, when armed.
struct PlantedIds {
    ids: RequestIds,
    armed: &'static AtomicBool,
}

impl IdSource for PlantedIds {
    fn issue(&self, identity: &CallIdentity) -> u64 {
        let is_own = identity.tenant == TenantId::gateway();
        assert!(!is_own || !self.armed.swap(false, Ordering::SeqCst), "planted");
        self.ids.issue(identity)
    }

    fn was_issued(&self, id: u64) -> bool {
        self.ids.was_issued(id)
    }
}

fn planted(armed: &'static AtomicBool) -> Arc<dyn IdSource> {
    Arc::new(PlantedIds { ids: RequestIds::default(), armed })
}

/// A gateway with one server, without its front.
struct Planted {
    setup: Setup,
    gateway: Arc<Gateway>,
    servers: TaskTracker,
    stop: CancellationToken,
}

impl Planted {
    fn start(ids: fn() -> Arc<dyn IdSource>) -> Self {
        let setup = Setup::new().fake_with("fake", &[], "exclusive = true");
        let (servers, stop) = (TaskTracker::new(), CancellationToken::new());
        let metrics = Metrics::new();
        let mut environment = Environment::new(TRUNKLINE.into(), 1 << 20, metrics.clone());
        environment.ids = ids;
        let config = setup.config().servers;
        let registry = Registry::start(&config, &environment, &Arc::default(), &servers, &stop);
        let gateway = Arc::new(Gateway::new(registry, metrics));
        Self { setup, gateway, servers, stop }
    }

    fn fake(&self) -> Fake {
        Fake::new(self.setup.dir.path(), "fake")
    }

    fn call(&self, tool: &str) -> JoinHandle<Result<Reply, CallError>> {
        let tenant = TenantName::parse("caller").unwrap().of(TenantGeneration::generate());
        let caller = Caller::of(Arc::new(Tenant::new(
            tenant,
            0,
            Policy::unlimited(),
            None,
            &Budgets::unlimited(),
        )));
        let arrived = Instant::now();
        let call = Call {
            id: CallId::generate(),
            server: self.gateway.server(&caller, "fake").unwrap(),
            operation: Operation::Tool {
                name: ToolName::Own(tool.to_owned()),
                arguments: RawObject::parse("{}".to_owned().into()).unwrap(),
                mirrored: None,
            },
            others: String::new(),
            meta: CallMeta::default(),
            size: 0,
            fairness_key: Default::default(),
            listener: None,
            arrived,
            deadline: arrived + Duration::from_secs(60),
            deadline_max: None,
            tags: Default::default(),
            waits_for_limits: false,
            traced: None,
            held: None,
            is_kept: false,
            begin_mark: None,
        };
        let gateway = self.gateway.clone();
        tokio::spawn(async move {
            let admission = caller.tenant.admit(Cost::Call).await?;
            gateway.call(&caller, admission, &call).await
        })
    }

    /// Waits until the server is called again, after one panic of this task.
    async fn recovers(&self, task: &str) {
        eventually("it is called again", async || self.call("pid").await.unwrap().ok()).await;
        assert_eq!(self.gateway.metrics().task_panics(task).get(), 1);
    }

    async fn end(self) {
        self.stop.cancel();
        self.servers.close();
        in_time("the servers' end", self.servers.wait()).await;
        assert!(!self.fake().pids().into_iter().any(exists));
    }
}

#[tokio::test]
async fn a_server_whose_supervisor_panics_is_replaced_and_its_calls_are_told() {
    static ARMED: AtomicBool = AtomicBool::new(false);
    let planted = Planted::start(|| planted(&ARMED));
    let held = planted.call("hold");
    let fake = planted.fake();
    eventually("under way", async || fake.calls_of("hold").pop()).await;
    ARMED.store(true, Ordering::SeqCst);
    // The supervisor asks for the changed tools.
    planted.call("change").await.unwrap().unwrap();
    let outcome = in_time("the call in flight ends", held).await.unwrap();
    let error = outcome.err().unwrap().into_last();
    assert!(matches!(error, CallError::BackendExited { .. }), "{error}");
    planted.recovers("instance").await;
    assert_eq!(fake.pids().len(), 2);
    assert!(!exists(fake.pids()[0]), "the old process goes before the next starts");
    planted.end().await;
}

#[tokio::test]
async fn a_server_whose_start_panics_is_started_again() {
    static ARMED: AtomicBool = AtomicBool::new(true);
    let planted = Planted::start(|| planted(&ARMED));
    planted.recovers("start").await;
    planted.end().await;
}

#[tokio::test]
async fn a_supervisor_that_panics_anywhere_begins_again() {
    static ARMED: AtomicBool = AtomicBool::new(true);
    static NEVER: AtomicBool = AtomicBool::new(false);
    let planted = Planted::start(|| {
        assert!(!ARMED.swap(false, Ordering::SeqCst), "planted");
        planted(&NEVER)
    });
    planted.recovers("instance").await;
    assert_eq!(planted.fake().pids().len(), 1);
    planted.end().await;
}
