use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::backend::stdio::process::ExitReason;

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn insert(calls: &InFlightCalls, id: u64) -> Result<oneshot::Receiver<Delivery>, RequestError> {
    insert_until(calls, id, far())
}

fn insert_until(
    calls: &InFlightCalls,
    id: u64,
    deadline: Instant,
) -> Result<oneshot::Receiver<Delivery>, RequestError> {
    let (waiter, answer) = oneshot::channel();
    let call = InFlightCall {
        identity: CallIdentity::gateway(1),
        deadline,
        deadline_extension: None,
        claim: None,
        is_discarded: false,
        waiter: Some(waiter),
        listener: None,
        permits: None,
        attempt: None,
    };
    calls.insert(id, call).map(|()| answer)
}

fn claim(calls: &InFlightCalls, id: u64) -> bool {
    let mut batch = vec![id];
    calls.claim(&mut batch, |id| Some(*id), Instant::now());
    !batch.is_empty()
}

fn answer(text: &'static str) -> Result<Answer, RequestError> {
    Ok(Answer::Result(Bytes::from_static(text.as_bytes())))
}

#[tokio::test]
async fn an_answer_reaches_its_waiter_once() {
    let calls = InFlightCalls::default();
    let waiter = insert(&calls, 7).unwrap();
    assert!(claim(&calls, 7));
    assert_eq!(calls.complete(7, answer("x")), Completion::Delivered);
    assert_eq!(calls.complete(7, answer("y")), Completion::NotInFlight);
    assert_eq!(waiter.await.unwrap().outcome, answer("x"));
    assert_eq!(calls.len(), 0);
}

#[tokio::test]
async fn an_abandoned_call_is_not_written_if_it_was_not_yet() {
    let calls = InFlightCalls::default();
    let _waiter = insert(&calls, 7).unwrap();
    assert_eq!(calls.abandon(7, false, far()), WriteState::NotWritten);
    assert!(!claim(&calls, 7));
    assert_eq!(calls.len(), 0);
}

#[tokio::test]
async fn an_abandoned_call_stays_until_the_answer_or_the_end_of_grace() {
    let calls = InFlightCalls::default();
    let now = Instant::now();
    for id in [1, 2] {
        let _waiter = insert(&calls, id).unwrap();
        assert!(claim(&calls, id));
        assert_eq!(calls.abandon(id, true, now + Duration::from_secs(5)), WriteState::Written);
    }
    assert_eq!(calls.len(), 2);
    assert_eq!(calls.complete(1, answer("x")), Completion::Late);
    assert_eq!(calls.len(), 1);
    assert_eq!(calls.expire(now), (false, Some(now + Duration::from_secs(5))));
    assert_eq!(calls.expire(now + Duration::from_secs(6)), (false, None));
    assert_eq!(calls.len(), 0);
}

#[tokio::test]
async fn an_abandoned_call_stays_as_long_as_its_frame_waits_to_be_written() {
    let calls = InFlightCalls::default();
    let _waiter = insert(&calls, 7).unwrap();
    assert_eq!(calls.abandon(7, true, far()), WriteState::NotWritten);
    assert_eq!(calls.len(), 1);
    assert!(!claim(&calls, 7));
    assert_eq!(calls.len(), 0);
}

#[tokio::test]
async fn a_call_past_its_deadline_is_not_written() {
    let calls = InFlightCalls::default();
    let _waiter = insert_until(&calls, 7, Instant::now()).unwrap();
    assert!(!claim(&calls, 7));
    // The writer has dropped its frame, and will not reach it again.
    assert_eq!(calls.abandon(7, true, far()), WriteState::NotWritten);
    assert_eq!(calls.len(), 0);
}

#[tokio::test]
async fn closing_tells_callers_whether_they_were_written_and_refuses_later_calls() {
    let calls = InFlightCalls::default();
    let queued = insert(&calls, 1).unwrap();
    let written = insert(&calls, 2).unwrap();
    assert!(claim(&calls, 2));
    let reason = CloseReason::Exited(ExitReason::Code(1));
    calls.close(&reason);
    calls.close(&CloseReason::Stopped);
    let closed = |written| RequestError::Closed { reason: reason.clone(), written };
    assert_eq!(queued.await.unwrap().outcome, Err(closed(false)));
    assert_eq!(written.await.unwrap().outcome, Err(closed(true)));
    assert_eq!(insert(&calls, 3).unwrap_err(), closed(false));
    assert_eq!(calls.close_reason(), Some(reason));
}

