//! Records of calls in the store: a group of transitions is written in one transaction, each by the
//! state of its record.

use std::collections::HashSet;

use trunkline::common::ids::{CallId, ServerId, TenantGeneration, TenantId, TenantName};
use trunkline::store::{
    BegunCall, CallBatch, CallQuery, CallState, EndedCall, NewCall, Store, StoreError,
};

use crate::support::{Database, Postgres, on_both};

const OWNER: &str = "one";
/// With all that an array of PostgreSQL escapes.
const ANSWER: &str = r#"{"a":"\\n\"}"}"#;

fn acme() -> TenantId {
    TenantName::parse("acme").unwrap().of(TenantGeneration::from_number(7))
}

fn new_call(scope: &str, state: CallState) -> NewCall {
    NewCall {
        id: CallId::generate(),
        tenant: acme(),
        scope: Some(scope.to_owned()),
        fingerprint: "fingerprint".to_owned(),
        server: ServerId::parse("std").unwrap(),
        tool: r#"{"a": \ 'ü',NULL}"#.to_owned(),
        state,
        owner: OWNER.into(),
        request: "line\none\t\u{1}".to_owned(),
        arguments: None,
        labels: vec![],
        callback: None,
        created: 5,
        expires: i64::MAX,
    }
}

fn ended(call: &NewCall, result: Option<&str>) -> EndedCall {
    EndedCall {
        id: call.id,
        tenant: acme(),
        owner: OWNER.into(),
        at: 9,
        head: r#"{"code":null}"#.to_owned(),
        result: result.map(str::to_owned),
        result_len: result.map_or(0, str::len) as i64,
        parts: 0,
        frees_key: false,
        has_callback: false,
    }
}

async fn total(store: &Store) -> (i64, i64) {
    let totals = store.call_totals().await.unwrap();
    totals
        .iter()
        .fold((0, 0), |(records, bytes), total| (records + total.records, bytes + total.bytes))
}

fn ids<'a>(calls: impl IntoIterator<Item = &'a NewCall>) -> HashSet<CallId> {
    calls.into_iter().map(|call| call.id).collect()
}

