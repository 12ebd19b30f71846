//! Tools of a server that is played by the test.

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::backend::Environment;
use crate::backend::changes::Changes;
use crate::backend::changes::mailbox::{Lists, Mailbox};
use crate::backend::changes::recipients::Recipients;
use crate::backend::connection::CloseReason;
use crate::backend::testing::{PIPE_LEN, Peer, connect};
use crate::common::ids::TenantId;
use crate::protocol::mcp::ProtocolVersion;
use crate::protocol::mcp::requests::Dialect;

/// Longer than anything may take here.
const A_MINUTE: Duration = Duration::from_secs(60);

fn server() -> ServerId {
    ServerId::parse("test").unwrap()
}

fn tool(name: &str, description: &str) -> Value {
    json!({"name": name, "description": description, "inputSchema": {"type": "object"}})
}

fn approved(tools: &[Value]) -> Option<Approved> {
    let approved = tools
        .iter()
        .map(|tool| (tool["name"].as_str().unwrap().to_owned(), Hash::of(&tool.to_string())));
    Some(approved.collect())
}

struct Scene {
    environment: Environment,
    metrics: Metrics,
}

impl Scene {
    fn new() -> Self {
        Self::with(&[server()])
    }

    fn with(servers: &[ServerId]) -> Self {
        let metrics = Metrics::new();
        let mut environment = Environment::new("trunkline".into(), 1_000_000, metrics.clone());
        environment.pins = Arc::new(Pins::new(servers.iter(), &metrics));
        Self { environment, metrics }
    }

    fn pins(&self) -> &Pins {
        &self.environment.pins
    }

    /// Has a run list `tools`.
    async fn list(
        &self,
        connection: &Arc<Connection>,
        peer: &mut Peer,
        tools: &[Value],
    ) -> Arc<ToolSet> {
        let dialect = Dialect::new(ProtocolVersion::LATEST_LEGACY);
        let (deadline, server) = (Instant::now() + A_MINUTE, server());
        let environment = &self.environment;
        let listing = ToolSet::list(connection, &dialect, deadline, &server, environment, true);
        let answering = async {
            let request = peer.receive().await;
            peer.answer(&request["id"], json!({"tools": tools})).await;
        };
        tokio::join!(listing, answering).0.unwrap()
    }

    fn held(&self) -> i64 {
        self.metrics.held_tools("test").get()
    }
}

fn run() -> (Arc<Connection>, Peer) {
    connect(PIPE_LEN, Recipients::new(server(), None))
}

fn names(tools: &ToolSet) -> Vec<&str> {
    tools.names().collect()
}

