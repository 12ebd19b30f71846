use super::*;
use crate::backend::testing::{backend, set_state};
use crate::common::byte_budget::BytePermit;
use crate::common::offload::LONG;
use crate::common::offload::testing::is_offloaded;
use crate::config::{Program, ServerConfig, Transport};

#[test]
fn only_a_long_answer_is_offloaded() {
    let read = |len: usize| async move {
        let around = "{\"a\":\"\"}".len();
        let result = format!("{{\"a\":\"{}\"}}", "x".repeat(len - around));
        let answer = Answer::Result(result.clone().into());
        let held = Arc::new(BytePermit::nothing());
        let (read, _, head) =
            read_answer(&Offload::new(), answer, held, AskedTypes::default()).await.unwrap();
        assert_eq!((read, head.kind), (result.into(), ResultKind::Complete));
    };
    assert!(!is_offloaded(read(LONG)));
    assert!(is_offloaded(read(LONG + 1)));
}

const MINUTE: Duration = Duration::from_secs(60);

/// Returns the pause before the next attempt after these errors, at a backend in this state.
fn next_after(errors: &[CallError], state: RunState) -> Option<Duration> {
    let backend = backend(ServerConfig::new(Transport::Stdio(Program::default())));
    set_state(&backend, state);
    let (now, mut history) = (Instant::now(), AttemptHistory::default());
    let tenant = TenantId::testing("a");
    let mut attempts = Attempts::new(&backend, &tenant, None, now + MINUTE, &mut history).unwrap();
    let mut next = None;
    for error in errors {
        next = attempts.next(error);
    }
    next.map(|at| at - now)
}

fn never_written() -> CallError {
    CallError::BackendExited { reason: String::new(), executed: Executed::No }
}

fn refused() -> CallError {
    CallError::unavailable(String::new(), MINUTE / 2)
}

#[tokio::test(start_paused = true)]
async fn no_call_waits_for_the_end_of_a_quarantine() {
    let until = Instant::now() + MINUTE / 2;
    let quarantined = || RunState::Quarantined { until, reason: "failed".into(), for_good: false };
    assert_eq!(next_after(&[refused()], quarantined()), None);
    // The next attempt says why.
    assert!(next_after(&[never_written()], quarantined()).is_some_and(|after| after <= PAUSE));
    // A restart that comes sooner is waited for.
    let backoff = RunState::Backoff { until, reason: "failed".into() };
    assert!(next_after(&[refused()], backoff).is_some_and(|after| after > MINUTE / 2));
}

#[tokio::test(start_paused = true)]
async fn pauses_double_and_differ() {
    for count in 1..ATTEMPTS_MAX {
        let errors: Vec<_> = (0..count).map(|_| never_written()).collect();
        let pauses = || next_after(&errors, RunState::Starting).unwrap();
        let pauses: Vec<_> = (0..100).map(|_| pauses()).collect();
        let longest = PAUSE * (1 << (count - 1));
        let (low, high) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
        assert!(*low >= longest / 2 && *high <= longest, "{low:?} to {high:?} of {longest:?}");
        assert!(*high - *low > longest / 4, "{low:?} to {high:?} of {longest:?}");
    }
    let too_many: Vec<_> = (0..ATTEMPTS_MAX).map(|_| never_written()).collect();
    assert_eq!(next_after(&too_many, RunState::Starting), None);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_a_server_refuses_for_now_is_tried_again_once() {
    let after = 2 * PAUSE;
    for status in [429, 503] {
        let (executed, retry_after) = (Executed::No, Some(after));
        let refused = || CallError::BackendHttp { status, executed, retry_after };
        assert!(next_after(&[refused()], RunState::Starting).is_some_and(|wait| wait > after));
        assert_eq!(next_after(&[refused(), refused()], RunState::Starting), None);
        let errors = [refused(), never_written(), refused()];
        assert_eq!(next_after(&errors, RunState::Starting), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenants_retries_spend_its_own_budget_alone() {
    let backend = backend(ServerConfig::new(Transport::Stdio(Program::default())));
    set_state(&backend, RunState::Starting);
    let is_repeated = |tenant: &str| {
        let (tenant, mut history) = (TenantId::testing(tenant), AttemptHistory::default());
        let deadline = Instant::now() + MINUTE;
        let attempts = Attempts::new(&backend, &tenant, None, deadline, &mut history);
        let mut attempts = Attempts { is_repeatable: true, ..attempts.unwrap() };
        let may_have_run =
            CallError::BackendExited { reason: String::new(), executed: Executed::Unknown };
        attempts.next(&may_have_run).is_some()
    };
    let spent = (0..1000).take_while(|_| is_repeated("greedy")).count();
    assert!((10..=12).contains(&spent), "{spent}");
    assert!(is_repeated("other"));
    // Calls of others earn it nothing.
    (0..100).for_each(|_| _ = is_repeated("other"));
    assert!(!is_repeated("greedy"));
    // Its own do, after ten of them.
    assert!((0..10).any(|_| is_repeated("greedy")));
}