#[tokio::test]
async fn each_transition_of_a_group_takes_place_or_not_by_itself() {
    on_both(async |database| {
        let store = database.open().await;
        let mut connection = store.call_connection(OWNER.into(), false);
        // More than one message has, and no round number.
        let calls: Vec<_> =
            (0..101).map(|call| new_call(&format!("s{call}"), CallState::Begun)).collect();
        let batch = CallBatch { new: calls.iter().collect(), ..CallBatch::default() };
        assert_eq!(connection.write(&batch).await.unwrap().new, ids(&calls));
        assert_eq!(total(&store).await, (101, 0));

        // Some keys are taken, some calls are another gateway's, or have ended before.
        let again = [new_call("s50", CallState::Begun), new_call("s", CallState::Accepted)];
        let ends: Vec<_> = calls.iter().map(|call| ended(call, Some(ANSWER))).collect();
        database.run("UPDATE calls SET owner = 'other' WHERE scope = 's7'").await;
        database.run("UPDATE calls SET state = 2 WHERE scope = 's8'").await;
        let (new, ended) = (again.iter().collect(), ends.iter().collect());
        let written = connection.write(&CallBatch { new, ended, ..CallBatch::default() }).await;
        let written = written.unwrap();
        assert_eq!(written.new, ids([&again[1]]));
        let refused = ids([&calls[7], &calls[8]]);
        assert_eq!(written.ended, ids(&calls).difference(&refused).copied().collect());
        assert_eq!(total(&store).await, (102, 99 * ANSWER.len() as i64));

        let record = store.call(&acme(), calls[0].id).await.unwrap().unwrap();
        assert_eq!((&record.tool, &record.request), (&calls[0].tool, &calls[0].request));
        assert_eq!(
            (record.begun, record.ended, record.state),
            (Some(5), Some(9), CallState::Ended)
        );
        assert_eq!(record.head.as_deref(), Some(r#"{"code":null}"#));
        assert_eq!(record.result.as_deref(), Some(ANSWER));
        let record = store.call_of_scope("s").await.unwrap().unwrap();
        assert_eq!((record.id, record.begun), (again[1].id, None));
    })
    .await;
}

#[tokio::test]
async fn an_accepted_call_begins_once_and_only_where_it_is() {
    on_both(async |database| {
        let store = database.open().await;
        let mut connection = store.call_connection(OWNER.into(), false);
        let calls: Vec<_> =
            (0..3).map(|call| new_call(&format!("s{call}"), CallState::Accepted)).collect();
        let batch = CallBatch { new: calls.iter().collect(), ..CallBatch::default() };
        connection.write(&batch).await.unwrap();
        database.run("UPDATE calls SET owner = 'other' WHERE scope = 's1'").await;
        let mut begin = async |at, state| {
            let begun = calls.iter().map(|call| BegunCall { id: call.id, at, state }).collect();
            connection.write(&CallBatch { begun, ..CallBatch::default() }).await.unwrap().begun
        };
        // A batch stays accepted, and keeps the time at which it began first.
        assert_eq!(begin(6, CallState::Accepted).await, ids([&calls[0], &calls[2]]));
        assert_eq!(begin(7, CallState::Begun).await, ids([&calls[0], &calls[2]]));
        let record = store.call(&acme(), calls[0].id).await.unwrap().unwrap();
        assert_eq!((record.begun, record.state), (Some(6), CallState::Begun));
    })
    .await;
}

#[tokio::test]
async fn labels_keys_and_calls_that_leave_nothing_are_part_of_the_group() {
    on_both(async |database| {
        let store = database.open().await;
        let mut connection = store.call_connection(OWNER.into(), false);
        let mut calls = ["a", "b", "a"].map(|scope| new_call(scope, CallState::Begun));
        calls.iter_mut().for_each(|call| call.labels = vec!["run=7".to_owned(), "x\"".to_owned()]);
        let batch = CallBatch { new: calls.iter().collect(), ..CallBatch::default() };
        assert_eq!(connection.write(&batch).await.unwrap().new.len(), 2);
        let labelled = async |label: &str| {
            let (label, before) = (Some(label.to_owned()), None);
            let query = CallQuery { tenant: acme(), label, states: vec![], before, limit: 9 };
            store.calls(&query).await.unwrap().len()
        };
        assert_eq!((labelled("run=7").await, labelled("x\"").await), (2, 2));

        // The key of one may be used again; another leaves nothing behind.
        let b = store.call_of_scope("b").await.unwrap().unwrap().id;
        let a = store.call_of_scope("a").await.unwrap().unwrap().id;
        let freed = calls.iter().find(|call| call.id == a).unwrap();
        let end = EndedCall { frees_key: true, ..ended(freed, Some("{}")) };
        let batch = CallBatch { ended: vec![&end], forgotten: vec![b], ..CallBatch::default() };
        connection.write(&batch).await.unwrap();
        for scope in ["a", "b"] {
            assert!(store.call_of_scope(scope).await.unwrap().is_none());
        }
        assert!(store.call(&acme(), a).await.unwrap().is_some());
        assert_eq!((labelled("run=7").await, total(&store).await), (1, (1, 2)));
    })
    .await;
}

/// SQLite takes any value.
#[tokio::test]
async fn a_group_with_a_value_that_postgresql_refuses_writes_nothing() {
    let Some(server) = Postgres::shared() else { return };
    let store = Database::postgres(server).await.open().await;
    let mut connection = store.call_connection(OWNER.into(), false);
    let (one, other) = (new_call("a", CallState::Begun), new_call("b", CallState::Begun));
    let batch = CallBatch { new: vec![&one], ..CallBatch::default() };
    connection.write(&batch).await.unwrap();
    let bad = ended(&one, Some("\0"));
    let (new, ended_calls) = (vec![&other], vec![&bad]);
    let batch = CallBatch { new, ended: ended_calls, ..CallBatch::default() };
    let written = connection.write(&batch).await;
    assert!(matches!(written, Err(StoreError::InvalidValue(_))), "{written:?}");
    assert!(store.call_of_scope("b").await.unwrap().is_none());
    let good = ended(&one, Some("{}"));
    let batch = CallBatch { ended: vec![&good], ..CallBatch::default() };
    assert_eq!(connection.write(&batch).await.unwrap().ended, ids([&one]));
}
