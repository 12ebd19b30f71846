//! A session's requests and streams, and the requests of its servers.

use serde_json::{Value, json};

use super::client::SERVER_REQUESTS_MAX;
use super::*;
use crate::backend::changes::recipients::{Recipients, ServerRequest, SessionClient};
use crate::backend::connection::CloseReason;
use crate::backend::testing::{PIPE_LEN, Peer, connect};
use crate::common::policy::Policy;
use crate::tenants::budgets::Budgets;

fn session() -> Arc<Session> {
    let id = TenantId::testing("acme");
    let tenant = &Tenant::new(id, 0, Policy::unlimited(), None, &Budgets::unlimited());
    let (id, version, owner) =
        (SessionId::generate(), ProtocolVersion::LATEST_LEGACY, OwnerReplica::This);
    Arc::new(Session::new(id, tenant, version, "{}".into(), owner, u64::MAX))
}

/// Connects to a process of a server's.
fn process() -> (Arc<Connection>, Peer) {
    connect(PIPE_LEN, Recipients::new(ServerId::parse("test").unwrap(), None))
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn ask(session: &Session, connection: &Arc<Connection>, id: &str) {
    let (connection, method) = (Arc::downgrade(connection), "roots/list".to_owned());
    session.forward_request(ServerRequest { connection, id: raw(id), method, params: None });
}

fn next(notifications: &mut CallNotifications) -> Value {
    let Some(CallNotification::Message(message)) = notifications.try_recv() else {
        panic!("nothing came")
    };
    serde_json::from_slice(&message).unwrap()
}

#[tokio::test]
async fn a_response_goes_once_to_the_process_that_asked_under_its_own_id() {
    let (session, quota) = (session(), Arc::default());
    let (_stream, mut notifications) = session.open_stream(&quota).unwrap();
    let [(one, mut peer_one), (two, mut peer_two)] = [process(), process()];
    ask(&session, &one, "1");
    ask(&session, &two, "1");
    let [of_one, of_two] = [next(&mut notifications), next(&mut notifications)];
    assert_ne!(of_one["id"], of_two["id"]);
    session.respond_to_server(&raw("\"1\""), Ok(&raw("1")));
    session.respond_to_server(&raw("99"), Ok(&raw("2")));
    let id = raw(&of_two["id"].to_string());
    session.respond_to_server(&id, Ok(&raw("{\"for\":\n\"two\"}")));
    session.respond_to_server(&id, Ok(&raw("3")));
    session.respond_to_server(&raw(&of_one["id"].to_string()), Err(&raw("{\"code\":1}")));
    assert_eq!(
        peer_two.receive().await,
        json!({"jsonrpc": "2.0", "id": 1, "result": {"for": "two"}})
    );
    assert_eq!(peer_one.receive().await, json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 1}}));
    assert!(session.state.lock().server_requests.is_empty());
}

#[tokio::test]
async fn requests_to_a_client_are_bounded_and_end_with_their_process() {
    let (session, quota) = (session(), Arc::default());
    let (connection, mut peer) = process();
    let (_stream, mut notifications) = session.open_stream(&quota).unwrap();
    for n in 0..SERVER_REQUESTS_MAX {
        ask(&session, &connection, &n.to_string());
        next(&mut notifications);
    }
    ask(&session, &connection, "\"too much\"");
    assert!(notifications.try_recv().is_none());
    let refused = peer.receive().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("too much"), &json!(-32603)));
    // The requests of a process end with it.
    connection.close(&CloseReason::Stopped);
    drop((connection, peer));
    while session.state.lock().server_requests.values().any(|(asker, _)| asker.strong_count() > 0) {
        tokio::task::yield_now().await;
    }
    let (another, _peer) = process();
    ask(&session, &another, "0");
    assert_eq!(next(&mut notifications)["method"], "roots/list");
    assert_eq!(session.state.lock().server_requests.len(), 1);
}

