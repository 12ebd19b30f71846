//! Pins cover the manifests of skills: one that has changed is held back until it is approved.

use std::fs;

use serde_json::{Value, json};
use trunkline::common::ids::ServerId;
use trunkline::pins::Hash;
use trunkline::store::Actor;

use crate::mcp_extensions::extending;
use crate::support::{Gateway, Mcp, Setup, eventually};

const SKILL: &str = "skill://git/SKILL.md";

async fn skills(mcp: &Mcp) -> Vec<String> {
    mcp.names("skills/list", "skills", "uri").await
}

async fn code(mcp: &Mcp, method: &str, uri: &str) -> Value {
    let error = mcp.ask(method, json!({"uri": uri})).send().await.error();
    error["data"]["code"].clone()
}

/// Waits until the skill is held back, and returns the hash of its manifest.
async fn held(gateway: &Gateway) -> Hash {
    let store = gateway.setup().store().await;
    let server = ServerId::parse("x").unwrap();
    eventually("held", async || {
        let (_, held) = store.pins(Some(&server)).await.unwrap();
        held.iter().find(|it| it.definition.tool == SKILL).map(|it| it.definition.hash)
    })
    .await
}

#[tokio::test]
async fn a_changed_skill_is_held_back_until_its_manifest_is_approved() {
    for told in [true, false] {
        let setup = Setup::new();
        let digest = setup.dir.path().join("digest");
        fs::write(&digest, "sha256:1").unwrap();
        let option = format!("skill={}", digest.display());
        let setup = extending(setup, "x", &[&option], "pin = true");
        let gateway = setup.start().await;
        let (one, all) = (gateway.mcp("/mcp/x"), gateway.mcp("/mcp"));
        // First use.
        assert_eq!(skills(&one).await, [SKILL]);
        assert_eq!(skills(&all).await, ["skill://x/git/SKILL.md"]);
        one.ask("skills/get", json!({"uri": SKILL})).send().await.result();
        one.ask("resources/read", json!({"uri": SKILL})).send().await.result();

        fs::write(&digest, "sha256:2").unwrap();
        if told {
            let changed = json!([{"method": "notifications/skills/list_changed"}]);
            one.call("tell", json!({"messages": changed})).send().await.result();
        } else {
            // The first request finds out, and gets nothing that was not approved.
            assert_eq!(code(&one, "skills/get", SKILL).await, "tool_held");
        }
        let hash = held(&gateway).await;
        for (mcp, uri) in [(&one, SKILL), (&all, "skill://x/git/SKILL.md")] {
            assert!(skills(mcp).await.is_empty());
            assert_eq!(code(mcp, "skills/get", uri).await, "tool_held");
            assert_eq!(code(mcp, "resources/read", uri).await, "tool_held");
            let directory = uri.strip_suffix("/SKILL.md").unwrap();
            assert_eq!(code(mcp, "resources/directory/read", directory).await, "tool_held");
            let inside = format!("{directory}/deep/file.py");
            assert_eq!(code(mcp, "resources/read", &inside).await, "tool_held");
            let unlisted = uri.replace("git", "other");
            assert_eq!(code(mcp, "resources/read", &unlisted).await, "tool_held");
            assert_eq!(code(mcp, "skills/get", &unlisted).await, "tool_held");
        }
        // The rest of the server goes on.
        one.call("clock", json!({})).send().await.result();
        one.ask("resources/read", json!({"uri": "file:///x"})).send().await.result();

        let (store, server) = (gateway.setup().store().await, ServerId::parse("x").unwrap());
        store.approve(&Actor::cli("test"), &server, &[hash]).await.unwrap();
        eventually("approved", async || (!skills(&one).await.is_empty()).then_some(())).await;
        one.ask("skills/get", json!({"uri": SKILL})).send().await.result();
        all.ask("resources/read", json!({"uri": "skill://x/git/SKILL.md"})).send().await.result();
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_list_leaves_out_a_skill_that_has_changed_without_a_word() {
    let setup = Setup::new();
    let digest = setup.dir.path().join("digest");
    fs::write(&digest, "sha256:1").unwrap();
    let option = format!("skill={}", digest.display());
    let gateway = extending(setup, "x", &[&option, "era=legacy"], "pin = true").start().await;
    let one = gateway.mcp("/mcp/x");
    assert_eq!(skills(&one).await, [SKILL]);
    fs::write(&digest, "sha256:2").unwrap();
    assert!(skills(&one).await.is_empty());
    held(&gateway).await;
    // And back as it was.
    fs::write(&digest, "sha256:1").unwrap();
    eventually("listed", async || (!skills(&one).await.is_empty()).then_some(())).await;
    gateway.stop().await;
}
