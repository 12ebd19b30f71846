use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn insert(pending: &Pending, id: u64) -> Result<oneshot::Receiver<Delivery>, Refused> {
    let (waiter, answer) = oneshot::channel();
    pending.insert(id, Owner::gateway(1), far(), None, waiter).map(|()| answer)
}

fn claim(pending: &Pending, id: u64) -> bool {
    let mut batch = vec![id];
    pending.claim(&mut batch, |id| Some(*id), Instant::now());
    !batch.is_empty()
}

fn answer(text: &'static str) -> Result<Answer, Failure> {
    Ok(Answer::Result(Bytes::from_static(text.as_bytes())))
}

#[tokio::test]
async fn an_answer_reaches_its_waiter_once() {
    let pending = Pending::default();
    let waiter = insert(&pending, 7).unwrap();
    assert!(claim(&pending, 7));
    assert_eq!(pending.complete(7, answer("x")), Completion::Delivered);
    assert_eq!(pending.complete(7, answer("y")), Completion::NoSlot);
    assert_eq!(waiter.await.unwrap().outcome, answer("x"));
    assert!(pending.is_empty());
}

#[tokio::test]
async fn an_abandoned_call_is_not_written_if_it_was_not_yet() {
    let pending = Pending::default();
    let _waiter = insert(&pending, 7).unwrap();
    assert_eq!(pending.abandon(7, false, far()), Progress::NotWritten);
    assert!(!claim(&pending, 7));
    assert!(pending.is_empty());
}

#[tokio::test]
async fn an_abandoned_call_keeps_its_slot_until_the_answer_or_the_end_of_grace() {
    let pending = Pending::default();
    let now = Instant::now();
    for id in [1, 2] {
        let _waiter = insert(&pending, id).unwrap();
        assert!(claim(&pending, id));
        assert_eq!(pending.abandon(id, true, now + Duration::from_secs(5)), Progress::Written);
    }
    assert_eq!(pending.len(), 2);
    assert_eq!(pending.complete(1, answer("x")), Completion::Late);
    assert_eq!(pending.len(), 1);
    assert_eq!(pending.expire(now), (false, Some(now + Duration::from_secs(5))));
    assert_eq!(pending.expire(now + Duration::from_secs(6)), (false, None));
    assert!(pending.is_empty());
}

#[tokio::test]
async fn an_abandoned_call_keeps_its_slot_as_long_as_its_frame_waits_to_be_written() {
    let pending = Pending::default();
    let _waiter = insert(&pending, 7).unwrap();
    assert_eq!(pending.abandon(7, true, far()), Progress::NotWritten);
    assert_eq!(pending.len(), 1);
    assert!(!claim(&pending, 7));
    assert!(pending.is_empty());
}

#[tokio::test]
async fn a_call_past_its_deadline_is_not_written() {
    let pending = Pending::default();
    let (waiter, _answer) = oneshot::channel();
    pending.insert(7, Owner::gateway(1), Instant::now(), None, waiter).unwrap();
    assert!(!claim(&pending, 7));
    // The writer has thrown its frame away, and will not come to it again.
    assert_eq!(pending.abandon(7, true, far()), Progress::NotWritten);
    assert!(pending.is_empty());
}

#[tokio::test]
async fn closing_tells_everyone_how_far_they_came_and_refuses_the_late() {
    let pending = Pending::default();
    let queued = insert(&pending, 1).unwrap();
    let written = insert(&pending, 2).unwrap();
    assert!(claim(&pending, 2));
    let end = End::Exited("exit code 1".into());
    pending.close(&end);
    pending.close(&End::Stopped);
    let ended = |written| Err(Failure::Ended { end: end.clone(), written });
    assert_eq!(queued.await.unwrap().outcome, ended(false));
    assert_eq!(written.await.unwrap().outcome, ended(true));
    assert_eq!(insert(&pending, 3).unwrap_err(), Refused::Closed(end.clone()));
    assert_eq!(pending.end(), Some(end));
}

