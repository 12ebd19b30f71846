//! Tokens, and the state that is remembered beside them.

use std::time::Duration;

use tokio::time::advance;

use super::*;
use crate::cluster::testing::replica;
use crate::common::ids::TenantGeneration;
use crate::common::policy::Policy;
use crate::http::mcp::stream::stream_quota::StreamQuota;
use crate::protocol::mcp::LogLevel;
use crate::tenants::budgets::Budgets;

const ALL: Scope = Scope::All;

fn sessions() -> Sessions {
    Sessions::new(Arc::new(Sealer::random()), None)
}

fn tenant(id: &str) -> Tenant {
    Tenant::new(TenantId::testing(id), 0, Policy::unlimited(), None, &Budgets::unlimited())
}

/// Opens a session whose client has its token.
fn open(sessions: &Sessions) -> String {
    let capabilities = RawValue::from_string("{\"roots\":{}}".into()).unwrap();
    let version = ProtocolVersion::LATEST_LEGACY;
    sessions.create(&tenant("acme"), &ALL, version, &capabilities).unwrap().1
}

fn acquire<'s>(sessions: &'s Sessions, token: &str) -> Option<SessionInUse<'s>> {
    let acquire = || sessions.acquire(&tenant("acme"), &ALL, token);
    if let Err(NoSession::Unknown(unknown)) = acquire() {
        sessions.settle(&unknown, false);
    }
    acquire().ok()
}

fn live(sessions: &Sessions) -> usize {
    sessions.shards.iter().map(|shard| shard.lock().live.len()).sum()
}

/// Gives a session state that its token does not say.
fn remember(sessions: &Sessions, token: &str, quota: &Arc<StreamQuota>) {
    acquire(sessions, token).unwrap().session.set_log_level(LogLevel::Error, quota).unwrap();
}

#[tokio::test]
async fn nothing_is_remembered_for_long_that_the_token_says() {
    let sessions = sessions();
    let tokens: Vec<_> = (0..100).map(|_| open(&sessions)).collect();
    sessions.sweep();
    assert_eq!(live(&sessions), 0);
    for token in &tokens {
        let in_use = acquire(&sessions, token).unwrap();
        assert!(in_use.session.is_owned_here());
        assert_eq!(in_use.session.capabilities(), "{\"roots\":{}}");
        let again = acquire(&sessions, token).unwrap();
        assert!(Arc::ptr_eq(&in_use.session, &again.session));
    }
    assert_eq!(live(&sessions), 100);
    sessions.sweep();
    assert_eq!(live(&sessions), 0);
    assert!(acquire(&sessions, &tokens[0]).is_some());
}

#[tokio::test]
async fn among_many_sessions_those_without_state_are_forgotten_at_once() {
    let sessions = sessions();
    for number in 0..2 * SHARDS * STATELESS_MAX / 1000 {
        let tenant = tenant(&format!("t{number}"));
        let capabilities = RawValue::from_string("{}".into()).unwrap();
        let version = ProtocolVersion::LATEST_LEGACY;
        for _ in 0..1000 {
            let opened = sessions.create(&tenant, &ALL, version, &capabilities).unwrap();
            assert!(sessions.acquire(&tenant, &ALL, &opened.1).is_ok());
        }
    }
    assert!(sessions.shards.iter().all(|shard| shard.lock().live.len() <= STATELESS_MAX));
}

#[tokio::test]
async fn a_token_is_opened_once_until_the_sweep() {
    let (sessions, acme) = (sessions(), tenant("acme"));
    let (token, std) = (open(&sessions), Scope::One("std".into()));
    let known = |scope, now| sessions.opened.get(&acme.id, scope, &token, now);
    assert!(known(&ALL, now()).is_none());
    let session = acquire(&sessions, &token).unwrap().session.clone();
    assert!(Arc::ptr_eq(&known(&ALL, now()).unwrap(), &session));
    assert!(known(&ALL, session.expires).is_some() && known(&ALL, session.expires + 1).is_none());
    assert!(known(&std, now()).is_none());
    assert!(sessions.opened.get(&tenant("other").id, &ALL, &token, now()).is_none());
    sessions.end_by_id(None, &session.id, now() + 60);
    // Somebody still holds the session, but it is not a live one.
    assert!(known(&ALL, now()).is_some() && acquire(&sessions, &token).is_none());
    drop(session);
    sessions.sweep();
    assert!(known(&ALL, now()).is_none());
}

