//! Replicas learn of each other and of ended sessions by the store.

use std::time::Duration;

use sqlx::{AnyConnection, Connection};
use tokio::time::timeout;
use trunkline::cluster::EndedSessions;
use trunkline::common::ids::SessionId;
use trunkline::store::{EndedCursor, EndedSession};

use crate::support::{in_time, on_both};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

fn ended(id: &SessionId, expires: i64) -> EndedSession {
    EndedSession { id: id.clone(), tenant: Some("acme@1".to_owned()), expires }
}

fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

#[tokio::test]
async fn replicas_see_each_other_until_they_leave() {
    on_both(async |database| {
        let (one, other) = (database.open().await, database.open().await);
        assert_eq!(one.heartbeat("one", "10.0.0.1:80").await.unwrap(), []);
        let seen = |id: &str, address: &str| vec![(id.to_owned(), address.to_owned())];
        assert_eq!(
            other.heartbeat("other", "10.0.0.2:80").await.unwrap(),
            seen("one", "10.0.0.1:80")
        );
        assert_eq!(
            one.heartbeat("one", "10.0.0.3:80").await.unwrap(),
            seen("other", "10.0.0.2:80")
        );
        assert_eq!(
            other.heartbeat("other", "10.0.0.2:80").await.unwrap(),
            seen("one", "10.0.0.3:80")
        );
        one.remove_replica("one").await.unwrap();
        assert_eq!(other.heartbeat("other", "10.0.0.2:80").await.unwrap(), []);
    })
    .await;
}

#[tokio::test]
async fn a_replica_that_says_nothing_for_ten_seconds_is_gone() {
    on_both(async |database| {
        let store = database.open().await;
        let mut connection = AnyConnection::connect(database.url.expose()).await.unwrap();
        let others = async || store.heartbeat("other", "10.0.0.2:80").await.unwrap().len();
        let rows = "SELECT COUNT(*) FROM replicas";
        store.heartbeat("one", "10.0.0.1:80").await.unwrap();
        for (later_ms, seen, kept) in [(8_000, 1, 2), (3_000, 0, 2), (60_000, 0, 1)] {
            sqlx::query("UPDATE replicas SET seen = seen - $1 WHERE id = 'one'")
                .bind(later_ms)
                .execute(&mut connection)
                .await
                .unwrap();
            assert_eq!(others().await, seen);
            store.delete_gone_replicas().await.unwrap();
            let left: i64 = sqlx::query_scalar(rows).fetch_one(&mut connection).await.unwrap();
            assert_eq!(left, kept);
        }
    })
    .await;
}

#[tokio::test]
async fn every_end_of_a_session_is_read_once_and_soon() {
    on_both(async |database| {
        let (one, other) = (database.open().await, database.open().await);
        let ids: Vec<_> = (0..450).map(|_| SessionId::generate()).collect();
        let ended =
            |ids: &[SessionId]| ids.iter().map(|id| ended(id, now() + DAY_MS)).collect::<Vec<_>>();
        one.end_sessions(&ended(&ids[..400])).await.unwrap();
        // Again is nothing new.
        one.end_sessions(&ended(&ids[..2])).await.unwrap();
        let mut endings = EndedSessions::new(other);
        let read = endings.read().await.unwrap();
        assert_eq!(read.len(), 400);
        assert!(ids[..400].iter().all(|id| read.iter().any(|it| it.id == *id)));
        assert!(read.iter().all(|it| it.tenant.as_deref() == Some("acme@1")));
        assert_eq!(endings.read().await.unwrap(), []);
        // The first look is at what is there.
        let _ = timeout(Duration::from_millis(700), endings.next()).await;
        one.end_sessions(&ended(&ids[400..])).await.unwrap();
        let read = in_time("the others", endings.next()).await;
        assert_eq!(read.len(), 50);
    })
    .await;
}

#[tokio::test]
async fn what_is_over_by_itself_is_not_kept() {
    on_both(async |database| {
        let store = database.open().await;
        let (over, later) = (SessionId::generate(), SessionId::generate());
        let rows = [ended(&over, now() - 1), ended(&later, now() + DAY_MS)];
        store.end_sessions(&rows).await.unwrap();
        store.delete_ended_sessions().await.unwrap();
        let left = store.ended_sessions(&mut EndedCursor::default()).await.unwrap();
        assert!(left.into_iter().map(|it| it.id).eq([later]));
    })
    .await;
}

#[tokio::test]
async fn a_row_that_cannot_be_read_hides_no_other() {
    on_both(async |database| {
        let store = database.open().await;
        let mut connection = AnyConnection::connect(database.url.expose()).await.unwrap();
        let ids = [(); 2].map(|()| SessionId::generate());
        let mut endings = EndedSessions::new(store.clone());
        for (id, garbage) in ids.iter().zip(["x", "y"]) {
            store.end_sessions(&[ended(id, now() + DAY_MS)]).await.unwrap();
            // After all that was read, and, when the next has ended, before what was not.
            sqlx::query(
                "INSERT INTO ended_sessions (id, expires, revision) \
                 SELECT CAST($1 AS TEXT), MAX(expires), MAX(revision) FROM ended_sessions",
            )
            .bind(garbage)
            .execute(&mut connection)
            .await
            .unwrap();
            let read = endings.read().await.unwrap();
            assert!(read.into_iter().map(|it| it.id).eq([id.clone()]));
            assert_eq!(endings.read().await.unwrap(), []);
        }
        let read = EndedSessions::new(store).read().await.unwrap();
        assert!(read.into_iter().map(|it| it.id).eq(ids));
    })
    .await;
}
