//! Lists of a server that is played by the test.

use super::*;
use crate::backend::changes::recipients::Recipients;
use crate::backend::testing::{LINE_LEN_MAX, PIPE_LEN, Peer, connect, environment};
use crate::common::offload::testing::is_offloaded;
use crate::common::offload::{LONG, Offload};
use crate::protocol::mcp::ProtocolVersion;

/// Longer than anything may take here.
const A_MINUTE: Duration = Duration::from_secs(60);

fn server() -> ServerId {
    ServerId::parse("test").unwrap()
}

/// Lists what `answer` says, page by page.
async fn list(answer: impl Fn(usize) -> String) -> Result<Arc<ToolSet>, ListError> {
    let (connection, mut peer) = connect(PIPE_LEN, Recipients::new(server(), None));
    let dialect = Dialect::new(ProtocolVersion::LATEST_LEGACY);
    let (deadline, server, environment) = (Instant::now() + A_MINUTE, server(), environment());
    let listing = ToolSet::list(&connection, &dialect, deadline, &server, &environment, false);
    tokio::select! {
        listed = listing => listed,
        () = answer_all(&mut peer, answer) => unreachable!("it never ends"),
    }
}

async fn answer_all(peer: &mut Peer, answer: impl Fn(usize) -> String) {
    for page in 0.. {
        let (id, result) = (peer.receive().await["id"].clone(), answer(page));
        peer.write(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n")).await;
    }
}

#[tokio::test]
async fn a_list_is_bounded_in_bytes_over_all_its_pages() {
    let fill = "x".repeat(LINE_LEN_MAX * 9 / 10);
    let page = |number| format!("{{\"tools\":[],\"nextCursor\":\"{number}{fill}\"}}");
    let error = list(page).await.unwrap_err().to_string();
    assert_eq!(error, "its list of tools has no end: its pages are over 32 MiB together");
}

#[tokio::test]
async fn the_pages_of_a_list_may_be_kept_as_long_as_each_of_them() {
    let hints = [("public", 300), ("public", 200)];
    let page = |number| {
        let (scope, ttl) = hints[number];
        let next = if number == 0 { ",\"nextCursor\":\"1\"" } else { "" };
        format!("{{\"tools\":[],\"ttlMs\":{ttl},\"cacheScope\":\"{scope}\"{next}}}")
    };
    assert_eq!(list(page).await.unwrap().caching(), Caching { ttl_ms: 200, is_public: true });
}

#[test]
fn only_a_long_page_is_read_aside() {
    let read = |len: usize| async move {
        let around = "{\"tools\":[],\"nextCursor\":\"\"}".len();
        let next = "x".repeat(len - around);
        let page = format!("{{\"tools\":[],\"nextCursor\":\"{next}\"}}");
        let (_, cursor) = ToolSet::default()
            .with_page(&Offload::new(), page.into(), &server(), false)
            .await
            .unwrap();
        assert_eq!(cursor, Some(next));
    };
    assert!(!is_offloaded(read(LONG)));
    assert!(is_offloaded(read(LONG + 1)));
}
