//! Limits in memory, with a fake clock.

use std::time::Duration;

use futures_util::FutureExt;
use governor::clock::FakeRelativeClock;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::common::policy::Rate;

fn policy(all: Limit, scoped: &[(&str, Limit)]) -> Policy {
    let limits = scoped.iter().map(|(text, limit)| (Pattern::parse(text).unwrap(), limit.clone()));
    let policy = Policy { limit: all, limits: limits.collect(), ..Policy::unlimited() };
    policy.check().unwrap();
    policy
}

fn rate(rate: &str, burst: Option<u32>) -> Limit {
    Limit { rate: Some(rate.parse().unwrap()), burst, max_in_flight: None }
}

fn in_flight(max: u32) -> Limit {
    Limit { max_in_flight: Some(max), ..Limit::default() }
}

fn limits(policy: &Policy) -> (Limits, FakeRelativeClock) {
    let clock = FakeRelativeClock::default();
    let tenant = TenantId::testing("acme");
    let limits = Limits::with_clock(&tenant, policy, None, Clock::Fake(clock.clone()));
    (limits, clock)
}

fn admit(limits: &Limits, cost: Cost) -> Result<Admission, LimitRefusal> {
    limits.admit(cost).now_or_never().expect("nothing in memory is waited for")
}

fn admit_tenant(limits: &Limits) -> Result<Admission, LimitRefusal> {
    admit(limits, Cost::Call)
}

/// Calls `search/query`; the call ends when the admission is dropped.
fn call(limits: &Limits) -> Result<(Admission, RateStatus), LimitRefusal> {
    call_of(limits, "search", Some("query"))
}

fn call_of(
    limits: &Limits,
    server: &str,
    tool: Option<&str>,
) -> Result<(Admission, RateStatus), LimitRefusal> {
    let mut admission = admit_tenant(limits)?;
    let admitted = limits.admit_to(&mut admission, server, tool);
    admitted.now_or_never().expect("nothing in memory is waited for")?;
    let rate_status = admission.take_rate_status();
    Ok((admission, rate_status))
}

fn refused<T>(outcome: Result<T, LimitRefusal>) -> String {
    match outcome.err().expect("it was admitted") {
        LimitRefusal::Busy { scope, limit, .. } => format!("{scope} is busy with {limit}"),
        LimitRefusal::RateLimited { scope, retry_after, .. } => {
            format!("{scope} in {retry_after:?}")
        }
    }
}

/// Calls until one is refused. Returns how many were admitted.
fn drain(limits: &Limits) -> u64 {
    std::iter::from_fn(|| call(limits).ok()).count() as u64
}

#[test]
fn a_thousand_tenants_get_exactly_what_they_may() {
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    let rates: [Rate; 8] =
        ["1/h", "7/h", "1/min", "600/min", "3/s", "100/s", "77777/s", "1000000/s"]
            .map(|text| text.parse().unwrap());
    for tenant in 0..1000 {
        let (rate, burst) = (rates[tenant % rates.len()], random.random_range(2..40));
        let limit = Limit { rate: Some(rate), burst: Some(burst), max_in_flight: None };
        let (limits, clock) = limits(&policy(limit, &[]));
        let interval = rate.period() / rate.count();
        let mut admitted = drain(&limits);
        let mut elapsed = Duration::ZERO;
        for _ in 0..50 {
            // Never long enough to fill the bucket, which would lose calls.
            let step = interval.mul_f64(random.random_range(0.0..=f64::from(burst - 1)));
            clock.advance(step);
            elapsed += step;
            admitted += drain(&limits);
        }
        let earned = elapsed.as_nanos() / interval.as_nanos();
        assert_eq!(u128::from(admitted), u128::from(burst) + earned, "{rate} with {burst}");
    }
}

