//! The rights of a server's process, asked of real processes; `sandbox.rs` has the sandbox.

use std::fs::{self, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, getuid};
use serde_json::json;
use tokio::process::Command;
use trunkline::backend::stdio::sandbox::{Kernel, plan};
use trunkline::config::Program;

use crate::support::{
    Answer, Gateway, Serving, Setup, TRUNKLINE, environment_of, eventually, in_time, is_alive,
    kill, python, skipped, trunkline, within,
};

/// The server of these tests.
pub const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/confined_server.py");

/// A setup with one server, `box`, that does what it is told; see `confined_server.py`.
pub fn boxed(args: &[&str], settings: &str) -> Setup {
    let mut all: Vec<String> = ["-I", "-S", "-X", "utf8", PROGRAM].map(str::to_owned).to_vec();
    all.extend(args.iter().map(|arg| (*arg).to_owned()));
    Setup::new().server("box", python(), &all, settings)
}

/// Has the server do something; gives what came of it.
pub async fn done(gateway: &Gateway, code: &str) -> String {
    gateway.call("box", "do", json!({"code": code})).await.tool_text()
}

async fn done_by(serving: &Serving, code: &str) -> String {
    serving.call("box", "do", json!({"code": code})).await.tool_text()
}

const DIRECTORY: &str = "__import__('os').getcwd()";
const PID: &str = "__import__('os').getpid()";
const GUARD: &str = "__import__('os').getppid()";

/// A setup whose server is run by `nobody`, who cannot look into the places of whoever runs the
/// tests. `None`, with a word, if these are not run by root.
pub fn run_by_nobody(args: &[&str]) -> Option<Setup> {
    if !getuid().is_root() {
        skipped("not run by root, so users cannot be changed");
        return None;
    }
    let setup = Setup::new();
    fs::set_permissions(setup.dir.path(), Permissions::from_mode(0o755)).unwrap();
    let program = setup.dir.path().join("server.py");
    fs::copy(PROGRAM, &program).unwrap();
    let system = "/usr/bin/python3";
    let python = if Path::new(system).exists() { system } else { python() };
    let mut all: Vec<String> = ["-I", "-S", "-X", "utf8"].map(str::to_owned).to_vec();
    all.push(program.to_str().unwrap().to_owned());
    all.extend(args.iter().map(|arg| (*arg).to_owned()));
    Some(setup.server("box", python, &all, "user = \"nobody\""))
}

