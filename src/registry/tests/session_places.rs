//! The places of tenants, and the choice of a session to end.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::*;
use crate::backend::Backend;
use crate::backend::changes::recipients::Recipients;
use crate::backend::supervise::rollover::Stage;
use crate::backend::testing::{Sleeper, environment};
use crate::common::ids::ServerId;
use crate::config::{Program, Transport};
use crate::registry::SessionOwner;

/// A session that a test makes.
#[derive(Clone, Copy)]
enum Is {
    /// With a request.
    Busy,
    /// Without a request for so many seconds, with a stream.
    Listening(u64),
    /// Without either for so many seconds.
    Left(u64),
}
use Is::{Busy, Left, Listening};

fn config(max: usize) -> ServerConfig {
    let config = ServerConfig::new(Transport::Stdio(Program::default()));
    let idle_timeout = Duration::from_secs(600);
    ServerConfig { max_sessions: max as u32, idle_timeout, ..config }
}

fn processes(all: &[(&str, Is)]) -> HashMap<SessionId, SessionProcess> {
    let (id, environment) = (ServerId::parse("own").unwrap(), environment());
    let process = |(tenant, is): &(&str, Is)| {
        let ago = |seconds| Some(Instant::now() - Duration::from_secs(seconds));
        let client = Arc::new(match *is {
            Busy => Sleeper::new(None, true),
            Listening(seconds) => Sleeper::new(ago(seconds), true),
            Left(seconds) => Sleeper::new(ago(seconds), false),
        });
        let (tenant, session) = (TenantId::testing(tenant), SessionId::generate());
        let owner = SessionOwner { tenant, session: session.clone(), client };
        let (id, config, environment) = (id.clone(), config(1), environment.clone());
        let (secrets, recipients) = (Arc::default(), Recipients::new(id.clone(), None));
        let backend = Backend::new(id, config, environment, secrets, recipients, Stage::Active);
        (session, SessionProcess { owner, backend, stop: CancellationToken::new() })
    };
    all.iter().map(process).collect()
}

/// Returns whether a tenant gets a place, and the ended session: its tenant and seconds of silence.
#[track_caller]
fn place(all: &[(&str, Is)], tenant: &str, max: usize) -> Result<Option<(String, u64)>, NoBackend> {
    let processes = processes(all);
    let server = ServerId::parse("own").unwrap();
    ensure_place(&processes, &TenantId::testing(tenant), (&server, &config(max)))?;
    let ended = processes.values().filter(|process| !process.stays()).map(|process| {
        assert!(process.stop.is_cancelled());
        let silent = process.owner.client.silent_since().unwrap().elapsed().as_secs();
        (process.owner.tenant.to_string(), silent)
    });
    let ended: Vec<_> = ended.collect();
    assert!(ended.len() < 2);
    Ok(ended.into_iter().next())
}

fn ended(tenant: &str, silent: u64) -> Result<Option<(String, u64)>, NoBackend> {
    Ok(Some((tenant.to_owned(), silent)))
}

/// The tenant has `held` sessions, and may have `share`.
fn full(share: usize, held: usize) -> Result<Option<(String, u64)>, NoBackend> {
    Err(NoBackend::TenantFull(LimitUse::new("sessions", share, held).of("own")))
}

const TOO_MANY: Result<Option<(String, u64)>, NoBackend> = Err(NoBackend::TooMany);

#[tokio::test(start_paused = true)]
async fn nobody_is_ended_while_there_is_room() {
    tokio::time::advance(Duration::from_secs(1000)).await;
    assert_eq!(place(&[], "a", 1), Ok(None));
    assert_eq!(place(&[("a", Left(9)), ("a", Left(8))], "a", 4), Ok(None));
    assert_eq!(place(&[("a", Left(9)), ("a", Busy), ("a", Left(8))], "b", 4), Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_quarter_is_kept_also_while_a_tenant_is_alone() {
    tokio::time::advance(Duration::from_secs(1000)).await;
    for (max, limit) in [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (100, 75)] {
        let mut all = vec![("a", Busy); limit - 1];
        assert_eq!(place(&all, "a", max), Ok(None), "{max}");
        all.push(("a", Busy));
        assert_eq!(place(&all, "a", max), full(limit, limit), "{max}");
        let others = if max == 1 { TOO_MANY } else { Ok(None) };
        assert_eq!(place(&all, "b", max), others, "{max}");
    }
}

#[tokio::test(start_paused = true)]
async fn tenants_that_have_few_divide_the_reserve_and_its_last_place_is_for_one_with_none() {
    tokio::time::advance(Duration::from_secs(1000)).await;
    let mut all = vec![("a", Busy); 12];
    all.extend([("b", Busy); 2]);
    assert_eq!(place(&all, "b", 16), Ok(None));
    all.push(("b", Busy));
    assert_eq!(place(&all, "b", 16), TOO_MANY);
    assert_eq!(place(&all, "c", 16), Ok(None));
    // Also where a tenant has less than its part, since another came before it.
    let mut all = vec![("a", Busy); 75];
    all.extend([("b", Busy); 14]);
    all.extend([("c", Busy); 10]);
    assert_eq!(place(&all, "c", 100), TOO_MANY);
    assert_eq!(place(&all, "d", 100), Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_tenants_own_session_without_a_stream_is_ended_first() {
    tokio::time::advance(Duration::from_secs(1000)).await;
    let all = [("a", Left(5)), ("a", Left(7)), ("a", Busy), ("b", Left(100))];
    assert_eq!(place(&all, "a", 4), ended("a", 7));
    // Those that listen are in use, and the tenant takes nothing of others.
    let all = [("a", Listening(90)), ("a", Busy), ("a", Busy), ("b", Left(9))];
    assert_eq!(place(&all, "a", 4), full(1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_above_its_share_loses_the_session_that_was_silent_longest() {
    tokio::time::advance(Duration::from_secs(1000)).await;
    // All places but the last of the reserve are divided by two: three for each.
    let all = [("a", Busy), ("a", Left(5)), ("a", Listening(7)), ("a", Listening(6)), ("b", Busy)];
    let mut all_busy = all.to_vec();
    all_busy.extend([("a", Busy), ("b", Busy), ("b", Busy)]);
    assert_eq!(place(&all_busy[..6], "b", 6), ended("a", 7));
    assert_eq!(place(&all_busy, "b", 8), full(3, 3), "it has its share");
    let all = [("a", Listening(9)), ("a", Listening(8)), ("b", Busy), ("c", Busy)];
    assert_eq!(place(&all, "b", 4), full(1, 1), "a share is one");
}

#[tokio::test(start_paused = true)]
async fn with_more_tenants_than_places_a_silent_session_keeps_its_place_for_idle_timeout() {
    tokio::time::advance(Duration::from_secs(1000)).await;
    assert_eq!(place(&[("a", Listening(599))], "b", 1), TOO_MANY);
    assert_eq!(place(&[("a", Listening(600))], "b", 1), ended("a", 600));
    // Not for a tenant that has one.
    let all = [("a", Busy), ("b", Listening(700))];
    assert_eq!(place(&all, "a", 2), full(1, 1));
    assert_eq!(place(&all, "c", 2), ended("b", 700));
}