#[tokio::test]
async fn a_client_without_a_stream_that_it_reads_is_not_asked() {
    let session = session();
    let (connection, mut peer) = process();
    ask(&session, &connection, "7");
    assert_eq!(peer.receive().await["error"]["code"], -32603);
    assert!(session.state.lock().unheard.is_none());
    // Nor is a client that does not read.
    let (_stream, notifications) = session.open_stream(&Arc::default()).unwrap();
    while session.notify("notifications/x", None) == Passed::On {}
    ask(&session, &connection, "8");
    assert_eq!(peer.receive().await["id"], 8);
    assert!(session.state.lock().server_requests.is_empty());
    drop(notifications);
}

#[tokio::test]
async fn a_message_goes_to_the_newest_request_that_can_receive_it() {
    let session = session();
    let begin = |id: &str| {
        let (listener, notifications) = NotificationSender::new(None, None);
        (session.register(&raw(id), Some(listener), CancellationToken::new()), notifications)
    };
    let (_stream, mut of_session) = session.open_stream(&Arc::default()).unwrap();
    let ((first, mut of_first), (second, of_second)) = (begin("1"), begin("2"));
    // The client has disconnected from its newest request.
    drop(of_second);
    session.notify("notifications/x", None);
    assert_eq!(next(&mut of_first)["method"], "notifications/x");
    drop((first, second));
    session.notify("notifications/y", None);
    assert_eq!(next(&mut of_session)["method"], "notifications/y");
}

#[tokio::test]
async fn a_request_is_cancelled_by_its_id_whatever_its_spelling_and_once() {
    let session = session();
    let tokens = [(); 3].map(|()| CancellationToken::new());
    let _one = session.register(&raw("\"a\""), None, tokens[0].clone());
    let two = session.register(&raw("1"), None, tokens[1].clone());
    // The id is in use already, so a cancel would be ambiguous.
    let _again = session.register(&raw("1"), None, tokens[2].clone());
    assert!(!session.cancel(&raw("\"1\"")) && !session.cancel(&raw("2")));
    assert!(!tokens.iter().any(CancellationToken::is_cancelled));
    assert!(session.cancel(&raw("\"\\u0061\"")));
    assert!(tokens[0].is_cancelled());
    drop(two);
    assert!(!session.cancel(&raw("1")));
    assert!(!tokens[1].is_cancelled() && !tokens[2].is_cancelled());
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_requests_streams_and_subscriptions() {
    let (session, quota) = (session(), Arc::<StreamQuota>::default());
    let cancelled = CancellationToken::new();
    let _running = session.register(&raw("1"), None, cancelled.clone());
    let (_stream, mut notifications) = session.open_stream(&quota).unwrap();
    let changes = Changes::new(ServerId::parse("test").unwrap());
    SessionClient::follow_changes(&*session, &changes);
    session.end();
    assert!(cancelled.is_cancelled() && session.has_ended());
    assert!(notifications.recv().await.is_none());
    assert!(session.state.lock().subscriptions.is_empty() && session.state.lock().permit.is_none());
}

#[tokio::test]
async fn what_comes_while_the_client_reads_no_stream_waits_for_the_next_one() {
    let session = session();
    let first = session.open_stream(&Arc::default()).unwrap();
    drop(first.1);
    for _ in 0..500 {
        assert_eq!(session.notify("notifications/x", None), Passed::On);
    }
    let (_stream, mut notifications) = session.open_stream(&Arc::default()).unwrap();
    for _ in 0..500 {
        assert_eq!(next(&mut notifications)["method"], "notifications/x");
    }
    // Not without end.
    drop(notifications);
    while session.notify("notifications/y", None) == Passed::On {}
    assert_eq!(session.notify("notifications/y", None), Passed::Dropped(1));
    session.end();
    assert!(session.state.lock().unheard.is_none());
    assert_eq!(session.notify("notifications/y", None), Passed::Unwanted);
}
