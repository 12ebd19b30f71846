use proptest::prelude::*;

use super::*;

fn found(state: CallState, executed: Ran) -> Found {
    Found {
        state,
        executed,
        has_expired: false,
        is_owner_alive: true,
        has_same_arguments: true,
        is_repeatable: false,
    }
}

#[test]
fn an_outcome_is_replayed_and_a_call_under_way_is_waited_for() {
    use CallState::{Abandoned, Accepted, Begun, Ended};
    for (state, executed, decision) in [
        (Accepted, Ran::Unknown, Decision::Wait),
        (Begun, Ran::Unknown, Decision::Wait),
        (Ended, Ran::Yes, Decision::Replay),
        (Ended, Ran::Unknown, Decision::Replay),
        (Abandoned, Ran::Unknown, Decision::OutcomeUnknown),
    ] {
        assert_eq!(decide(found(state, executed)), decision, "{state:?}");
    }
}

#[test]
fn a_begun_call_whose_gateway_is_gone_is_given_up_and_an_accepted_one_is_claimed() {
    let gone = |state| decide(Found { is_owner_alive: false, ..found(state, Ran::Unknown) });
    assert_eq!(gone(CallState::Begun), Decision::Abandon);
    assert_eq!(gone(CallState::Accepted), Decision::Wait);
}

#[test]
fn only_an_unknown_outcome_of_a_repeatable_call_is_repeated() {
    let decide = |state, executed| decide(Found { is_repeatable: true, ..found(state, executed) });
    assert_eq!(decide(CallState::Ended, Ran::Unknown), Decision::Repeat);
    assert_eq!(decide(CallState::Abandoned, Ran::Unknown), Decision::Repeat);
    assert_eq!(decide(CallState::Ended, Ran::Yes), Decision::Replay);
    assert_eq!(decide(CallState::Begun, Ran::Unknown), Decision::Wait);
}

#[test]
fn nothing_is_kept_of_a_call_that_did_not_run_unless_somebody_has_its_id() {
    assert_eq!(keeping(Ran::No, false), Keeping::Nothing);
    assert_eq!(keeping(Ran::No, true), Keeping::WithoutKey);
    for executed in [Ran::Yes, Ran::Unknown] {
        assert_eq!(keeping(executed, false), Keeping::Outcome);
        assert_eq!(keeping(executed, true), Keeping::Outcome);
    }
}

fn any_found() -> impl Strategy<Value = Found> {
    let state = prop::sample::select(vec![
        CallState::Accepted,
        CallState::Begun,
        CallState::Ended,
        CallState::Abandoned,
    ]);
    let executed = prop::sample::select(vec![Ran::Yes, Ran::Unknown]);
    (state, executed, any::<[bool; 4]>()).prop_map(|(state, executed, flags)| Found {
        state,
        executed,
        has_expired: flags[0],
        is_owner_alive: flags[1],
        has_same_arguments: flags[2],
        is_repeatable: flags[3],
    })
}

proptest! {
    /// The promise of a key, in all states at once.
    #[test]
    fn a_call_that_may_have_run_runs_again_only_if_that_is_allowed(found in any_found()) {
        let runs = matches!(decide(found), Decision::RunAfresh | Decision::Repeat);
        let may_have_run = found.state != CallState::Accepted;
        if may_have_run && !found.has_expired && !found.is_repeatable {
            prop_assert!(!runs);
        }
        if found.executed == Ran::Yes && found.state == CallState::Ended && !found.has_expired {
            prop_assert!(!runs);
        }
        // A call under way is never run beside itself.
        if found.is_owner_alive && found.state == CallState::Begun {
            prop_assert!(!runs);
        }
        if !found.has_expired && !found.has_same_arguments {
            prop_assert_eq!(decide(found), Decision::Mismatch);
        }
    }
}
