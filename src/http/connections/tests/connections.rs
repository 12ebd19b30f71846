use std::net::Ipv4Addr;

use axum::http::Version;
use tokio::time::{advance, timeout};

use super::*;
use crate::telemetry::metrics::Metrics;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn connections(all: usize, per_peer: Option<u32>) -> Arc<Connections> {
    let bounds = ConnectionBounds { all, per_peer, head_timeout: Duration::from_secs(10) };
    Connections::new(bounds, Metrics::new().connections("callers"))
}

/// Lets a newcomer in, a little after the others.
async fn admit(connections: &Arc<Connections>) -> Admitted {
    advance(Duration::from_millis(5)).await;
    let leave = CancellationToken::new();
    let admitted = connections.admit(PEER, &leave);
    timeout(Duration::from_secs(1), admitted).await.expect("there is room").expect("no peer bound")
}

/// Opens connections that are held by these tenants.
async fn held(connections: &Arc<Connections>, count: usize, tenants: &[&str]) -> Vec<Admitted> {
    let mut all = vec![];
    for _ in 0..count {
        let admitted = admit(connections).await;
        for tenant in tenants {
            admitted.handle().used_by(&id(tenant)).expect("not refused");
        }
        all.push(admitted);
    }
    all
}

fn id(tenant: &str) -> TenantId {
    TenantId::testing(tenant)
}

fn begin(admitted: &Admitted) {
    admitted.connection.activity.request_begins(Version::HTTP_11, 0);
}

fn leaves(admitted: &Admitted) -> bool {
    admitted.connection.leave.is_cancelled()
}

fn is_evicted(admitted: &Admitted) -> bool {
    admitted.connection.evicted.is_cancelled()
}