#[tokio::test]
async fn state_is_remembered_until_the_session_ends() {
    let (sessions, quota) = (sessions(), Arc::<StreamQuota>::default());
    let token = open(&sessions);
    remember(&sessions, &token, &quota);
    assert_eq!(live(&sessions), 1);
    assert_eq!(acquire(&sessions, &token).unwrap().session.log_level(), Some(LogLevel::Error));
    sessions.sweep();
    let session = acquire(&sessions, &token).unwrap().session.clone();
    assert_eq!(session.log_level(), Some(LogLevel::Error));
    sessions.end(&session);
    assert!(acquire(&sessions, &token).is_none());
    assert!(session.has_ended());
    assert_eq!(live(&sessions), 0);
}

#[tokio::test]
async fn a_session_ends_with_its_tenant() {
    let (sessions, quota, acme) = (sessions(), Arc::<StreamQuota>::default(), tenant("acme"));
    let capabilities = RawValue::from_string("{}".into()).unwrap();
    let version = ProtocolVersion::LATEST_LEGACY;
    let opened = sessions.create(&acme, &ALL, version, &capabilities).unwrap();
    let session = opened.0.session.clone();
    session.set_log_level(LogLevel::Error, &quota).unwrap();
    drop(opened);
    assert!(!session.has_ended());
    acme.removed.cancel();
    assert!(session.has_ended());
    sessions.sweep();
    assert_eq!(live(&sessions), 0);
}

#[tokio::test]
async fn a_token_is_valid_for_its_tenant_its_endpoint_and_its_time() {
    let sessions = sessions();
    let token = open(&sessions);
    assert!(acquire(&sessions, &token).is_some());
    assert!(sessions.acquire(&tenant("other"), &ALL, &token).is_err());
    let next = TenantId::testing("acme").name().clone().of(TenantGeneration::from_number(2));
    let next = Tenant::new(next, 0, Policy::unlimited(), None, &Budgets::unlimited());
    assert!(sessions.acquire(&next, &ALL, &token).is_err(), "the next tenant of that name");
    assert!(sessions.acquire(&tenant("acme"), &Scope::One("std".into()), &token).is_err());
    assert!(sessions.acquire(&tenant("acme"), &ALL, "").is_err());
    let seal = |expires, version| {
        let capabilities = RawValue::from_string("{}".into()).unwrap();
        let (id, owner) = ([7; 16], "another");
        let (endpoint, address, capabilities) = (None, None, &*capabilities);
        let token = SessionToken { id, expires, version, endpoint, owner, address, capabilities };
        let token = serde_json::to_vec(&token).unwrap();
        let context = tenant("acme").id.unique_text();
        sessions.sealer.seal(Purpose::Session, context.as_bytes(), &token)
    };
    let elsewhere = acquire(&sessions, &seal(now() + 60, "2025-11-25")).unwrap();
    assert!(!elsewhere.session.is_owned_here());
    assert!(acquire(&sessions, &seal(now() - 1, "2025-11-25")).is_none());
    assert!(acquire(&sessions, &seal(now() + 60, "1999-01-01")).is_none());
}

/// Returns the sessions of two replicas that know each other.
fn two_replicas() -> [(Sessions, Peer); 2] {
    let sealer = Arc::new(Sealer::random());
    [(); 2].map(|()| {
        let replica = Arc::new(replica("a key"));
        let me = replica.me().clone();
        (Sessions::new(sealer.clone(), Some(replica)), me)
    })
}

/// Returns whether this replica must ask the store about a session.
fn is_unknown(sessions: &Sessions, token: &str) -> bool {
    matches!(sessions.acquire(&tenant("acme"), &ALL, token), Err(NoSession::Unknown(_)))
}

#[tokio::test]
async fn the_store_is_asked_once_about_a_session_from_before_the_start() {
    let [(owner, _), (mut other, _)] = two_replicas();
    let token = open(&owner);
    assert!(!is_unknown(&owner, &token) && is_unknown(&other, &token));
    assert_eq!(other.id_in(&tenant("acme").id, &token), None);
    assert!(acquire(&other, &token).is_some() && !is_unknown(&other, &token));
    assert!(other.id_in(&tenant("acme").id, &token).is_some());
    let ended = open(&owner);
    let Err(NoSession::Unknown(unknown)) = other.acquire(&tenant("acme"), &ALL, &ended) else {
        panic!("known");
    };
    other.settle(&unknown, true);
    assert!(!is_unknown(&other, &ended) && acquire(&other, &ended).is_none());
    // A replica that started long before knows all ends of such sessions.
    other.unknown_until = now();
    assert!(!is_unknown(&other, &open(&owner)));
}