#[tokio::test(start_paused = true)]
async fn until_it_is_known_what_was_approved_all_is_held_back() {
    let scene = Scene::new();
    let (connection, mut peer) = run();
    let listed = [tool("a", ""), tool("b", "")];
    let before = Instant::now();
    let tools = scene.list(&connection, &mut peer, &listed).await;
    assert_eq!(before.elapsed(), FIRST_USE_WAIT);
    assert_eq!((names(&tools), tools.held_len(), scene.held()), (vec![], 2, 2));
    assert!(tools.get("a").unwrap().is_held());

    scene.pins().set_approved(&server(), approved(&listed));
    assert_eq!((names(&tools), scene.held()), (vec!["a", "b"], 0));
    // As if it had never been seen.
    scene.pins().set_approved(&server(), None);
    assert_eq!((names(&tools), scene.held()), (vec![], 2));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_seen_first_waits_for_its_tools_to_be_approved() {
    let scene = Scene::new();
    let (connection, mut peer) = run();
    let listed = [tool("a", "")];
    let approving = async {
        scene.pins().listed().await;
        let (_, tools) = scene.pins().tools(&server()).remove(0);
        assert!(tools.all().all(Tool::is_held) && scene.pins().take_fresh(&server()));
        assert!(!scene.pins().take_fresh(&server()));
        scene.pins().set_approved(&server(), approved(&listed));
    };
    let before = Instant::now();
    let (tools, ()) = tokio::join!(scene.list(&connection, &mut peer, &listed), approving);
    assert_eq!((names(&tools), before.elapsed()), (vec!["a"], Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_pinned_later_is_held_back_until_its_tools_are_approved() {
    let scene = Scene::with(&[]);
    let (connection, mut peer) = run();
    let tools = scene.list(&connection, &mut peer, &[tool("a", "")]).await;
    assert_eq!((names(&tools), tools.held_len(), scene.held()), (vec![], 1, 1));
    assert_eq!(scene.pins().servers(), [server()]);
    scene.pins().listed().await;
    scene.pins().set_approved(&server(), approved(&[tool("a", "")]));
    assert_eq!((names(&tools), scene.held()), (vec!["a"], 0));
}

#[tokio::test]
async fn names_alone_are_not_compared() {
    let scene = Scene::new();
    scene.pins().set_approved(&server(), approved(&[tool("a", "old"), tool("b", "")]));
    let (connection, mut peer) = run();
    let listed = [tool("a", "new"), tool("b", ""), tool("c", "")];
    let tools = scene.list(&connection, &mut peer, &listed).await;
    assert_eq!((names(&tools), tools.held_len()), (vec!["b"], 2));
    let exposed: Vec<_> = tools.exposed().map(|(name, _)| name).collect();
    assert_eq!(exposed, ["test__b"]);
}

#[tokio::test]
async fn who_found_a_tool_before_it_changed_does_not_get_the_changed_one() {
    let scene = Scene::new();
    let (old, other) = ([tool("a", "old"), tool("b", "")], [tool("a", "new"), tool("b", "")]);
    scene.pins().set_approved(&server(), approved(&old));
    let (connection, mut peer) = run();
    let before = scene.list(&connection, &mut peer, &old).await;
    let found = before.get("a").unwrap().clone();
    assert!(!found.is_held());
    scene.list(&connection, &mut peer, &other).await;
    assert!(found.is_held() && !before.get("b").unwrap().is_held());
    // One run has one list.
    assert_eq!((scene.pins().tools(&server()).len(), scene.held()), (1, 1));
}

#[tokio::test]
async fn a_run_that_is_over_no_longer_counts() {
    let scene = Scene::new();
    scene.pins().set_approved(&server(), approved(&[]));
    let (one, mut peer) = run();
    let (other, mut other_peer) = run();
    scene.list(&one, &mut peer, &[tool("a", ""), tool("b", "")]).await;
    scene.list(&other, &mut other_peer, &[tool("b", "other"), tool("c", "")]).await;
    assert_eq!((scene.pins().tools(&server()).len(), scene.held()), (2, 3));
    one.close(&CloseReason::Stopped);
    scene.pins().set_approved(&server(), approved(&[]));
    assert_eq!((scene.pins().tools(&server()).len(), scene.held()), (1, 2));
}

#[tokio::test]
async fn those_who_listen_hear_of_differences_only() {
    let scene = Scene::new();
    let listed = [tool("a", "")];
    scene.pins().set_approved(&server(), approved(&[]));
    let recipients = Recipients::new(server(), None);
    let changes: Arc<Changes> = recipients.changes.clone();
    let (connection, mut peer) = connect(PIPE_LEN, recipients);
    scene.list(&connection, &mut peer, &listed).await;
    let mailbox = Arc::new(Mailbox::default());
    let tenant = TenantId::testing("a");
    let _listener = changes.subscribe(tenant, mailbox.clone(), Lists::ALL);
    for (pins, is_told) in [
        (approved(&[]), false),
        (approved(&listed), true),
        (approved(&listed), false),
        (None, true),
    ] {
        scene.pins().set_approved(&server(), pins);
        assert_eq!(mailbox.next().now_or_never().is_some(), is_told);
    }
}