#[tokio::test]
async fn the_list_of_abandoned_calls_stays_small_however_many_come_and_go() {
    let calls = InFlightCalls::default();
    let _stuck = insert(&calls, 0).unwrap();
    assert!(claim(&calls, 0));
    calls.abandon(0, true, far());
    for id in 1..10_000 {
        let _waiter = insert(&calls, id).unwrap();
        assert!(claim(&calls, id));
        calls.abandon(id, true, far());
        calls.complete(id, answer("x"));
    }
    assert!(calls.table.lock().abandoned.len() < 100);
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64),
    Claim(u64),
    Complete(u64),
    Abandon(u64, bool),
    Expire,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Model {
    Queued,
    Unwanted,
    Written,
    Abandoned,
}

fn op() -> impl Strategy<Value = Op> {
    let id = 0..16_u64;
    prop_oneof![
        8 => id.clone().prop_map(Op::Insert),
        8 => id.clone().prop_map(Op::Claim),
        8 => id.clone().prop_map(Op::Complete),
        6 => (id, any::<bool>()).prop_map(|(id, is_queued)| Op::Abandon(id, is_queued)),
        1 => Just(Op::Expire),
        1 => Just(Op::Close),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Compares random operations with the simplest possible model: states agree after each, and
    /// every waiter gets exactly one delivery, unless it was abandoned.
    #[test]
    fn agrees_with_a_model(ops in prop::collection::vec(op(), 1..60)) {
        let calls = InFlightCalls::default();
        let mut model: HashMap<u64, Model> = HashMap::new();
        let mut waiters: HashMap<u64, oneshot::Receiver<Delivery>> = HashMap::new();
        let mut used = HashSet::new();
        let mut closed = false;
        let (grace_end, after_grace) = (far(), far() + Duration::from_secs(1));
        for op in ops {
            match op {
                // Ids are used once, except while in use, which must be refused.
                Op::Insert(id) if !model.contains_key(&id) && !used.insert(id) => {}
                Op::Insert(id) => match insert(&calls, id) {
                    Ok(waiter) => {
                        prop_assert!(!closed && model.insert(id, Model::Queued).is_none());
                        waiters.insert(id, waiter);
                    }
                    Err(RequestError::Closed { .. }) => prop_assert!(closed),
                    Err(error) => {
                        prop_assert_eq!(error, RequestError::IdentityMismatch);
                        prop_assert!(model.contains_key(&id));
                    }
                },
                Op::Claim(id) => {
                    let is_unwanted = model.get(&id) == Some(&Model::Unwanted);
                    if is_unwanted {
                        model.remove(&id);
                    }
                    prop_assert_eq!(claim(&calls, id), model.contains_key(&id));
                    if let Some(state @ Model::Queued) = model.get_mut(&id) {
                        *state = Model::Written;
                    }
                }
                Op::Complete(id) => match (calls.complete(id, answer("x")), model.remove(&id)) {
                    (Completion::Delivered, Some(Model::Queued | Model::Written)) => {
                        let delivery = waiters.remove(&id).unwrap().try_recv();
                        prop_assert!(delivery.is_ok_and(|delivery| delivery.outcome.is_ok()));
                    }
                    (Completion::Late, Some(Model::Unwanted | Model::Abandoned))
                    | (Completion::NotInFlight, None) => {}
                    (got, was) => prop_assert!(false, "{got:?} for {was:?}"),
                },
                Op::Abandon(id, is_queued) => {
                    let state = calls.abandon(id, is_queued, grace_end);
                    match (state, model.get(&id).copied()) {
                        (WriteState::NotWritten, Some(Model::Queued | Model::Unwanted)) => {
                            model.insert(id, Model::Unwanted);
                            if !is_queued {
                                model.remove(&id);
                            }
                        }
                        (WriteState::Written, Some(Model::Written | Model::Abandoned)) => {
                            model.insert(id, Model::Abandoned);
                        }
                        (WriteState::Completed, None) => {}
                        (got, was) => prop_assert!(false, "{got:?} for {was:?}"),
                    }
                    waiters.remove(&id);
                }
                Op::Expire => {
                    calls.expire(after_grace);
                    model.retain(|_, state| *state != Model::Abandoned);
                }
                Op::Close => {
                    calls.close(&CloseReason::Stopped);
                    for (_, mut waiter) in waiters.drain() {
                        prop_assert!(waiter.try_recv().is_ok());
                    }
                    model.clear();
                    closed = true;
                }
            }
            prop_assert_eq!(calls.len(), model.len());
        }
    }
}
