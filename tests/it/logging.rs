//! The log that cannot be written: the gateway goes on serving, and ends as told.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, PipeReader, PipeWriter, Write as _, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Serving, Setup, eventually, in_time, kill, trunkline, trunkline_with_stderr};

/// Fills a pipe, so that the next write waits.
fn fill(pipe: &PipeWriter) {
    // A descriptor of its own: whoever shares this one must not become non-blocking.
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut own = OpenOptions::new().write(true).custom_flags(nonblocking).open(path).unwrap();
    for chunk in [&[b'\n'; 4096][..], b"\n"] {
        while own.write(chunk).is_ok() {}
    }
    assert_eq!(own.write(b"\n").unwrap_err().kind(), ErrorKind::WouldBlock);
}

fn setup() -> Setup {
    Setup::new().on_own_address().fake("fake").std()
}

async fn dropped_lines(gateway: &Serving) -> f64 {
    let metrics = gateway.get("/metrics").await.text();
    let lines = metrics.lines();
    let mut value =
        lines.filter_map(|line| line.strip_prefix("trunkline_dropped_log_lines_total "));
    value.next_back().expect("it is a metric").parse().unwrap()
}

/// Whatever happens to the log, calls are answered, servers come back, a new configuration is
/// taken, and SIGTERM drains.
async fn serves_and_drains(mut gateway: Serving, setup: Setup) {
    gateway.ready().await;
    for n in 0..20 {
        let text = n.to_string();
        let answer = gateway.call("std", "echo", json!({"text": text})).await;
        assert_eq!(answer.tool_text(), text);
    }
    assert_eq!(gateway.get("/healthz").await.status, 200);

    kill(gateway.fake("fake").pids()[0], Signal::KILL);
    eventually("a server that was killed is back", async || {
        (gateway.call("fake", "pid", "").await.status == 200).then_some(())
    })
    .await;

    setup.fake("added").write();
    gateway.signal(Signal::HUP);
    eventually("the new configuration is in force", async || {
        (gateway.call("added", "pid", "").await.status == 200).then_some(())
    })
    .await;

    let mut connection = gateway.connect().await;
    connection.send_call("/v1/servers/fake/tools/later", "{\"ms\":1000}").await;
    let fake = gateway.fake("fake");
    eventually("under way", async || fake.calls_of("later").pop()).await;
    gateway.signal(Signal::TERM);
    let response = connection.response().await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert_eq!(gateway.ended().await, Some(0));
    assert!(gateway.processes().is_empty());
}

#[tokio::test]
async fn a_log_that_nobody_reads_stops_nothing() {
    let (reader, writer) = pipe().unwrap();
    fill(&writer);
    let setup = setup();
    let gateway = Serving::start_logging_to(setup.clone(), writer.into()).await;
    serves_and_drains(gateway, setup).await;
    drop(reader);
}

#[tokio::test]
async fn a_log_whose_reader_is_gone_stops_nothing() {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let setup = setup();
    let gateway = Serving::start_logging_to(setup.clone(), writer.into()).await;
    gateway.ready().await;
    assert!(dropped_lines(&gateway).await > 0.0);
    serves_and_drains(gateway, setup).await;
}

#[tokio::test]
async fn a_log_on_a_full_disk_stops_nothing() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let setup = setup();
    let gateway = Serving::start_logging_to(setup.clone(), full.into()).await;
    gateway.ready().await;
    assert!(dropped_lines(&gateway).await > 0.0);
    serves_and_drains(gateway, setup).await;
}

/// Reads lines until one has `text`.
async fn read_until(reader: PipeReader, text: &'static str) -> String {
    let find = move || {
        let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
        lines.find(|line| line.contains(text)).expect("the log has it")
    };
    in_time(text, tokio::task::spawn_blocking(find)).await.unwrap()
}

#[tokio::test]
async fn once_the_log_is_read_again_it_says_how_many_lines_are_missing() {
    let (reader, writer) = pipe().unwrap();
    fill(&writer);
    let flood = ["-c", "exec yes 'a line of standard error, which the log repeats' >&2"];
    let setup = Setup::new().on_own_address().server("flood", "sh", &flood.map(Into::into), "");
    let env = [("RUST_LOG", "debug")];
    let mut gateway = Serving::start_logging_with(setup, writer.into(), &env).await;
    eventually("lines are dropped", async || (dropped_lines(&gateway).await > 0.0).then_some(()))
        .await;
    let line = read_until(reader, "log lines were dropped").await;
    let event: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["level"], "WARN");
    assert!(event["dropped"].as_u64().unwrap() > 0, "{line}");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended().await, Some(0));
}

#[tokio::test]
async fn a_gateway_that_cannot_start_ends_whatever_happens_to_its_log() {
    let setup = Setup::new().set("drain_delay = \"soon\"");
    let config = setup.write();
    let args = ["serve", "--config", config.to_str().unwrap()];
    let (_reader, writer) = pipe().unwrap();
    fill(&writer);
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for stderr in [Stdio::from(writer), full().into()] {
        let status = trunkline_with_stderr(&setup, &args, stderr).await;
        assert_eq!(status.code(), Some(2));
    }
}

#[tokio::test]
async fn a_command_whose_words_nobody_reads_succeeds_all_the_same() {
    let setup = Setup::new();
    let config = setup.write();
    let (reader, closed) = pipe().unwrap();
    drop(reader);
    let full = File::options().write(true).open("/dev/full").unwrap();
    for (tenant, stderr) in [("one", Stdio::from(closed)), ("two", full.into())] {
        let args = ["tenant", "add", tenant, "--create", "--config", config.to_str().unwrap()];
        let status = trunkline_with_stderr(&setup, &args, stderr).await;
        assert_eq!(status.code(), Some(0), "{tenant}");
    }
    let listed = trunkline(&setup, &["tenant", "list", "--config", config.to_str().unwrap()]).await;
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("one") && listed.contains("two"), "{listed}");
}
