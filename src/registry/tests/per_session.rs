//! The choice of a session to evict.

use super::*;
use crate::backend::testing::{Sleeper, environment};
use crate::config::{Program, Transport};

/// Makes sessions of tenants, each with the seconds for which it has been idle, if it is.
fn processes(all: &[(&str, Option<u64>)]) -> HashMap<SessionId, SessionProcess> {
    let id = ServerId::parse("own").unwrap();
    let config = config::ServerConfig::new(Transport::Stdio(Program::default()));
    let environment = environment();
    let process = |(tenant, rested): &(&str, Option<u64>)| {
        let since = rested.map(|seconds| Instant::now() - Duration::from_secs(seconds));
        let client = Arc::new(Sleeper::new(since));
        let (tenant, session) = (TenantId::testing(tenant), SessionId::generate());
        let owner = SessionOwner { tenant, session: session.clone(), client };
        let (id, config, environment) = (id.clone(), config.clone(), environment.clone());
        let (secrets, recipients) = (Arc::default(), Recipients::new(id.clone(), None));
        let backend = Backend::new(id, config, environment, secrets, recipients, Stage::Active);
        (session, SessionProcess { owner, backend, stop: CancellationToken::new() })
    };
    all.iter().map(process).collect()
}

/// Returns whether a tenant may have a process, and the evicted sessions: tenant and seconds at
/// rest.
#[track_caller]
fn room(all: &[(&str, Option<u64>)], tenant: &str, max: usize) -> (bool, Vec<(String, u64)>) {
    let processes = processes(all);
    let has_room = evict_for(&processes, &TenantId::testing(tenant), max);
    let gone = processes.values().filter(|process| !process.stays()).map(|process| {
        assert!(process.stop.is_cancelled());
        let rested = process.owner.client.inactive_since().unwrap().elapsed().as_secs();
        (process.owner.tenant.to_string(), rested)
    });
    (has_room, gone.collect())
}

#[tokio::test(start_paused = true)]
async fn nobody_is_evicted_while_there_is_room() {
    tokio::time::advance(Duration::from_secs(1000)).await;
    assert_eq!(room(&[], "a", 1), (true, vec![]));
    assert_eq!(room(&[("a", Some(9)), ("a", Some(8))], "a", 3), (true, vec![]));
    assert_eq!(room(&[("a", Some(9)), ("a", None), ("a", Some(8))], "b", 4), (true, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_tenants_own_session_is_evicted_first_then_one_of_a_tenant_above_its_share() {
    tokio::time::advance(Duration::from_secs(1000)).await;
    let gone = |tenant: &str, rested| (true, vec![(tenant.to_owned(), rested)]);
    // The one that has rested longest, of one's own.
    let all = [("a", Some(5)), ("a", Some(7)), ("a", None), ("b", Some(100))];
    assert_eq!(room(&all, "a", 4), gone("a", 7));
    // Its own is not left: it has its part, and takes nothing of others.
    let all = [("a", None), ("a", None), ("b", Some(9)), ("b", Some(8))];
    assert_eq!(room(&all, "a", 4), (false, vec![]));
    // A third of four is one: who has one keeps it, however long it was left.
    let all = [("a", Some(5)), ("a", Some(7)), ("a", None), ("b", Some(100))];
    assert_eq!(room(&all, "c", 4), gone("a", 7));
    // Nobody rests.
    assert_eq!(room(&[("a", None), ("a", None)], "b", 2), (false, vec![]));
}

#[tokio::test(start_paused = true)]
async fn the_last_quarter_is_not_for_tenants_that_have_some() {
    tokio::time::advance(Duration::from_secs(1000)).await;
    let all = [("a", None), ("b", Some(3)), ("b", None)];
    assert_eq!(room(&all, "a", 4), (false, vec![]));
    assert_eq!(room(&all, "b", 4), (true, vec![("b".to_owned(), 3)]));
    assert_eq!(room(&all, "c", 4), (true, vec![]));
}
