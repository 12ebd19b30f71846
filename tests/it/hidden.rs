//! The gateway and its guards have keys and secrets in their memory and environment: other
//! processes of the same user cannot read them there.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::getuid;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use trunkline::backend::stdio::sandbox::{Kernel, plan};
use trunkline::config::Program;

use crate::support::{TRUNKLINE, in_time};

const NOBODY: u32 = 65534;

/// A directory that a user without rights can use, and the program in it.
fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("trunkline");
    fs::hard_link(TRUNKLINE, &program)
        .or_else(|_| fs::copy(TRUNKLINE, &program).map(drop))
        .unwrap();
    if getuid().is_root() {
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    (dir, program)
}

/// Root can read everything, and must not be who tries.
fn without_rights(mut command: Command) -> Command {
    if getuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.kill_on_drop(true);
    command
}

#[tokio::test]
async fn a_server_cannot_read_the_environment_of_its_guard() {
    let (_dir, program) = place();
    let profile = plan(&Program::default(), &Kernel::current()).unwrap().profile;
    let profile = serde_json::to_string(&profile).unwrap();
    let mut guard = without_rights(Command::new(program));
    let look = "cat /proc/$$/environ >/dev/null && echo own; cat /proc/$PPID/environ";
    guard.args(["guard", &std::process::id().to_string(), &profile, "--", "sh", "-c", look]);
    let output = in_time("ended", guard.env("TOKEN", "hunter2").output()).await.unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    assert_eq!(stdout.unwrap(), "own\n");
    assert!(stderr.unwrap().contains("Permission denied"));
}

#[tokio::test]
async fn nobody_else_can_read_the_environment_of_the_gateway() {
    let (dir, program) = place();
    let config = "listen = \"127.0.0.1:0\"\n[auth]\nanonymous_tenant = \"local\"\n";
    fs::write(dir.path().join("trunkline.toml"), config).unwrap();
    let mut gateway = without_rights(Command::new(program));
    gateway.arg("serve").current_dir(dir.path()).stderr(Stdio::piped());
    let mut gateway = gateway.spawn().unwrap();
    let mut log = BufReader::new(gateway.stderr.take().unwrap()).lines();
    let listening = async {
        while !log.next_line().await.unwrap().expect("it has ended").contains("listening on") {}
    };
    in_time("listening", listening).await;
    let mut look = without_rights(Command::new("cat"));
    let environ = format!("/proc/{}/environ", gateway.id().unwrap());
    let output = in_time("ended", look.arg(environ).output()).await.unwrap();
    assert!(output.stdout.is_empty() && !output.status.success());
    gateway.kill().await.unwrap();
}
