//! Tokens, and what is remembered beside them.

use std::time::Duration;

use tokio::time::advance;

use super::*;
use crate::cluster::testing::replica;
use crate::http::mcp::stream::stream_quota::Seats;
use crate::protocol::mcp::LogLevel;

const ALL: Scope = Scope::All;

fn sessions() -> Sessions {
    Sessions::new(Arc::new(Sealer::random()), None)
}

fn tenant(id: &str) -> TenantId {
    TenantId::parse(id).unwrap()
}

/// A session whose client has its token.
fn open(sessions: &Sessions) -> String {
    let capabilities = RawValue::from_string("{\"roots\":{}}".into()).unwrap();
    let version = ProtocolVersion::LATEST_LEGACY;
    sessions.create(&tenant("acme"), &ALL, version, &capabilities).unwrap().1
}

fn enter<'s>(sessions: &'s Sessions, token: &str) -> Option<Entered<'s>> {
    sessions.enter(&tenant("acme"), &ALL, token)
}

fn live(sessions: &Sessions) -> usize {
    sessions.shards.iter().map(|shard| shard.lock().live.len()).sum()
}

/// Gives a session something that its token does not say.
fn remember(sessions: &Sessions, token: &str, seats: &Arc<Seats>) {
    enter(sessions, token).unwrap().session.set_log_level(LogLevel::Error, seats).unwrap();
}

#[tokio::test]
async fn nothing_is_kept_of_a_session_that_its_token_says() {
    let sessions = sessions();
    let tokens: Vec<_> = (0..100).map(|_| open(&sessions)).collect();
    assert_eq!(live(&sessions), 0);
    for token in &tokens {
        let entered = enter(&sessions, token).unwrap();
        assert!(entered.session.is_ours());
        assert_eq!(entered.session.capabilities(), "{\"roots\":{}}");
        assert_eq!(live(&sessions), 1);
        let again = enter(&sessions, token).unwrap();
        assert!(Arc::ptr_eq(&entered.session, &again.session));
    }
    assert_eq!(live(&sessions), 0);
}

#[tokio::test]
async fn what_must_be_remembered_is_until_the_session_ends() {
    let (sessions, seats) = (sessions(), Arc::<Seats>::default());
    let token = open(&sessions);
    remember(&sessions, &token, &seats);
    assert_eq!(live(&sessions), 1);
    assert_eq!(enter(&sessions, &token).unwrap().session.log_level(), Some(LogLevel::Error));
    sessions.sweep();
    let session = enter(&sessions, &token).unwrap().session.clone();
    assert_eq!(session.log_level(), Some(LogLevel::Error));
    sessions.end(&session);
    assert!(enter(&sessions, &token).is_none());
    assert!(session.has_ended());
    assert_eq!(live(&sessions), 0);
}

#[tokio::test]
async fn a_token_is_good_for_its_tenant_its_endpoint_and_its_time() {
    let sessions = sessions();
    let token = open(&sessions);
    assert!(enter(&sessions, &token).is_some());
    assert!(sessions.enter(&tenant("other"), &ALL, &token).is_none());
    assert!(sessions.enter(&tenant("acme"), &Scope::One("std".into()), &token).is_none());
    assert!(sessions.enter(&tenant("acme"), &ALL, "").is_none());
    let seal = |expires, version| {
        let capabilities = RawValue::from_string("{}".into()).unwrap();
        let (id, owner) = ([7; 16], "another");
        let (server, address, capabilities) = (None, None, &*capabilities);
        let token = Token { id, expires, version, server, owner, address, capabilities };
        let token = serde_json::to_vec(&token).unwrap();
        sessions.sealer.seal(Purpose::Session, b"acme", &token)
    };
    let elsewhere = enter(&sessions, &seal(now() + 60, "2025-11-25")).unwrap();
    assert!(!elsewhere.session.is_ours());
    assert!(enter(&sessions, &seal(now() - 1, "2025-11-25")).is_none());
    assert!(enter(&sessions, &seal(now() + 60, "1999-01-01")).is_none());
}

/// The sessions of two replicas that know each other.
fn two_replicas() -> [(Sessions, Peer); 2] {
    let sealer = Arc::new(Sealer::random());
    [(); 2].map(|()| {
        let replica = Arc::new(replica("a key"));
        let me = replica.me().clone();
        (Sessions::new(sealer.clone(), Some(replica)), me)
    })
}