#[tokio::test]
async fn the_store_is_asked_about_sessions_that_may_have_been_evicted() {
    let [(owner, _), _] = two_replicas();
    let token = open(&owner);
    let id = owner.id_in(&tenant("acme").id, &token).unwrap();
    let expires = now() + VALID_FOR.as_secs() + 1;
    let fill = |sessions: &Sessions| {
        let mut shard = sessions.shard(&id).lock();
        let tenant = tenant("acme").id.unique_text();
        while shard.revoked.evicted_until(&tenant) == 0 {
            shard.revoked.add(&tenant, &SessionId::generate(), expires, now());
        }
    };
    fill(&owner);
    // A live session has not ended.
    assert!(!is_unknown(&owner, &token));
    owner.sweep();
    assert!(is_unknown(&owner, &token));
    assert!(acquire(&owner, &token).is_some() && !is_unknown(&owner, &token));
    assert_eq!(owner.sweep(), 0);
}

/// Alone, a gateway has nobody to ask. It refuses what may have ended, and says what it has
/// forgotten.
#[tokio::test]
async fn no_token_is_good_again_because_many_sessions_have_ended() {
    let alone = sessions();
    let [ended, blank, used] = [(); 3].map(|()| open(&alone));
    let acme = tenant("acme").id;
    let ids = [&ended, &blank, &used].map(|token| alone.id_in(&acme, token).unwrap());
    let session = acquire(&alone, &ended).unwrap().session.clone();
    alone.end(&session);
    let in_use = acquire(&alone, &used).unwrap();
    // A flood in the shards of these sessions.
    let flood = |of: &str| {
        let (of, expires) = (tenant(of).id.unique_text(), now() + VALID_FOR.as_secs() + 1);
        for id in &ids {
            let revoked = &mut alone.shard(id).lock().revoked;
            while revoked.evicted_until(&of) == 0 {
                revoked.add(&of, &SessionId::generate(), expires, now());
            }
        }
    };
    flood("globex");
    assert!(acquire(&alone, &ended).is_none());
    assert!(acquire(&alone, &blank).is_some() && acquire(&alone, &used).is_some());
    assert!(alone.sweep() > 0);
    flood("acme");
    assert!(acquire(&alone, &ended).is_none() && acquire(&alone, &blank).is_none());
    // A session in use has not ended.
    assert!(acquire(&alone, &used).is_some());
    drop(in_use);
}