#[test]
fn the_reported_wait_is_exact() {
    for (rate_text, interval) in
        [("1000000/s", Duration::from_micros(1)), ("1/h", Duration::from_secs(3600))]
    {
        let (limits, clock) = limits(&policy(rate(rate_text, Some(2)), &[]));
        assert_eq!(drain(&limits), 2);
        clock.advance(interval / 4);
        let Err(LimitRefusal::RateLimited { retry_after, .. }) = call(&limits) else { panic!() };
        assert_eq!(retry_after, interval * 3 / 4);
        clock.advance(retry_after - Duration::from_nanos(1));
        assert_eq!(drain(&limits), 0);
        clock.advance(Duration::from_nanos(1));
        assert_eq!(drain(&limits), 1);
    }
}

#[test]
fn a_long_pause_earns_one_burst_and_not_more() {
    let (limits, clock) = limits(&policy(rate("10/s", Some(5)), &[]));
    clock.advance(Duration::from_secs(3600));
    assert_eq!(drain(&limits), 5);
}

#[test]
fn headers_show_the_rate_status() {
    let scoped = [("search/query", rate("5/s", Some(10))), ("search", in_flight(9))];
    let (limits, clock) = limits(&policy(rate("100/s", Some(200)), &scoped));
    let (_, rate_status) = call(&limits).unwrap();
    assert_eq!(rate_status.policy(), r#""search/query";q=10;w=2, "tenant";q=200;w=2"#);
    assert_eq!(rate_status.remaining(), r#""search/query";r=9;t=1, "tenant";r=199;t=1"#);
    assert_eq!(drain(&limits), 9);
    let Err(LimitRefusal::RateLimited { rate_status, .. }) = call(&limits) else { panic!() };
    // The refused call was charged to the tenant, whose gateway has looked for the tool.
    assert_eq!(rate_status.remaining(), r#""search/query";r=0;t=1, "tenant";r=188;t=1"#);
    clock.advance(Duration::from_secs(10));
    let (_, rate_status) = call_of(&limits, "std", None).unwrap();
    assert_eq!(rate_status.remaining(), r#""tenant";r=199;t=1"#);
    assert_eq!(rate_status.policy(), r#""tenant";q=200;w=2"#);
}

#[test]
fn the_moment_of_the_next_call_is_exact_however_slow_the_rate() {
    let (limits, clock) = limits(&policy(rate("2/h", None), &[]));
    let told = |limits: &Limits| call(limits).unwrap().1.remaining();
    assert_eq!(told(&limits), r#""tenant";r=1;t=1800"#);
    clock.advance(Duration::from_secs(1700));
    assert_eq!(told(&limits), r#""tenant";r=0;t=100"#);
    clock.advance(Duration::from_secs(99));
    assert!(call(&limits).is_err());
    clock.advance(Duration::from_secs(1));
    assert_eq!(told(&limits), r#""tenant";r=0;t=1800"#);
}

#[test]
fn a_call_refused_for_calls_in_flight_learns_the_rate_status() {
    let scoped = [("search", in_flight(1)), ("search/query", rate("5/s", Some(10)))];
    let all = Limit { max_in_flight: Some(2), ..rate("100/s", Some(200)) };
    let (limits, clock) = limits(&policy(all, &scoped));
    let (_first, taken) = call(&limits).unwrap();
    let rate_status = |outcome: Result<_, LimitRefusal>| match outcome.err().unwrap() {
        LimitRefusal::Busy { rate_status, .. } => rate_status,
        other => panic!("{other:?}"),
    };
    // The narrower limit is asked after the tenant's rate was charged, and takes nothing itself.
    for refusals in 1..=3 {
        let told = rate_status(call(&limits));
        let left = format!(r#""search/query";r=9;t=1, "tenant";r={};t=1"#, 199 - refusals);
        assert_eq!((told.policy(), told.remaining()), (taken.policy(), left));
    }
    let _second = call_of(&limits, "std", None).unwrap();
    // The tenant's own limit refuses before the rate is charged.
    for _ in 0..20 {
        assert_eq!(rate_status(call(&limits)).remaining(), r#""tenant";r=195;t=1"#);
    }
    // The status includes what was earned back meanwhile.
    clock.advance(Duration::from_millis(10));
    assert_eq!(rate_status(call(&limits)).remaining(), r#""tenant";r=196;t=1"#);
    clock.advance(Duration::from_secs(10));
    assert_eq!(rate_status(call(&limits)).remaining(), r#""tenant";r=200;t=0"#);
    assert_eq!(
        limits.with_policy(&policy(rate("1/h", None), &[])).rate_status().remaining(),
        r#""tenant";r=1;t=0"#
    );
}

#[test]
fn the_tenant_is_charged_before_the_tool_is_known_and_stays_charged() {
    let (limits, _) = limits(&policy(rate("1/h", Some(3)), &[("search", rate("1/h", Some(1)))]));
    // No tool of that name: nothing but the first half of the admission.
    drop(admit_tenant(&limits).unwrap());
    assert!(call(&limits).is_ok());
    assert_eq!(refused(call(&limits)), "search in 3600s");
    assert_eq!(refused(admit_tenant(&limits)), "tenant in 3600s");
    // A call whose rate was charged elsewhere takes a permit alone.
    assert!(admit(&limits, Cost::PaidCall).is_ok());
}

#[test]
fn a_request_that_the_rate_refuses_gives_its_permit_back() {
    let all = Limit { max_in_flight: Some(1), ..rate("1/h", Some(1)) };
    let (limits, _) = limits(&policy(all, &[]));
    drop(admit_tenant(&limits).unwrap());
    assert_eq!(refused(admit_tenant(&limits)), "tenant in 3600s");
    assert_eq!(refused(admit_tenant(&limits)), "tenant in 3600s");
}

#[test]
fn lists_have_a_rate_of_their_own_and_are_no_calls_in_flight() {
    let all = Limit { max_in_flight: Some(1), ..rate("1/s", None) };
    let (before, clock) = limits(&policy(all, &[]));
    let _call = admit_tenant(&before).unwrap();
    let list = |limits: &Limits| admit(limits, Cost::List);
    assert_eq!(list(&before).unwrap().charged.remaining(), r#""tenant lists";r=49;t=1"#);
    assert_eq!((0..49).filter(|_| list(&before).is_ok()).count(), 49);
    assert_eq!(refused(list(&before)), "tenant lists in 100ms");
    assert!(admit(&before, Cost::PaidList).is_ok());
    clock.advance(Duration::from_millis(100));
    assert!(list(&before).is_ok());
    // A new policy keeps what is used of it.
    let after = before.with_policy(&policy(rate("1/s", None), &[("std", in_flight(1))]));
    clock.advance(Duration::from_millis(100));
    assert!(list(&after).is_ok() && list(&after).is_err());
    // Without a rate there is none of lists.
    let unlimited = before.with_policy(&Policy::unlimited());
    assert!((0..1000).all(|_| list(&unlimited).is_ok_and(|it| it.charged.is_empty())));
}

#[test]
fn without_limits_the_rate_status_is_empty() {
    let (limits, _) = limits(&Policy::unlimited());
    let (_, rate_status) = call(&limits).unwrap();
    assert!(
        rate_status.is_empty()
            && rate_status.policy().is_empty()
            && rate_status.remaining().is_empty()
    );
}

#[test]
fn calls_in_flight_are_counted_until_they_are_dropped() {
    let (limits, _) = limits(&policy(in_flight(2), &[]));
    let (first, second) = (call(&limits).unwrap(), admit_tenant(&limits).unwrap());
    assert_eq!(refused(admit_tenant(&limits)), "tenant is busy with 2");
    drop(first);
    let third = admit_tenant(&limits).unwrap();
    assert!(admit_tenant(&limits).is_err());
    drop((second, third));
    assert!(admit_tenant(&limits).is_ok());
}

#[test]
fn a_pattern_limits_all_calls_that_it_covers_together() {
    let scoped = [("search", in_flight(2)), ("search/q*", in_flight(1))];
    let (limits, _) = limits(&policy(Limit::default(), &scoped));
    let _query = call(&limits).unwrap();
    assert_eq!(refused(call_of(&limits, "search", Some("quit"))), "search/q* is busy with 1");
    let _other = call_of(&limits, "search", None).unwrap();
    assert_eq!(refused(call_of(&limits, "search", Some("index"))), "search is busy with 2");
    assert!(call_of(&limits, "std", Some("query")).is_ok());
}

#[test]
fn a_call_that_is_refused_holds_nothing() {
    let scoped = [
        ("search/query", in_flight(1)),
        ("search/*", in_flight(1)),
        ("search", in_flight(1)),
        ("*", rate("1/s", Some(1))),
    ];
    let (limits, clock) = limits(&policy(in_flight(3), &scoped));
    // It holds the only permits of two patterns when the third refuses.
    let blocking = call_of(&limits, "search", None).unwrap();
    clock.advance(Duration::from_secs(1));
    let mut admission = admit_tenant(&limits).unwrap();
    let outcome = limits.admit_to(&mut admission, "search", Some("query")).now_or_never().unwrap();
    assert_eq!(refused(outcome), "search is busy with 1");
    drop(blocking);
    // All permits are free again, and the rate is unused.
    let outcome = limits.admit_to(&mut admission, "search", Some("query")).now_or_never().unwrap();
    assert!(outcome.is_ok());
    drop(admission);
    // Likewise if a rate refuses.
    let mut admission = admit_tenant(&limits).unwrap();
    let outcome = limits.admit_to(&mut admission, "search", Some("query")).now_or_never().unwrap();
    assert_eq!(refused(outcome), "* in 1s");
    clock.advance(Duration::from_secs(1));
    assert!(call(&limits).is_ok());
}

#[test]
fn the_narrowest_rate_refuses_first() {
    let once = || rate("1/s", Some(1));
    let scoped =
        [("*", once()), ("search", once()), ("search/*", once()), ("search/query", once())];
    let (limits, _) = limits(&policy(rate("1/s", Some(8)), &scoped));
    let (_, rate_status) = call(&limits).unwrap();
    // The tenant's rate was charged first, and is told last, as the widest.
    let names: Vec<_> = rate_status.0.iter().map(|(bucket, _)| bucket.scope.as_str()).collect();
    assert_eq!(names, ["search/query", "search/*", "search", "*", "tenant"]);
    // A call that a narrow rate refuses has used nothing of wider ones, but of the tenant's.
    assert_eq!(refused(call(&limits)), "search/query in 1s");
    let Err(LimitRefusal::RateLimited { rate_status, .. }) = call_of(&limits, "std", None) else {
        panic!()
    };
    assert_eq!(rate_status.remaining(), r#""*";r=0;t=1, "tenant";r=5;t=3"#);
}

#[test]
fn a_new_policy_keeps_what_is_in_flight() {
    let (before, _) = limits(&policy(Limit::default(), &[("search", in_flight(5))]));
    let calls = [(); 3].map(|()| call(&before).unwrap());
    let after = before.with_policy(&policy(in_flight(4), &[("search", in_flight(2))]));
    assert_eq!(refused(call(&after)), "search is busy with 2");
    let other = call_of(&after, "std", None).unwrap();
    assert_eq!(refused(admit_tenant(&after)), "tenant is busy with 4");
    drop(calls);
    let _two = [(); 2].map(|()| call(&after).unwrap());
    assert_eq!(refused(call(&after)), "search is busy with 2");
    drop(other);
}

#[test]
fn a_new_policy_keeps_what_is_used_of_rates_that_stay() {
    let scoped = [("search", rate("10/s", Some(10)))];
    let (before, _) = limits(&policy(rate("60/min", Some(20)), &scoped));
    assert_eq!(drain(&before), 10);
    // The same rate, written differently, and another weight.
    let mut next = policy(rate("1/s", Some(20)), &scoped);
    next.weight = 7;
    let same = before.with_policy(&next);
    assert_eq!(drain(&same), 0);
    assert_eq!(drain(&before), 0);
    // A changed rate starts full; the tenant's rate knows all calls.
    let other =
        same.with_policy(&policy(rate("1/s", Some(20)), &[("search", rate("11/s", Some(3)))]));
    assert_eq!(drain(&other), 3);
    let (_, rate_status) = call_of(&other, "std", None).unwrap();
    // 13 were admitted, and four that a narrower rate refused were charged.
    assert_eq!(rate_status.remaining(), r#""tenant";r=2;t=18"#);
}
