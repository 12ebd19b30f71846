//! Tenants of an instance whose limit is being found out, on virtual time.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;
use crate::backend::RunState;
use crate::backend::testing::{Peer, backend, ready};
use crate::common::ids::TenantId;
use crate::config::{self, Program, Transport};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const MAX: u32 = 64;

/// A server with one instance, and whether its limit was lowered to find something out.
struct Server {
    backend: Arc<Backend>,
    load: Arc<Load>,
    was_probed: AtomicBool,
    /// Without it the connection would be closed.
    _peer: Peer,
    /// Held by the call that runs, where one runs after another.
    serial: Option<tokio::sync::Mutex<()>>,
}

impl Server {
    fn new(serial: Option<tokio::sync::Mutex<()>>) -> Arc<Self> {
        let config = config::ServerConfig::new(Transport::Stdio(Program::default()));
        let backend =
            backend(config::ServerConfig { max_in_flight: MAX, adaptive: true, ..config });
        let load = Load::new(MAX, true);
        let (ready, peer) = ready();
        backend.set_instance_state(0, RunState::Ready(ready), Some(&load));
        let was_probed = AtomicBool::new(false);
        Arc::new(Self { backend, load, was_probed, _peer: peer, serial })
    }

    /// Makes a call; returns how long it waited for its turn.
    async fn call(&self, tenant: &str, tool: &str, takes: Duration) -> Duration {
        let (tenant, came) = (TenantId::testing(tenant), Instant::now());
        let place = self.backend.queue.enqueue(&tenant, 1, 0);
        let _permit = place.acquire(takes, came + HOUR).await.unwrap();
        let instance_permit = self.backend.instance_permit(None, came + HOUR).await.unwrap();
        let waited = came.elapsed();
        let measured = self.backend.measure(&instance_permit, tool);
        let _turn = match &self.serial {
            Some(serial) => Some(serial.lock().await),
            None => None,
        };
        sleep(takes).await;
        measured.answered();
        let is_probed = self.backend.pool.slots_left_free() > 0;
        self.was_probed.fetch_or(is_probed, Ordering::Relaxed);
        waited
    }
}

/// Returns the longest wait of one tenant's quick calls beside so many slow calls of another.
async fn longest_wait_beside(slow_calls: u32) -> Duration {
    let server = Server::new(None);
    let mut slow = JoinSet::new();
    for n in 0..slow_calls {
        let server = server.clone();
        slow.spawn(async move {
            sleep(25 * SECOND * n / slow_calls).await;
            loop {
                server.call("slow", "slow", 25 * SECOND).await;
            }
        });
    }
    let mut longest = Duration::ZERO;
    let quick = async {
        let until = Instant::now() + HOUR / 2;
        while Instant::now() < until {
            longest = longest.max(server.call("quick", "quick", 10 * MS).await);
            sleep(90 * MS).await;
        }
    };
    tokio::select! {
        () = quick => {}
        () = server.backend.adapt(&server.load) => {}
    }
    assert!(server.was_probed.load(Ordering::Relaxed), "nothing was to be found out");
    assert_eq!(server.load.limit(), MAX, "it runs all at once");
    longest
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_holds_nothing_does_not_wait_for_the_calls_of_another_in_a_probe() {
    assert_eq!(longest_wait_beside(40).await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn nor_where_a_single_call_is_as_much_as_a_probe_allows() {
    assert_eq!(longest_wait_beside(4).await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_serial_server_is_found_out_also_where_every_caller_is_a_tenant_of_its_own() {
    let server = Server::new(Some(tokio::sync::Mutex::new(())));
    let mut callers = JoinSet::new();
    for n in 0..50 {
        let server = server.clone();
        callers.spawn(async move {
            loop {
                server.call(&format!("t{n}"), "tool", 10 * MS).await;
            }
        });
    }
    let found_out = async {
        while server.load.limit() > 3 {
            sleep(SECOND).await;
        }
    };
    tokio::select! {
        found = timeout(HOUR, found_out) => found.expect("it is taken for a concurrent one"),
        () = server.backend.adapt(&server.load) => {}
    }
}
