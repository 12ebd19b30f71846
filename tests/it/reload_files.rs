//! The program notices that its configuration has changed, however its files are put there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Serving, Setup, environment_of, eventually};

/// Returns the log lines about the configuration after the first `since` lines.
fn said(gateway: &Serving, what: &str) -> Vec<String> {
    let messages = gateway.log().into_iter().filter_map(|line| {
        let event: Value = serde_json::from_str(&line).ok()?;
        Some(event["message"].as_str()?.to_owned())
    });
    messages.filter(|message| message.contains(what)).collect()
}

async fn has_servers(gateway: &Serving, expected: &[&str]) {
    eventually("in force", async || {
        let servers = gateway.get("/v1/servers").await.json();
        let ids = servers["servers"].as_array().unwrap().iter();
        let ids: Vec<_> = ids.map(|server| server["id"].as_str().unwrap()).collect();
        (ids == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_file_that_is_written_renamed_or_linked_anew_is_noticed() {
    let none = Setup::new();
    let dir = none.dir.path();
    // As Kubernetes does it: the file is a link through a link that is swapped.
    let link = |target: &str, name: &str| symlink(target, dir.join(name)).unwrap();
    fs::create_dir(dir.join("..one")).unwrap();
    link("..one", "..data");
    link("..data/trunkline.toml", "trunkline.toml");
    let gateway = none.clone().std().serve().await;
    assert!(dir.join("..one/trunkline.toml").is_file());

    fs::create_dir(dir.join("..two")).unwrap();
    fs::write(dir.join("..two/trunkline.toml"), none.clone().std().fake("linked").text()).unwrap();
    link("..two", "..data_tmp");
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    has_servers(&gateway, &["linked", "std"]).await;

    fs::write(dir.join("new"), none.clone().std().fake("renamed").text()).unwrap();
    fs::rename(dir.join("new"), dir.join("trunkline.toml")).unwrap();
    has_servers(&gateway, &["renamed", "std"]).await;

    none.clone().std().fake("written").write();
    has_servers(&gateway, &["std", "written"]).await;
    // The servers are there before the line is.
    let lines = eventually("three lines", async || {
        Some(said(&gateway, "configuration read again")).filter(|lines| lines.len() == 3)
    });
    let lines = lines.await;
    let expected = "servers: 1 added (written), 1 removed (renamed), 1 unchanged; \
                    toolsets: 0 unchanged; tenants: 0 unchanged";
    assert!(lines[2].contains(expected), "{lines:?}");
}

#[tokio::test]
async fn a_mistake_is_said_once_with_its_place_and_the_old_configuration_stays() {
    let std = Setup::new().std();
    let gateway = std.clone().serve().await;
    std.clone().set("drain_delay = \"soon\"").write();
    gateway.logged("stays as it was").await;
    let lines = said(&gateway, "stays as it was");
    assert!(lines[0].contains("trunkline.toml:2") && lines[0].contains("drain_delay"), "{lines:?}");
    let path = gateway.setup().dir.path().join("trunkline.toml");
    fs::remove_file(&path).unwrap();
    gateway.logged("cannot read").await;
    assert_eq!(gateway.call("std", "uuid", "{}").await.status, 200);
    let changed = std.fake("more").set("max_body = \"2MiB\"\ndrain_delay = \"1s\"");
    changed.write();
    has_servers(&gateway, &["more", "std"]).await;
    gateway.logged("needs a restart: max_body").await;
    gateway.logged("other settings changed: drain_delay").await;
    assert_eq!(said(&gateway, "stays as it was").len(), 2);
    let metrics = gateway.get("/metrics").await.text();
    for series in ["outcome=\"failed\"} 2", "outcome=\"ok\"} 1"] {
        let series = format!("trunkline_config_reloads_total{{{series}");
        assert!(metrics.contains(&series), "{metrics}");
    }
}

#[tokio::test]
async fn on_a_hangup_all_is_read_again_at_once_files_that_it_refers_to_as_well() {
    let none = Setup::new();
    let secret = none.dir.path().join("secret");
    fs::write(&secret, "hush-1").unwrap();
    let setting = format!("env.TOKEN = \"${{file:{}}}\"", secret.display());
    let gateway = none.fake_with("fake", &[], &setting).serve().await;
    let fake = gateway.fake("fake");
    let token = |pid: i32| environment_of(pid).into_iter().find(|it| it.starts_with("TOKEN="));
    assert_eq!(token(fake.pids()[0]).as_deref(), Some("TOKEN=hush-1"));
    fs::write(&secret, "hush-2").unwrap();
    gateway.signal(Signal::HUP);
    eventually("replaced", async || {
        let pid = gateway.call("fake", "pid", "").await.tool_text();
        (pid == fake.pids().get(1)?.to_string()).then_some(())
    })
    .await;
    assert_eq!(token(fake.pids()[1]).as_deref(), Some("TOKEN=hush-2"));
    assert_eq!(said(&gateway, "servers: 1 changed (fake), 0 unchanged").len(), 1);
    assert!(!gateway.log().iter().any(|line| line.contains("hush")));
}

#[tokio::test]
async fn without_a_file_one_that_appears_is_not_used_until_a_restart() {
    let setup = Setup::new();
    let elsewhere = Path::new(&setup.dir.path().join("mcp.json")).to_owned();
    fs::write(&elsewhere, "{\"mcpServers\": {}}").unwrap();
    let args = ["--mcp-config", elsewhere.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let gateway = Serving::start_with(setup.clone(), &args).await;
    has_servers(&gateway, &["std"]).await;
    let more = "{\"mcpServers\": {\"more\": {\"command\": \"trunkline\", \"args\": [\"std\"]}}}";
    fs::write(&elsewhere, more).unwrap();
    has_servers(&gateway, &["more", "std"]).await;
    setup.fake("other").write();
    gateway.logged("that needs a restart").await;
    has_servers(&gateway, &["more", "std"]).await;
}
