//! Cancelled requests that are unknown here: all replicas are told, briefly and not too often.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::replicas::{stop, two};
use crate::replicas_proofs::Recorder;
use crate::support::mcp_legacy::Session;
use crate::support::{Database, Gateway, eventually};

const CANCELLED: &str = "notifications/cancelled";
/// So many cancelled requests of a tenant are told to others at once.
const AT_ONCE: usize = 64;

async fn notices(gateway: &Gateway, outcome: &str) -> f64 {
    let series = format!("trunkline_cancel_notices_total{{outcome=\"{outcome}\"}}");
    gateway.metrics().await.value(&series).unwrap_or_default()
}

#[tokio::test]
async fn replicas_are_told_the_id_and_nothing_else() {
    let database = Database::sqlite();
    let gateways = two(&database).await;
    let (store, recorder) = (database.open().await, Recorder::start().await);
    let session = Session::open(&gateways[0], "/mcp/fake").await;
    let heard = || {
        let mut bodies = recorder.seen().into_iter();
        bodies.find_map(|it| serde_json::from_slice::<Value>(&it.body).ok())
    };
    let notice = eventually("heard", async || {
        store.heartbeat("recorder", &recorder.addr.to_string()).await.unwrap();
        let reason = "x".repeat(100_000);
        let params = json!({"requestId": "a", "reason": reason, "_meta": {"more": [1, 2]}});
        assert_eq!(session.notify(CANCELLED, params).await.status, 202);
        heard()
    })
    .await;
    let params = json!({"requestId": "a"});
    assert_eq!(notice, json!({"jsonrpc": "2.0", "method": CANCELLED, "params": params}));
    assert!(notices(&gateways[0], "sent").await > 0.0);
    // No request has such ids, so nobody is told.
    let sent = notices(&gateways[0], "sent").await;
    for id in [json!("x".repeat(2000)), json!({"a": 1}), json!([1]), Value::Null] {
        assert_eq!(session.notify(CANCELLED, json!({"requestId": id})).await.status, 202);
    }
    assert_eq!(notices(&gateways[0], "sent").await, sent);
    stop(gateways).await;
}

#[tokio::test]
async fn a_tenant_that_cancels_too_much_at_once_is_refused() {
    let database = Database::sqlite();
    let gateways = two(&database).await;
    // A replica that accepts connections and never answers holds every notice up for a second.
    let hung = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = hung.local_addr().unwrap().to_string();
    let (told, mut connections) = tokio::sync::watch::channel(0);
    let accepting = tokio::spawn(async move {
        let mut held = vec![];
        loop {
            held.push(hung.accept().await.unwrap());
            told.send_replace(held.len());
        }
    });
    let store = database.open().await;
    let session = Session::open(&gateways[0], "/mcp/fake").await;
    let cancel = |id: usize| session.notify(CANCELLED, json!({"requestId": id}));
    eventually("known", async || {
        store.heartbeat("hung", &address).await.unwrap();
        cancel(0).await;
        (*connections.borrow_and_update() > 0).then_some(())
    })
    .await;
    let stays = async {
        loop {
            store.heartbeat("hung", &address).await.unwrap();
            sleep(Duration::from_secs(1)).await;
        }
    };
    let began = Instant::now();
    let answers = tokio::select! {
        answers = join_all((0..8 * AT_ONCE).map(cancel)) => answers,
        () = stays => unreachable!(),
    };
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    let refused = answers.iter().filter(|it| it.status == 429).count();
    assert!(answers.iter().all(|it| [202, 429].contains(&it.status)));
    // Each notice takes a second, so no more are sent in each, however late the last ones come.
    let sent = answers.len() - refused;
    assert!(sent <= (seconds + 1) * AT_ONCE, "{sent} were sent within {seconds} seconds");
    assert_eq!(notices(&gateways[0], "refused").await, refused as f64);
    accepting.abort();
    stop(gateways).await;
}