/// A line of `/proc/self/status` or `/proc/self/limits`, its words one space apart.
async fn told(gateway: &Gateway, file: &str, begin: &str) -> String {
    let text = done(gateway, &format!("open('/proc/self/{file}').read()")).await;
    let line = text.lines().find(|line| line.starts_with(begin)).unwrap();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Why a server is not there, as callers are told.
fn reason(answer: &Answer) -> String {
    answer.json()["reason"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn every_server_is_without_new_privileges_and_core_dumps() {
    let gateway = boxed(&[], "").start().await;
    assert_eq!(told(&gateway, "status", "NoNewPrivs:").await, "NoNewPrivs: 1");
    assert_eq!(told(&gateway, "status", "Seccomp:").await, "Seccomp: 0");
    let core = told(&gateway, "limits", "Max core file size").await;
    assert_eq!(core, "Max core file size 0 0 bytes");
    gateway.stop().await;
}

#[tokio::test]
async fn capabilities_that_the_gateway_passes_on_do_not_reach_a_server() {
    if !getuid().is_root() {
        return skipped("not run by root, so the gateway cannot be given any");
    }
    let capabilities = ["--inh-caps=+setuid", "--ambient-caps=+setuid"];
    let gateway = Serving::start_by("setpriv", &capabilities, boxed(&[], "")).await;
    let ambient = async |pid: &str| {
        let status = done_by(&gateway, &format!("open('/proc/{pid}/status').read()")).await;
        let line = status.lines().find(|line| line.starts_with("CapAmb:")).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(ambient("self").await, "0000000000000000");
    // The guard does have it, so this looks at the right thing.
    assert_eq!(ambient(&done_by(&gateway, GUARD).await).await, "0000000000000080");
    end(gateway).await;
}

#[tokio::test]
async fn descriptors_that_the_gateway_inherited_do_not_reach_a_server() {
    let file = tempfile::tempfile().unwrap();
    let mut open = vec![];
    for _ in 0..5 {
        let copy = file.try_clone().unwrap();
        fcntl_setfd(copy.as_fd(), FdFlags::empty()).unwrap();
        open.push(copy);
    }
    let gateway = boxed(&[], "").serve().await;
    // The list itself is read through a descriptor of its own.
    let listed = "import os\nsorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1]";
    assert_eq!(done_by(&gateway, listed).await, "[0, 1, 2]");
    // The gateway does have them, so this looks at the right thing.
    assert!(gateway.descriptors_below(1000).is_none_or(|open| open >= 8));
    drop(open);
    end(gateway).await;
}

#[tokio::test]
async fn limits_are_set_and_hold() {
    let limits =
        "limits = { files = 64, file_size = \"64KiB\", memory = \"1GiB\", processes = 4000 }";
    let gateway = boxed(&[], limits).start().await;
    for (begin, expected) in [
        ("Max open files", "64 64 files"),
        ("Max file size", "65536 65536 bytes"),
        ("Max address space", "1073741824 1073741824 bytes"),
        ("Max processes", "4000 4000 processes"),
    ] {
        assert_eq!(told(&gateway, "limits", begin).await, format!("{begin} {expected}"));
    }
    let write = |bytes: usize| {
        format!(
            "import os\nf = os.open('f', os.O_CREAT | os.O_WRONLY)\nos.pwrite(f, b'x' * {bytes}, 0)"
        )
    };
    assert_eq!(done(&gateway, &write(65536)).await, "65536");
    let beyond = "os.pwrite(os.open('f', os.O_WRONLY), b'x', 65536)";
    assert_eq!(done(&gateway, &format!("import os\n{beyond}")).await, "OSError File too large");
    let many = "import os\n[os.dup(0) for _ in range(64)]";
    assert_eq!(done(&gateway, many).await, "OSError Too many open files");
    gateway.stop().await;
}

#[tokio::test]
async fn a_limit_far_below_what_the_gateway_itself_needs_can_be_set() {
    let gateway = boxed(&[], "limits = { files = 8, memory = \"48MiB\" }").start().await;
    assert_eq!(done(&gateway, "1 + 1").await, "2");
    gateway.stop().await;
}

#[tokio::test]
async fn a_limit_above_what_is_permitted_is_named_to_the_operator() {
    let setup = boxed(&[], "limits = { files = 4000000000 }");
    let config = setup.write();
    let check = trunkline(&setup, &["check", "--config", config.to_str().unwrap()]).await;
    let text = String::from_utf8(check.stdout).unwrap();
    assert!(text.contains("could not be confined as configured"), "{text}");
    assert!(text.contains("cannot set `limits.files = 4000000000`: "), "{text}");
    let gateway = setup.start().await;
    let server = gateway.get("/v1/servers/box").await;
    assert_eq!(reason(&server), "it could not be confined as configured");
    gateway.stop().await;
}

#[tokio::test]
async fn each_run_has_a_private_directory_that_goes_with_it() {
    let gateway = boxed(&[], "").start().await;
    let first = PathBuf::from(done(&gateway, DIRECTORY).await);
    let meta = fs::metadata(&first).unwrap();
    assert_eq!((meta.permissions().mode() & 0o777, meta.uid()), (0o700, getuid().as_raw()));
    assert_eq!(first.parent(), Some(&*std::env::temp_dir()));
    fs::create_dir(first.join("left")).unwrap();
    fs::write(first.join("left/behind"), "").unwrap();
    let pid = done(&gateway, PID).await.parse().unwrap();
    kill(pid, Signal::KILL);
    eventually("gone", async || (!first.exists()).then_some(())).await;
    let second = eventually("started again", async || {
        let answer = gateway.call("box", "do", json!({"code": DIRECTORY})).await;
        (answer.status == 200).then(|| PathBuf::from(answer.tool_text()))
    })
    .await;
    assert_ne!(first, second);
    assert!(second.exists());
    gateway.stop().await;
    assert!(!second.exists());
}

#[tokio::test]
async fn a_configured_directory_is_used_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = boxed(&[], &format!("cwd = {:?}", dir.path())).start().await;
    assert_eq!(Path::new(&done(&gateway, DIRECTORY).await), dir.path().canonicalize().unwrap());
    gateway.stop().await;
    assert!(dir.path().exists());
}

#[tokio::test]
async fn a_gateway_that_is_killed_leaves_no_directory() {
    let mut gateway = boxed(&["stubborn"], "").serve().await;
    let directory = PathBuf::from(done_by(&gateway, DIRECTORY).await);
    assert!(directory.exists());
    gateway.signal(Signal::KILL);
    gateway.ended().await;
    eventually("gone", async || (!directory.exists()).then_some(())).await;
}

#[tokio::test]
async fn a_guard_that_is_killed_leaves_no_directory() {
    let gateway = boxed(&["stubborn"], "").start().await;
    let directory = PathBuf::from(done(&gateway, DIRECTORY).await);
    kill(done(&gateway, GUARD).await.parse().unwrap(), Signal::KILL);
    eventually("gone", async || (!directory.exists()).then_some(())).await;
    gateway.stop().await;
}

#[tokio::test]
async fn gateway_and_guard_killed_together_take_the_server_with_them() {
    let mut gateway = boxed(&["stubborn"], "").serve().await;
    let directory = done_by(&gateway, DIRECTORY).await;
    let server = done_by(&gateway, PID).await.parse().unwrap();
    let guard = done_by(&gateway, GUARD).await.parse().unwrap();
    // Stopped first, so that neither sees the end of the other.
    kill(guard, Signal::STOP);
    gateway.signal(Signal::STOP);
    kill(guard, Signal::KILL);
    gateway.signal(Signal::KILL);
    within(Duration::from_secs(1), "gone", async || (!is_alive(server)).then_some(())).await;
    gateway.ended().await;
    // Nobody was left who could have removed it.
    fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn a_server_is_run_by_the_user_it_is_configured_with() {
    let Some(setup) = run_by_nobody(&[]) else { return };
    let gateway = setup.start().await;
    let who = done(&gateway, "import os\n(os.getresuid(), os.getresgid(), os.getgroups())").await;
    let nobody = fs::read_to_string("/etc/passwd").unwrap();
    let nobody = nobody.lines().find(|line| line.starts_with("nobody:")).unwrap().to_owned();
    let fields: Vec<&str> = nobody.split(':').collect();
    let (uid, gid) = (fields[2], fields[3]);
    assert_eq!(who, format!("(({uid}, {uid}, {uid}), ({gid}, {gid}, {gid}), [{gid}])"));
    assert_eq!(told(&gateway, "status", "CapEff:").await, "CapEff: 0000000000000000");
    let directory = PathBuf::from(done(&gateway, DIRECTORY).await);
    let meta = fs::metadata(&directory).unwrap();
    assert_eq!((meta.uid().to_string(), meta.mode() & 0o777), (uid.to_owned(), 0o700));
    let pid = done(&gateway, PID).await.parse().unwrap();
    let environment = environment_of(pid);
    assert!(environment.contains(&format!("HOME={}", fields[5])), "{environment:?}");
    assert!(environment.contains(&"USER=nobody".to_owned()), "{environment:?}");
    gateway.stop().await;
    assert!(!directory.exists());
}

#[tokio::test]
async fn a_server_of_another_user_goes_with_its_guard_too() {
    let Some(setup) = run_by_nobody(&["stubborn"]) else { return };
    let mut gateway = setup.serve().await;
    let directory = done_by(&gateway, DIRECTORY).await;
    let server = done_by(&gateway, PID).await.parse().unwrap();
    let guard = done_by(&gateway, GUARD).await.parse().unwrap();
    gateway.signal(Signal::STOP);
    kill(guard, Signal::KILL);
    within(Duration::from_secs(1), "gone", async || (!is_alive(server)).then_some(())).await;
    gateway.signal(Signal::KILL);
    gateway.ended().await;
    fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn a_user_that_does_not_exist_is_told_to_the_operator_and_not_to_callers() {
    let gateway = boxed(&[], "user = \"no-such-user\"").serve().await;
    let server = gateway.get("/v1/servers/box").await;
    assert_eq!(reason(&server), "it cannot be confined on this machine as configured");
    gateway.logged("there is no user `no-such-user`").await;
    end(gateway).await;
}

#[tokio::test]
async fn changing_users_without_the_right_to_is_refused_in_clear_words() {
    if !getuid().is_root() {
        return skipped("not run by root, so there is nobody to be without rights");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    // Where whoever has no rights can get at it.
    let program = dir.path().join("trunkline");
    fs::hard_link(TRUNKLINE, &program)
        .or_else(|_| fs::copy(TRUNKLINE, &program).map(drop))
        .unwrap();
    let server = Program { user: Some("daemon".to_owned()), ..Program::default() };
    let profile = plan(&server, &Kernel::current()).unwrap().profile;
    let profile = serde_json::to_string(&profile).unwrap();
    let mut guard = Command::new(program);
    guard.args(["guard", &std::process::id().to_string(), &profile, "--", "true"]);
    let output = in_time("ended", guard.uid(65534).gid(65534).output()).await.unwrap();
    assert_eq!(output.status.code(), Some(213));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("cannot become the user `daemon`: Operation not permitted"), "{text}");
    assert!(text.contains("must run as root"), "{text}");
}

#[tokio::test]
async fn check_says_what_is_in_force() {
    let setup = boxed(&[], "limits = { files = 64 }");
    let config = setup.write();
    let check = trunkline(&setup, &["check", "--config", config.to_str().unwrap()]).await;
    let text = String::from_utf8(check.stdout).unwrap();
    let expected = "in force: no_new_privs, no core dumps, private directory, files 64\n";
    assert!(text.contains(expected), "{text}");
}

async fn end(mut gateway: Serving) {
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended().await, Some(0));
}
