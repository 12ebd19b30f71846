//! The reader beyond what the tests of the connection show.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::ReadBuf;

use super::*;
use crate::backend::changes::recipients::Recipients;
use crate::backend::testing::{PIPE_LEN, Peer, connect};
use crate::common::ids::ServerId;
use crate::common::offload::LONG;
use crate::common::offload::testing::is_offloaded;

fn connection() -> (Arc<Connection>, Peer) {
    connect(PIPE_LEN, Recipients::new(ServerId::parse("test").unwrap(), None))
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_nobody_reads_any_more_is_closed() {
    struct Broken;
    impl AsyncRead for Broken {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            panic!("the reader panics")
        }
    }
    let (connection, _peer) = connection();
    let reading = tokio::spawn(run(connection.clone(), Broken, 100, None));
    assert!(reading.await.unwrap_err().is_panic());
    let closed = timeout(Duration::from_secs(1), connection.closed()).await.expect("it is closed");
    assert_eq!(closed.to_string(), "its output is not read any more");
}

#[test]
fn only_a_long_message_is_offloaded() {
    let read = |len: usize| async move {
        let (connection, _peer) = connection();
        let line = "x".repeat(len);
        assert_eq!(
            take_message(&connection, line.into(), ExpectedAnswers::Any).await,
            MessageKind::Garbage
        );
    };
    assert!(!is_offloaded(read(LONG)));
    assert!(is_offloaded(read(LONG + 1)));
}
