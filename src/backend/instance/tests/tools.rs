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
            .with_page(&Offload::new(), page.into(), UsableTools::default())
            .await
            .unwrap();
        assert_eq!(cursor, Some(next));
    };
    assert!(!is_offloaded(read(LONG)));
    assert!(is_offloaded(read(LONG + 1)));
}

#[tokio::test]
async fn what_is_wrong_with_one_tool_takes_no_other_away() {
    let long = "x".repeat(NAME_LEN_MAX + 1);
    let page = |_| {
        let task = r#"{"name":"slow","execution":{"taskSupport":"required"}}"#;
        format!(
            r#"{{"tools":[{{"name":"a"}},{{"name":7}},{{}},["x"],{{"name":"\ud800"}},
            {{"name":"{long}"}},{{"name":"b\nc"}},{{"name":"a","x":1}},{task},
            {{"name":"quick","execution":{{"taskSupport":"optional"}}}}]}}"#
        )
        .replace('\n', "")
    };
    let tools = list(page).await.unwrap();
    assert_eq!(tools.names().collect::<Vec<_>>(), ["a", "quick"]);
    let left_out = tools.left_out();
    assert_eq!(left_out.len(), 8);
    let said = left_out.to_string();
    for part in [
        "`#2` (it has no name",
        "256 bytes",
        "`b\\nc` (its name has control",
        "`a` (there",
        "`slow` (it can be called only as a task",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains('\n'), "{said}");
}

#[tokio::test]
async fn tools_over_the_most_are_left_out_and_the_rest_is_there() {
    let page = |number: usize| {
        let tools: Vec<_> = (0..1000).map(|n| format!("{{\"name\":\"t{number}-{n}\"}}")).collect();
        format!("{{\"tools\":[{}],\"nextCursor\":\"{number}\"}}", tools.join(","))
    };
    let tools = list(page).await.unwrap();
    assert_eq!(tools.iter().count(), TOOLS_MAX);
    assert!(tools.left_out().to_string().contains("a server may have 20000 tools"));
}

impl ToolSet {
    /// Makes a list of tools with these names, all of them held back.
    pub(crate) fn held_testing(names: impl Iterator<Item = String>) -> Arc<Self> {
        let mut tools = Self::default();
        for name in names {
            let definition = serde_json::json!({"name": name}).to_string();
            tools.add(RawValue::from_string(definition).unwrap(), UsableTools::default());
        }
        tools.all().for_each(|tool| _ = tool.set_held(true));
        Arc::new(tools)
    }
}
