//! Delivery of changes to listeners, and its end.

use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use super::*;
use crate::backend::changes::mailbox::Change;
use crate::common::byte_budget::ByteBudget;

const TOOLS: Lists = Lists { tools: true, prompts: false, resources: false, extensions: false };

fn changes() -> Arc<Changes> {
    Changes::new(ServerId::parse("test").unwrap())
}

fn listener(changes: &Arc<Changes>, lists: Lists) -> (Arc<Mailbox>, Subscription) {
    let mailbox = Arc::new(Mailbox::default());
    (mailbox.clone(), changes.subscribe(TenantId::testing("a"), mailbox, lists))
}

fn in_secs(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

/// The changes that were in a mailbox.
#[derive(Debug, Default, PartialEq, Eq)]
struct UnreadChanges {
    lists: Lists,
    resources: BTreeSet<(ServerId, String)>,
}

/// Empties a mailbox and returns what was in it.
async fn read(mailbox: &Mailbox) -> Option<UnreadChanges> {
    let mut unread = UnreadChanges::default();
    while let Ok(change) = timeout(Duration::ZERO, mailbox.next()).await {
        match change {
            Change::List(list) => *unread.lists.flag_mut(list) = true,
            Change::Resource(server, uri, _) => drop(unread.resources.insert((server, uri))),
            Change::Notice(notice) => panic!("{notice:?}"),
        }
    }
    Some(unread).filter(|unread| *unread != UnreadChanges::default())
}

fn resources(uris: &[&str]) -> BTreeSet<(ServerId, String)> {
    let server = ServerId::parse("test").unwrap();
    uris.iter().map(|uri| (server.clone(), (*uri).to_owned())).collect()
}

fn error(code: i64) -> ErrorObject {
    ErrorObject { code, message: "no".into(), data: None }
}

/// Records the answer for the next watched resource, as a supervisor would.
async fn answer_next(changes: &Changes, answer: Result<(), ErrorObject>) {
    loop {
        if let Some(uri) = changes.unanswered().into_values().flatten().next() {
            return changes.record_answer(&uri, answer);
        }
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn many_changes_arrive_as_one_of_each_kind_that_was_subscribed_to() {
    let changes = changes();
    let (all, _all) = listener(&changes, Lists::ALL);
    let (some, subscription) = listener(&changes, TOOLS);
    subscription.watch_all(["a".to_owned()]).unwrap();
    for _ in 0..1000 {
        changes.list_changed(List::Tools);
        changes.list_changed(List::Prompts);
        changes.resource_updated(&Update::plain("a"));
        changes.resource_updated(&Update::plain("b"));
    }
    let lists = Lists { tools: true, prompts: true, ..Lists::default() };
    assert_eq!(read(&all).await, Some(UnreadChanges { lists, resources: resources(&[]) }));
    assert_eq!(
        read(&some).await,
        Some(UnreadChanges { lists: TOOLS, resources: resources(&["a"]) })
    );
    assert_eq!((read(&all).await, read(&some).await), (None, None));
}

#[tokio::test(start_paused = true)]
async fn a_change_wakes_a_reader_and_is_not_lost_on_one_that_was_cancelled() {
    let changes = changes();
    let (mailbox, _subscription) = listener(&changes, Lists::ALL);
    let waiting = tokio::spawn({
        let mailbox = mailbox.clone();
        async move { mailbox.next().await }
    });
    yield_now().await;
    changes.list_changed(List::Tools);
    assert_eq!(waiting.await.unwrap(), Change::List(List::Tools));

    // The first reader is the one that is woken, but it is dropped.
    let mut leaving = Box::pin(mailbox.next());
    assert!(futures_util::poll!(&mut leaving).is_pending());
    let mut staying = Box::pin(mailbox.next());
    assert!(futures_util::poll!(&mut staying).is_pending());
    changes.list_changed(List::Tools);
    drop(leaving);
    assert_eq!(timeout(Duration::from_secs(1), staying).await.unwrap(), Change::List(List::Tools));
}

#[tokio::test(start_paused = true)]
async fn a_resource_is_watched_until_the_last_listener_leaves() {
    let changes = changes();
    let [(_, a), (_, b)] = [(); 2].map(|()| listener(&changes, Lists::ALL));
    a.watch_all(["x".to_owned(), "x".to_owned(), "y".to_owned()]).unwrap();
    b.watch_all(["x".to_owned()]).unwrap();
    assert_eq!((a.watched_len(), b.watched_len()), (2, 1));
    let watched = || changes.watched().into_iter().collect::<Vec<_>>();
    a.unwatch("x");
    a.unwatch("x");
    a.unwatch("never");
    assert_eq!(watched(), ["x", "y"]);
    b.unwatch("x");
    assert_eq!(watched(), ["y"]);
    drop(a);
    assert!(watched().is_empty());
    drop(b);
    let table = changes.table.lock();
    assert!(table.listeners.is_empty() && table.watched.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_first_watch_waits_for_the_server_and_the_next_uses_its_answer() {
    let changes = changes();
    let [(_, a), (_, b)] = [(); 2].map(|()| listener(&changes, Lists::ALL));
    let (watched, ()) = tokio::join!(a.watch("x", in_secs(5)), answer_next(&changes, Ok(())));
    assert!(watched.is_ok());
    assert!(changes.unanswered().is_empty());
    assert!(b.watch("x", Instant::now()).await.is_ok());
    // A new instance of the server knows nothing of it.
    changes.reset_answers();
    assert_eq!(changes.unanswered().into_values().flatten().collect::<Vec<_>>(), ["x"]);
    assert!(matches!(b.watch("x", in_secs(1)).await, Err(WatchError::Expired)));
    assert_eq!((a.watched_len(), b.watched_len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_leaves_no_watch_and_the_next_watch_asks_again() {
    let changes = changes();
    let (_, a) = listener(&changes, Lists::ALL);
    let (_, stays) = listener(&changes, Lists::ALL);
    for others in [false, true] {
        if others {
            // Without waiting for the answer, a listener may watch a resource that is refused.
            stays.watch_all(["x".to_owned()]).unwrap();
        }
        for code in [1, 2] {
            let refuse = answer_next(&changes, Err(error(code)));
            let (watched, ()) = tokio::join!(a.watch("x", in_secs(5)), refuse);
            assert!(matches!(watched, Err(WatchError::Refused(error)) if error.code == code));
            assert_eq!(a.watched_len(), 0);
        }
        assert_eq!(stays.watched_len(), usize::from(others));
        assert!(changes.watched().is_empty(), "the server is not asked again");
    }
}

#[tokio::test(start_paused = true)]
async fn watched_resources_are_limited_for_one_tenant_and_for_all_together() {
    let changes = changes();
    let of = |name: &str| changes.subscribe(TenantId::testing(name), Arc::default(), Lists::ALL);
    let uris = |from: usize, n: usize| (from..from + n).map(|n| n.to_string());
    let (a, too_long) = (of("t0"), "x".repeat(URI_LEN_MAX + 1));
    assert!(matches!(a.watch(&too_long, in_secs(1)).await, Err(WatchError::TooLong)));
    a.watch_all(uris(0, WATCHED_BY_TENANT_MAX)).unwrap();
    assert!(matches!(of("t0").watch_all(uris(7, 1)), Err(WatchError::TooMany)));
    let tenants: Vec<_> = (1..WATCHED_MAX / WATCHED_BY_TENANT_MAX)
        .map(|n| {
            let tenant = of(&format!("t{n}"));
            tenant.watch_all(uris(n * WATCHED_BY_TENANT_MAX, WATCHED_BY_TENANT_MAX)).unwrap();
            tenant
        })
        .collect();
    let other = of("other");
    assert!(matches!(other.watch("one more", in_secs(1)).await, Err(WatchError::Full)));
    other.watch_all(uris(7, 1)).unwrap();
    a.unwatch("0");
    other.watch_all(["one more".to_owned()]).unwrap();
    drop((a, tenants, other));
    assert!(changes.table.lock().watched_by_tenant.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_subscription_gets_nothing_more() {
    let changes = changes();
    let (mailbox, subscription) = listener(&changes, Lists::ALL);
    subscription.watch_all(["x".to_owned()]).unwrap();
    changes.lists_may_have_changed(Lists::ALL);
    changes.resources_may_have_changed();
    let all = UnreadChanges {
        lists: Lists { extensions: false, ..Lists::ALL },
        resources: resources(&["x"]),
    };
    assert_eq!(read(&mailbox).await, Some(all));
    drop(subscription);
    changes.lists_may_have_changed(Lists::ALL);
    changes.resources_may_have_changed();
    changes.resource_updated(&Update::plain("x"));
    assert_eq!(read(&mailbox).await, None);
}

#[tokio::test(start_paused = true)]
async fn who_watches_a_resource_hears_of_its_parts() {
    let changes = changes();
    let (of_dir, dir) = listener(&changes, Lists::default());
    let (of_child, child) = listener(&changes, Lists::default());
    let (of_sibling, sibling) = listener(&changes, Lists::default());
    dir.watch_all(["test://dir".to_owned(), "test://dir/child".to_owned()]).unwrap();
    child.watch_all(["test://dir/child/".to_owned()]).unwrap();
    sibling.watch_all(["test://di".to_owned(), "test://dir/chil".to_owned()]).unwrap();
    changes.resource_updated(&Update::plain("test://dir/child"));
    changes.resource_updated(&Update::plain("test://dir/child/x?y"));
    let heard = |uris| Some(UnreadChanges { resources: resources(uris), ..Default::default() });
    assert_eq!(read(&of_dir).await, heard(&["test://dir/child", "test://dir/child/x?y"]));
    assert_eq!(read(&of_child).await, heard(&["test://dir/child/x?y"]));
    assert_eq!(read(&of_sibling).await, None);
}

#[tokio::test(start_paused = true)]
async fn without_room_for_its_parts_the_watched_resource_is_reported() {
    let changes = changes();
    let unsent = ByteBudget::new(100_000, 400_000).tenant();
    let mailbox = Arc::new(Mailbox::new(unsent.clone()));
    let subscription = changes.subscribe(TenantId::testing("a"), mailbox.clone(), Lists::default());
    subscription.watch_all(["dir".to_owned()]).unwrap();
    for n in 0..100_000 {
        changes.resource_updated(&Update::plain(&format!("dir/{n}")));
    }
    assert!((1..=112_500).contains(&unsent.held()), "{}", unsent.held());
    let heard = read(&mailbox).await.unwrap().resources;
    assert!((100..1000).contains(&heard.len()), "{}", heard.len());
    assert!(heard.is_superset(&resources(&["dir", "dir/0"])));
    assert_eq!(unsent.held(), 0);
    changes.resource_updated(&Update::plain("dir/x"));
    assert_eq!(read(&mailbox).await.unwrap().resources, resources(&["dir/x"]));
}

#[tokio::test(start_paused = true)]
async fn a_client_with_a_server_of_its_own_hears_of_everything() {
    let changes = changes();
    let (mailbox, _subscription) = listener(&changes, Lists::default());
    assert!(changes.own_resource_updated(&Update::read("any", r#"{"uri":"any","x":1}"#)));
    let Change::Resource(_, uri, details) = mailbox.next().await else { panic!("no resource") };
    assert_eq!((&*uri, &*details.unwrap().others), ("any", ",\"x\":1"));
}
