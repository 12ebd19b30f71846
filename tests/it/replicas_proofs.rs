//! The port for other replicas: who is let in, and that nothing is sent on twice.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Uri};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use trunkline::cluster::{Cluster, Peer, PeerRequest};
use trunkline::config::{Config, Secret};
use trunkline::store::Store;

use crate::replicas::{is_good, stop, two};
use crate::support::mcp_legacy::{Session, request};
use crate::support::{Answer, Api, Database, eventually};

const PROOF: &str = "trunkline-replica-proof";

/// Something that replicas can take for one of them, and that notes what they send.
pub struct Recorder {
    pub addr: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// A request that has come there.
#[derive(Clone)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Recorder {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let seen = Arc::default();
        let routes = Router::new().fallback(note).with_state(Arc::clone(&seen));
        tokio::spawn(async { axum::serve(listener, routes).await });
        Self { addr, seen }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }
}

async fn note(
    State(seen): State<Arc<Mutex<Vec<Seen>>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) {
    seen.lock().push(Seen { method, path: uri.path().to_owned(), headers, body });
}

/// All replicas that there are.
async fn peers(store: &Store) -> Vec<Peer> {
    let found = store.heartbeat("test", "127.0.0.1:1").await.unwrap();
    store.remove_replica("test").await.unwrap();
    let peer = |(id, address): (String, String)| Peer { id, address: address.parse().unwrap() };
    found.into_iter().map(peer).collect()
}

/// Returns the request that another replica with this configuration would send.
async fn letter_of(config: &Config, store: &Store, to: &Peer, letter: &PeerRequest) -> Seen {
    let recorder = Recorder::start().await;
    let (replicas, _) =
        Cluster::join(config, recorder.addr, store.clone(), Arc::default()).await.unwrap();
    let peer = Peer { address: recorder.addr, ..to.clone() };
    assert!(replicas.send(&peer, letter).await.is_err(), "the recorder is no replica");
    store.remove_replica(&replicas.me().id).await.unwrap();
    recorder.seen().pop().unwrap()
}

async fn send(to: SocketAddr, seen: &Seen) -> Answer {
    let url = format!("http://{to}{}", seen.path);
    let request = Api::new(to, None).client.request(seen.method.clone(), url);
    Answer::of(request.headers(seen.headers.clone()).body(seen.body.clone())).await
}

fn ping(session: &Session) -> PeerRequest {
    let mut headers = HeaderMap::new();
    headers.insert("mcp-session-id", session.id.parse().unwrap());
    headers.insert("content-type", "application/json".parse().unwrap());
    headers.insert("accept", "application/json, text/event-stream".parse().unwrap());
    let body = request(1, "ping", json!({})).to_string().into();
    PeerRequest { method: Method::POST, path: "/mcp".to_owned(), headers, body }
}

#[tokio::test]
async fn only_what_another_replica_sends_is_taken_and_only_as_it_was_sent() {
    let database = Database::sqlite();
    let gateways = two(&database).await;
    let store = database.open().await;
    let [one, other]: [Peer; 2] = peers(&store).await.try_into().unwrap();
    let config = gateways[0].setup().config();
    let session = Session::open(&gateways[0], "/mcp").await;
    let sent = letter_of(&config, &store, &one, &ping(&session)).await;
    assert!(!sent.headers.contains_key("mcp-session-id"));
    assert_eq!(send(one.address, &sent).await.status, 200);
    // A second time, to another replica, and as something else.
    assert_eq!(send(one.address, &sent).await.status, 403);
    assert_eq!(send(other.address, &sent).await.status, 404);
    let list = request(1, "tools/list", json!({})).to_string();
    let changes: [fn(&mut Seen, &str); 4] = [
        |sent, _| sent.path = "/mcp/fake".to_owned(),
        |sent, _| sent.method = Method::DELETE,
        |sent, list| sent.body = list.to_owned().into(),
        |sent, _| sent.body = Bytes::new(),
    ];
    for change in changes {
        let mut changed = letter_of(&config, &store, &one, &ping(&session)).await;
        change(&mut changed, &list);
        changed.headers.remove("content-length");
        assert_eq!(send(one.address, &changed).await.status, 403);
    }
    // By somebody with other keys, and by somebody without.
    let others = Secret::new("another-key-that-is-long-enough-to-be-one".to_owned());
    let stranger = Config { session_keys: vec![others], ..config };
    let forged = letter_of(&stranger, &store, &one, &ping(&session)).await;
    assert_eq!(send(one.address, &forged).await.status, 403);
    let mut bare = sent.clone();
    bare.headers.remove(PROOF);
    bare.headers.insert("mcp-session-id", session.id.parse().unwrap());
    for method in [Method::POST, Method::GET, Method::DELETE] {
        let bare = Seen { method, ..bare.clone() };
        assert_eq!(send(one.address, &bare).await.status, 403);
    }
    for path in ["/v1/servers", "/metrics", "/admin/v1/tenants", "/readyz"] {
        let elsewhere = Seen { method: Method::GET, path: path.to_owned(), ..sent.clone() };
        assert_eq!(send(one.address, &elsewhere).await.status, 404, "{path}");
    }
    // For callers a proof is no header that means anything.
    assert_eq!(send(gateways[0].addr, &sent).await.status, 400);
    assert!(is_good(&session).await);
    stop(gateways).await;
}

#[tokio::test]
async fn nothing_is_sent_on_twice() {
    let database = Database::sqlite();
    let gateways = two(&database).await;
    let (store, recorder) = (database.open().await, Recorder::start().await);
    let session = Session::open(&gateways[0], "/mcp/fake").await;
    let elsewhere = session.at(&gateways[1], "/mcp/fake");
    // Both take the recorder for a third one, as soon as each has told it something of its own.
    let cancel = |id: &str| json!({"requestId": id});
    let heard = |id: &str| {
        let is_it = |it: &Seen| String::from_utf8_lossy(&it.body).contains(id);
        recorder.seen().iter().filter(|it| is_it(it)).count()
    };
    let mut n = 0;
    for session in [&session, &elsewhere] {
        eventually("known", async || {
            store.heartbeat("recorder", &recorder.addr.to_string()).await.unwrap();
            n += 1;
            let id = format!("first-{n}-");
            session.notify("notifications/cancelled", cancel(&id)).await;
            (recorder.seen().iter().any(|it| it.headers.contains_key(PROOF)) && heard(&id) > 0)
                .then_some(())
        })
        .await;
    }
    for _ in 0..10 {
        elsewhere.notify("notifications/cancelled", cancel("second")).await;
    }
    session.delete().await;
    let is_end = |it: &&Seen| it.method == Method::DELETE;
    eventually("all heard", async || (heard("second") >= 10).then_some(())).await;
    assert_eq!(heard("second"), 10);
    assert_eq!(recorder.seen().iter().filter(is_end).count(), 1);
    stop(gateways).await;
}