#[tokio::test]
async fn a_token_names_the_owner_of_its_session() {
    let [(owner, at), (other, _)] = two_replicas();
    let token = open(&owner);
    assert_eq!(acquire(&owner, &token).unwrap().session.owner, OwnerReplica::This);
    assert_eq!(acquire(&other, &token).unwrap().session.owner, OwnerReplica::Other(at));
    // A gateway without a cluster cannot reach the owner.
    let alone = Sessions::new(owner.sealer.clone(), None);
    assert_eq!(acquire(&alone, &token).unwrap().session.owner, OwnerReplica::Unreachable);
    // Nor can others reach one that was without a cluster when it made the token.
    assert_eq!(acquire(&other, &open(&alone)).unwrap().session.owner, OwnerReplica::Unreachable);
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_in_its_owner_and_is_forgotten_elsewhere() {
    let [(owner, _), (other, _)] = two_replicas();
    let (quota, token) = (Arc::<StreamQuota>::default(), open(&owner));
    remember(&owner, &token, &quota);
    remember(&other, &token, &quota);
    advance(IDLE_MAX).await;
    other.sweep();
    assert_eq!(live(&other), 0);
    assert!(acquire(&other, &token).is_some());
    owner.sweep();
    assert!(acquire(&owner, &token).is_none());
}

#[tokio::test(start_paused = true)]
async fn the_owner_of_a_session_is_sent_keep_alives_at_intervals() {
    let sessions = sessions();
    let (one, other) = (SessionId::generate(), SessionId::generate());
    let is_due = |id: &SessionId| sessions.keep_alive_due(id, || Some(())).is_some();
    assert!(is_due(&one) && is_due(&other));
    assert!(!is_due(&one));
    advance(KEEP_ALIVE_EVERY).await;
    assert!(is_due(&one) && !is_due(&one));
    advance(KEEP_ALIVE_EVERY).await;
    // Without a permit the keep-alive stays due.
    assert_eq!(sessions.keep_alive_due(&one, || None::<()>), None);
    assert!(is_due(&one));
    advance(KEEP_ALIVE_EVERY).await;
    sessions.sweep();
    assert!(sessions.shards.iter().all(|shard| shard.lock().keep_alives.is_empty()));
}

#[tokio::test]
async fn a_session_that_has_ended_elsewhere_ends_here() {
    let (sessions, quota) = (sessions(), Arc::<StreamQuota>::default());
    let token = open(&sessions);
    remember(&sessions, &token, &quota);
    let session = acquire(&sessions, &token).unwrap().session.clone();
    sessions.end_by_id(None, &session.id, now() + 60);
    assert!(session.has_ended() && acquire(&sessions, &token).is_none());
    assert_eq!(live(&sessions), 0);
}

#[tokio::test(start_paused = true)]
async fn idle_sessions_end_and_used_ones_do_not() {
    let (sessions, quota) = (sessions(), Arc::<StreamQuota>::default());
    let [idle, used, listening] = [(); 3].map(|()| open(&sessions));
    for token in [&idle, &used, &listening] {
        remember(&sessions, token, &quota);
    }
    let stream = acquire(&sessions, &listening).unwrap().session.open_stream(&quota).unwrap();
    for _ in 0..3 {
        advance(IDLE_MAX / 2).await;
        assert!(acquire(&sessions, &used).is_some());
        sessions.sweep();
    }
    assert!(acquire(&sessions, &idle).is_none());
    assert!(acquire(&sessions, &used).is_some());
    assert!(acquire(&sessions, &listening).is_some());
    drop(stream);
    advance(IDLE_MAX).await;
    sessions.sweep();
    assert!(acquire(&sessions, &listening).is_none());
    assert_eq!(live(&sessions), 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_with_an_open_request_is_not_idle_however_long_it_takes() {
    let sessions = sessions();
    let token = open(&sessions);
    let session = acquire(&sessions, &token).unwrap().session.clone();
    advance(Duration::from_secs(60)).await;
    assert!(acquire(&sessions, &token).is_some());
    let now = tokio::time::Instant::now();
    assert_eq!(session.idle_since(), Some(now));
    let in_use = acquire(&sessions, &token).unwrap();
    advance(Duration::from_secs(60)).await;
    assert_eq!(session.idle_since(), None);
    drop(in_use);
    assert_eq!(session.idle_since(), Some(now + Duration::from_secs(60)));
}

#[tokio::test]
async fn an_ended_session_is_remembered_until_its_token_expires() {
    let sessions = sessions();
    let token = open(&sessions);
    let session = acquire(&sessions, &token).unwrap().session.clone();
    assert!(session.expires.abs_diff(now() + VALID_FOR.as_secs()) <= 1);
    sessions.end(&session);
    sessions.sweep();
    assert!(acquire(&sessions, &token).is_none());
    let revoked = &mut sessions.shard(&session.id).lock().revoked;
    revoked.remove_expired(session.expires);
    assert!(revoked.contains(&session.id));
    revoked.remove_expired(session.expires + 1);
    assert!(!revoked.contains(&session.id));
}

#[test]
fn one_tenant_cannot_open_sessions_without_end_and_others_do_not_notice() {
    let sessions = sessions();
    let capabilities = RawValue::from_string("{}".into()).unwrap();
    let opens = |id: &str| {
        let version = ProtocolVersion::LATEST_LEGACY;
        sessions.create(&tenant(id), &ALL, version, &capabilities).is_some()
    };
    let opened = (0..10_000).take_while(|_| opens("a")).count();
    // The rate admits a few more meanwhile.
    assert!((1000..2000).contains(&opened), "{opened}");
    assert!(opens("b"));
    sessions.sweep();
    assert_eq!(sessions.rate.len(), 2, "both have opened sessions just now");
}