/// Closes those that were evicted, as their tasks do.
fn close_evicted(all: &mut Vec<Admitted>) {
    all.retain(|admitted| !is_evicted(admitted));
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_takes_the_place_of_the_longest_idle_one_that_nobody_holds() {
    let connections = connections(4, None);
    let _held = held(&connections, 1, &["a"]).await;
    let new = [admit(&connections).await, admit(&connections).await, admit(&connections).await];
    // The oldest has an open request, and the next was just used.
    begin(&new[0]);
    advance(Duration::from_millis(5)).await;
    begin(&new[1]);
    new[1].connection.activity.handler_ends();
    new[1].connection.activity.response_ends(0);
    connections.make_room();
    assert_eq!(new.each_ref().map(is_evicted), [false, false, true]);
    connections.make_room();
    assert_eq!(new.each_ref().map(is_evicted), [false, true, true]);
    connections.make_room();
    assert_eq!(new.each_ref().map(is_evicted), [true; 3], "nothing else is left");
    connections.make_room();
    assert_eq!(connections.table.lock().counts(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_waits_until_the_evicted_one_is_closed() {
    let connections = connections(2, None);
    let first = admit(&connections).await;
    let _second = admit(&connections).await;
    let leave = CancellationToken::new();
    let mut newcomer = std::pin::pin!(connections.admit(PEER, &leave));
    assert!(timeout(Duration::from_secs(1), newcomer.as_mut()).await.is_err());
    assert!(is_evicted(&first));
    drop(first);
    assert!(newcomer.await.is_some());
    assert_eq!(connections.table.lock().counts(), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_takes_all_it_can_leaves_a_quarter() {
    let connections = connections(16, None);
    let greedy = held(&connections, 14, &["greedy"]).await;
    assert_eq!(connections.table.lock().counts(), (2, 12));
    assert_eq!(greedy.iter().filter(|it| leaves(it)).count(), 2, "its longest idle ones");
    assert!(leaves(&greedy[0]) && leaves(&greedy[1]));
    assert!(!greedy.iter().any(is_evicted), "there is room");

    // With a request on each, it gets no more.
    greedy.iter().for_each(begin);
    let newcomer = admit(&connections).await;
    let refused = newcomer.handle().used_by(&id("greedy"));
    assert_eq!(refused, Err(ShareUsed { held: 12, max: 12 }));
    newcomer.handle().used_by(&id("other")).expect("another tenant gets in");
    assert_eq!(greedy.iter().filter(|it| leaves(it)).count(), 3, "at the cost of the greedy one");
}

#[tokio::test(start_paused = true)]
async fn many_tenants_share_evenly_and_newcomers_always_get_in() {
    let connections = connections(16, None);
    let mut all = vec![];
    for tenant in ["a", "b", "c", "d", "e", "f"] {
        for _ in 0..16 {
            // As `admit` does, but its evicted ones are closed at once.
            if all.len() == 16 {
                connections.make_room();
                close_evicted(&mut all);
            }
            let admitted = admit(&connections).await;
            begin(&admitted);
            let _ = admitted.handle().used_by(&id(tenant));
            all.push(admitted);
        }
    }
    let table = connections.table.lock();
    assert_eq!(table.counts(), (4, 12));
    let sizes: Vec<_> = table.sizes().collect();
    assert_eq!(sizes, [2; 6], "each holds the same");
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_two_tenants_is_not_ended_for_one_of_them() {
    let connections = connections(16, None);
    let proxied = held(&connections, 2, &["greedy", "other"]).await;
    let greedy = held(&connections, 12, &["greedy"]).await;
    assert!(!proxied.iter().any(leaves));
    assert_eq!(greedy.iter().filter(|it| leaves(it)).count(), 2);
    greedy.iter().for_each(begin);
    for admitted in &proxied {
        admitted.handle().used_by(&id("greedy")).expect("it is not one more connection");
    }
    // A third tenant's connection that the greedy one uses as well is not charged to it either.
    let third = admit(&connections).await;
    third.handle().used_by(&id("third")).unwrap();
    third.handle().used_by(&id("greedy")).unwrap();
    assert!(!proxied.iter().any(leaves) && !leaves(&third));
}

#[tokio::test(start_paused = true)]
async fn operators_are_never_refused() {
    let connections = connections(4, None);
    let all = held(&connections, 3, &["a"]).await;
    all.iter().for_each(begin);
    let operator = admit(&connections).await;
    operator.handle().used_by_operator();
    assert_eq!(connections.table.lock().counts(), (1, 3));
    assert_eq!(all.iter().filter(|it| leaves(it)).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_peer_has_its_bound_if_one_is_set() {
    let connections = connections(16, Some(2));
    let [first, _second] = [admit(&connections).await, admit(&connections).await];
    let try_from = async |address: &str| {
        let address = address.parse().unwrap();
        connections.admit(address, &CancellationToken::new()).await
    };
    assert!(try_from("127.0.0.1").await.is_none());
    assert!(try_from("::ffff:127.0.0.1").await.is_none(), "the same address");
    let _others = [try_from("2001:db8::1").await.unwrap(), try_from("2001:db8::2").await.unwrap()];
    assert!(try_from("2001:db8::3").await.is_none(), "the same network");
    drop(first);
    assert!(try_from("127.0.0.1").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_closed_connections() {
    let connections = connections(4, Some(16));
    let mut all = held(&connections, 2, &["a"]).await;
    all.extend(held(&connections, 1, &["a", "b"]).await);
    all.push(admit(&connections).await);
    connections.make_room();
    drop(all);
    let table = connections.table.lock();
    assert_eq!(table.counts(), (0, 0));
    assert!(table.is_empty());
}

/// Lets a connection have buffers of so many bytes.
fn grow(connections: &Arc<Connections>, admitted: &Admitted, bytes: usize) {
    admitted.connection.set_buffers(bytes);
    connections.resize(&admitted.connection);
}

/// Connections of which only memory is a bound.
fn bounded_by_memory() -> Arc<Connections> {
    connections(usize::MAX, None)
}

#[tokio::test(start_paused = true)]
async fn connections_that_grow_end_the_longest_idle_ones() {
    let connections = bounded_by_memory();
    let mut all = vec![];
    for _ in 0..1000 {
        all.push(admit(&connections).await);
    }
    for admitted in &all[630..] {
        grow(&connections, admitted, 256 * 1024);
    }
    // 630 of 6 KiB and 370 of 256 KiB are 196 KiB too much.
    let too_many = 33;
    assert_eq!(all.iter().filter(|it| is_evicted(it)).count(), too_many);
    assert!(all[..too_many].iter().all(is_evicted), "the longest idle ones first");
    grow(&connections, &all[999], 64 << 20);
    assert!(!is_evicted(&all[999]));
    close_evicted(&mut all);
    assert!(connections.table.lock().bytes_not_closed() <= table::BYTES_MAX);
    for admitted in &all {
        grow(&connections, admitted, memory::BARE);
    }
    admit(&connections).await;
    drop(all);
    assert!(connections.table.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_connections_grow_gives_up_its_own() {
    let connections = bounded_by_memory();
    let other = held(&connections, 90, &["other"]).await;
    let greedy = held(&connections, 90, &["greedy"]).await;
    greedy.iter().for_each(|it| grow(&connections, it, 1 << 20));
    // Nearly 72 MiB for tenants, a quarter of all is kept.
    assert_eq!(greedy.iter().filter(|it| leaves(it)).count(), 19);
    assert!(!greedy.iter().any(is_evicted) && !other.iter().any(leaves));
    // More of them would be too many: one goes for each that comes.
    held(&connections, 3, &["greedy"]).await;
    let newcomer = admit(&connections).await;
    grow(&connections, &newcomer, 3 << 20);
    newcomer.handle().used_by(&id("third")).expect("not refused");
    assert_eq!(greedy.iter().filter(|it| leaves(it)).count(), 19 + 3);
}

#[tokio::test(start_paused = true)]
async fn newcomers_that_come_fast_do_not_wait_for_one_eviction_each() {
    let connections = connections(1024, None);
    let mut all = vec![];
    for _ in 0..1024 - 16 {
        all.push(admit(&connections).await);
    }
    assert!(!all.iter().any(is_evicted));
    for _ in 0..16 {
        all.push(admit(&connections).await);
    }
    assert_eq!(all.iter().filter(|it| is_evicted(it)).count(), 16);
    let leave = CancellationToken::new();
    let newcomer = connections.admit(PEER, &leave);
    assert!(timeout(Duration::from_secs(1), newcomer).await.is_err(), "none is closed yet");
}

#[tokio::test(start_paused = true)]
async fn open_requests_count_with_their_fields_and_no_longer_than_they_are_open() {
    let connections = bounded_by_memory();
    let admitted = admit(&connections).await;
    let size = || admitted.connection.size();
    let small = Request::new(());
    let few: Vec<_> = (0..4).map(|_| admitted.begin(&small)).collect();
    assert_eq!(size(), memory::BARE, "a few are part of its size");
    let many: Vec<_> = (0..100).map(|_| admitted.begin(&small)).collect();
    assert!(size() >= memory::BARE + 104 * 4096, "{}", size());
    drop((few, many));
    let _next = admitted.begin(&small);
    assert_eq!(size(), memory::BARE);
    let mut large = Request::new(());
    for _ in 0..500 {
        large.headers_mut().append("x", "y".parse().unwrap());
    }
    let large = admitted.begin(&large);
    assert!(size() >= memory::BARE + 64 * 1024, "{}", size());
    drop(large);
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_requests_ends_connections_before_it_takes_too_much() {
    let connections = bounded_by_memory();
    let mut all = vec![];
    for _ in 0..1000 {
        all.push(admit(&connections).await);
    }
    let small = Request::new(());
    let mut open = vec![];
    for admitted in &all {
        if !is_evicted(admitted) {
            advance(Duration::from_millis(1)).await;
            open.extend((0..200).map(|_| admitted.begin(&small)));
        }
    }
    let table = connections.table.lock();
    assert!(open.len() * 4096 <= table::BYTES_MAX, "{} requests", open.len());
    assert!(table.bytes_not_closed() <= 2 * table::BYTES_MAX);
}