#[tokio::test]
async fn a_token_says_where_its_session_is_kept() {
    let [(owner, at), (other, _)] = two_replicas();
    let token = open(&owner);
    assert_eq!(enter(&owner, &token).unwrap().session.home, Home::Here);
    assert_eq!(enter(&other, &token).unwrap().session.home, Home::At(at));
    // One that stands alone can ask nobody.
    let alone = Sessions::new(owner.sealer.clone(), None);
    assert_eq!(enter(&alone, &token).unwrap().session.home, Home::Lost);
    // Nor can anybody ask one that stands alone, or did when the token was made.
    assert_eq!(enter(&other, &open(&alone)).unwrap().session.home, Home::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_where_it_is_kept_and_is_forgotten_elsewhere() {
    let [(owner, _), (other, _)] = two_replicas();
    let (seats, token) = (Arc::<Seats>::default(), open(&owner));
    remember(&owner, &token, &seats);
    remember(&other, &token, &seats);
    advance(IDLE_MAX).await;
    other.sweep();
    assert_eq!(live(&other), 0);
    assert!(enter(&other, &token).is_some());
    owner.sweep();
    assert!(enter(&owner, &token).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_keeps_a_session_is_told_of_its_use_now_and_then() {
    let sessions = sessions();
    let (one, other) = (SessionId::generate(), SessionId::generate());
    let is_told = |id: &SessionId| sessions.tell_use(id, || Some(())).is_some();
    assert!(is_told(&one) && is_told(&other));
    assert!(!is_told(&one));
    advance(USE_TOLD_EVERY).await;
    assert!(is_told(&one) && !is_told(&one));
    advance(USE_TOLD_EVERY).await;
    // When it could not be told, it is the next time.
    assert_eq!(sessions.tell_use(&one, || None::<()>), None);
    assert!(is_told(&one));
    advance(USE_TOLD_EVERY).await;
    sessions.sweep();
    assert!(sessions.shards.iter().all(|shard| shard.lock().use_told.is_empty()));
}

#[tokio::test]
async fn a_session_that_has_ended_elsewhere_is_over_here() {
    let (sessions, seats) = (sessions(), Arc::<Seats>::default());
    let token = open(&sessions);
    remember(&sessions, &token, &seats);
    let session = enter(&sessions, &token).unwrap().session.clone();
    sessions.end_by_id(&session.id, now() + 60);
    assert!(session.has_ended() && enter(&sessions, &token).is_none());
    assert_eq!(live(&sessions), 0);
}

#[tokio::test(start_paused = true)]
async fn sessions_that_were_left_are_ended_and_used_ones_are_not() {
    let (sessions, seats) = (sessions(), Arc::<Seats>::default());
    let [left, used, listening] = [(); 3].map(|()| open(&sessions));
    for token in [&left, &used, &listening] {
        remember(&sessions, token, &seats);
    }
    let stream = enter(&sessions, &listening).unwrap().session.stand(&seats).unwrap();
    for _ in 0..3 {
        advance(IDLE_MAX / 2).await;
        assert!(enter(&sessions, &used).is_some());
        sessions.sweep();
    }
    assert!(enter(&sessions, &left).is_none());
    assert!(enter(&sessions, &used).is_some());
    assert!(enter(&sessions, &listening).is_some());
    drop(stream);
    advance(IDLE_MAX).await;
    sessions.sweep();
    assert!(enter(&sessions, &listening).is_none());
    assert_eq!(live(&sessions), 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_being_used_is_not_idle_however_long_ago_it_was() {
    let sessions = sessions();
    let token = open(&sessions);
    let session = enter(&sessions, &token).unwrap().session.clone();
    advance(Duration::from_secs(60)).await;
    assert!(enter(&sessions, &token).is_some());
    let now = tokio::time::Instant::now();
    assert_eq!(session.idle_since(), Some(now));
    let entered = enter(&sessions, &token).unwrap();
    advance(Duration::from_secs(60)).await;
    assert_eq!(session.idle_since(), None);
    drop(entered);
    assert_eq!(session.idle_since(), Some(now + Duration::from_secs(60)));
}

#[tokio::test]
async fn an_ended_session_is_remembered_as_long_as_its_token_is_good() {
    let sessions = sessions();
    let token = open(&sessions);
    let session = enter(&sessions, &token).unwrap().session.clone();
    assert!(session.expires.abs_diff(now() + VALID_FOR.as_secs()) <= 1);
    sessions.end(&session);
    sessions.sweep();
    assert!(enter(&sessions, &token).is_none());
    let ended = &mut sessions.shard(&session.id).lock().ended;
    ended.forget_before(session.expires);
    assert!(ended.contains(&session.id));
    ended.forget_before(session.expires + 1);
    assert!(!ended.contains(&session.id));
}