#[tokio::test]
async fn the_list_of_abandoned_calls_stays_small_however_many_come_and_go() {
    let pending = Pending::default();
    let _stuck = insert(&pending, 0).unwrap();
    assert!(claim(&pending, 0));
    pending.abandon(0, true, far());
    for id in 1..10_000 {
        let _waiter = insert(&pending, id).unwrap();
        assert!(claim(&pending, id));
        pending.abandon(id, true, far());
        pending.complete(id, answer("x"));
    }
    assert!(pending.table.lock().abandoned.len() < 100);
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

    /// Random operations against the simplest possible model: states agree after each, and every
    /// waiter gets exactly one delivery, unless it was abandoned.
    #[test]
    fn agrees_with_a_model(ops in prop::collection::vec(op(), 1..60)) {
        let pending = Pending::default();
        let mut model: HashMap<u64, Model> = HashMap::new();
        let mut waiters: HashMap<u64, oneshot::Receiver<Delivery>> = HashMap::new();
        let mut used = HashSet::new();
        let mut closed = false;
        let (grace_end, after_grace) = (far(), far() + Duration::from_secs(1));
        for op in ops {
            match op {
                // Ids never come twice, except while in use, which must be refused.
                Op::Insert(id) if !model.contains_key(&id) && !used.insert(id) => {}
                Op::Insert(id) => match insert(&pending, id) {
                    Ok(waiter) => {
                        prop_assert!(!closed && model.insert(id, Model::Queued).is_none());
                        waiters.insert(id, waiter);
                    }
                    Err(Refused::Closed(_)) => prop_assert!(closed),
                    Err(Refused::IdInUse) => prop_assert!(model.contains_key(&id)),
                },
                Op::Claim(id) => {
                    let is_unwanted = model.get(&id) == Some(&Model::Unwanted);
                    if is_unwanted {
                        model.remove(&id);
                    }
                    prop_assert_eq!(claim(&pending, id), model.contains_key(&id));
                    if let Some(state @ Model::Queued) = model.get_mut(&id) {
                        *state = Model::Written;
                    }
                }
                Op::Complete(id) => match (pending.complete(id, answer("x")), model.remove(&id)) {
                    (Completion::Delivered, Some(Model::Queued | Model::Written)) => {
                        let delivery = waiters.remove(&id).unwrap().try_recv();
                        prop_assert!(delivery.is_ok_and(|delivery| delivery.outcome.is_ok()));
                    }
                    (Completion::Late, Some(Model::Unwanted | Model::Abandoned))
                    | (Completion::NoSlot, None) => {}
                    (got, was) => prop_assert!(false, "{got:?} for {was:?}"),
                },
                Op::Abandon(id, is_queued) => {
                    let progress = pending.abandon(id, is_queued, grace_end);
                    match (progress, model.get(&id).copied()) {
                        (Progress::NotWritten, Some(Model::Queued | Model::Unwanted)) => {
                            model.insert(id, Model::Unwanted);
                            if !is_queued {
                                model.remove(&id);
                            }
                        }
                        (Progress::Written, Some(Model::Written | Model::Abandoned)) => {
                            model.insert(id, Model::Abandoned);
                        }
                        (Progress::Done, None) => {}
                        (got, was) => prop_assert!(false, "{got:?} for {was:?}"),
                    }
                    waiters.remove(&id);
                }
                Op::Expire => {
                    pending.expire(after_grace);
                    model.retain(|_, state| *state != Model::Abandoned);
                }
                Op::Close => {
                    pending.close(&End::Stopped);
                    for (_, mut waiter) in waiters.drain() {
                        prop_assert!(waiter.try_recv().is_ok());
                    }
                    model.clear();
                    closed = true;
                }
            }
            prop_assert_eq!(pending.len(), model.len());
        }
    }
}
