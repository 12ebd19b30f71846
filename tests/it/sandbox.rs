//! The sandbox, asked of real processes. A test that needs more than this machine's kernel says so
//! and is skipped.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use trunkline::backend::stdio::sandbox::Kernel;

use crate::hardening::{PROGRAM, boxed, done};
use crate::support::{Gateway, Setup, python, skipped, trunkline};

/// Returns the paths that Python needs to start, and `more`.
fn readable(more: &[&str]) -> Vec<PathBuf> {
    let home = Path::new(python()).canonicalize().unwrap();
    let home = home.parent().unwrap().parent().unwrap().to_owned();
    let system = ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", PROGRAM];
    let mut paths: Vec<_> = system.iter().chain(more).map(PathBuf::from).collect();
    paths.push(home);
    paths.retain(|path| path.exists());
    paths
}

/// A setup with one server in a sandbox that has `settings` besides what can be read.
pub fn sandboxed(read: &[&str], settings: &str) -> Setup {
    boxed(&[], &format!("sandbox = {{ read = {:?}, {settings} }}", readable(read)))
}

/// Returns whether this kernel can do what a test is about; says so if it cannot.
pub fn can(abi: u32) -> bool {
    let kernel = Kernel::current();
    let can = kernel.seccomp && kernel.landlock.is_some_and(|has| has >= abi);
    if !can {
        skipped(&format!("Landlock with abi {abi} and seccomp are needed, and here is {kernel:?}"));
    }
    can
}

async fn can_read(gateway: &Gateway, path: &str) -> bool {
    match &*done(gateway, &format!("len(open({path:?}).read()) > 0")).await {
        "True" => true,
        "PermissionError Permission denied" => false,
        other => panic!("{path}: {other}"),
    }
}

/// Returns whether a call of the C library is refused: `EPERM`. The arguments are those of no valid
/// call.
async fn is_refused(gateway: &Gateway, call: &str) -> bool {
    made(gateway, call).await == "(-1, 1)"
}

/// Returns the result of a call of the C library, and its errno.
async fn made(gateway: &Gateway, call: &str) -> String {
    let code = format!(
        "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\nr = c.{call}\
         \n(r, ctypes.get_errno())"
    );
    done(gateway, &code).await
}

#[tokio::test]
async fn only_what_is_listed_can_be_read() {
    if !can(3) {
        return;
    }
    let gateway = sandboxed(&[], "syscalls = false").start().await;
    assert!(!can_read(&gateway, "/etc/passwd").await);
    assert_eq!(
        done(&gateway, "import os\nos.listdir('/')").await,
        "PermissionError Permission denied"
    );
    gateway.stop().await;

    let gateway = sandboxed(&["/etc/passwd"], "syscalls = false").start().await;
    assert!(can_read(&gateway, "/etc/passwd").await);
    assert!(!can_read(&gateway, "/etc/group").await);
    gateway.stop().await;
}

#[tokio::test]
async fn relative_paths_and_those_of_the_process_are_the_servers_own() {
    if !can(3) {
        return;
    }
    let gateway = sandboxed(&["/proc/self"], "write = [\".\"], syscalls = false").start().await;
    assert!(can_read(&gateway, "/proc/self/status").await);
    assert!(!can_read(&gateway, "/proc/1/status").await);
    // The gateway's own directory is that of this test.
    let here = std::env::current_dir().unwrap().join("Cargo.toml");
    assert!(!can_read(&gateway, here.to_str().unwrap()).await);
    gateway.stop().await;
}

#[tokio::test]
async fn only_what_is_listed_and_the_private_directory_can_be_written() {
    if !can(3) {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let (open, shut) = (outside.path().join("open"), outside.path().join("shut"));
    for dir in [&open, &shut] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("there"), "content").unwrap();
    }
    let write = format!("write = [{open:?}]");
    let gateway = sandboxed(&[shut.to_str().unwrap()], &write).start().await;
    let within = async |dir: &Path, code: &str| {
        done(&gateway, &format!("import os\nd = {dir:?} + '/'\n{code}")).await
    };
    let refused = "PermissionError Permission denied";
    for (code, allowed) in [
        ("open(d + 'new', 'w').write('x')", "1"),
        ("open(d + 'there', 'a').write('x')", "1"),
        ("os.truncate(d + 'there', 0)", "None"),
        ("os.mkdir(d + 'dir')", "None"),
        ("os.remove(d + 'there')", "None"),
    ] {
        assert_eq!(within(&shut, code).await, refused, "{code}");
        assert_eq!(within(&open, code).await, allowed, "{code}");
    }
    assert_eq!(fs::read_to_string(shut.join("there")).unwrap(), "content");
    assert_eq!(done(&gateway, "open('here', 'w').write('x')").await, "1");
    gateway.stop().await;
}

#[tokio::test]
async fn only_listed_ports_can_be_connected_to_whichever_way() {
    if !can(4) {
        return;
    }
    let listeners = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let [open, shut] = listeners.each_ref().map(|listener| listener.local_addr().unwrap().port());
    // The ways around Landlock are shut also where system calls are otherwise left alone.
    let settings = format!("connect = [{open}], syscalls = false");
    let gateway = sandboxed(&[], &settings).start().await;
    let connect =
        |port| format!("import socket\nsocket.create_connection(('127.0.0.1', {port})) is None");
    assert_eq!(done(&gateway, &connect(open)).await, "False");
    assert_eq!(done(&gateway, &connect(shut)).await, "PermissionError Permission denied");
    for around in [
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
        // SMC, by its family, by its protocol, and made of a socket for TCP.
        "socket.socket(43, socket.SOCK_STREAM, 0)",
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 256)",
        "socket.socket().setsockopt(6, 31, b'smc')",
        "socket.socket().sendto(b'x', 0x20000000, address)",
        "socket.socket().sendmsg([b'x'], [], 0x20000000, address)",
    ] {
        let code = format!("import socket\naddress = ('127.0.0.1', {shut})\n{around}");
        assert_eq!(
            done(&gateway, &code).await,
            "PermissionError Operation not permitted",
            "{around}"
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn without_a_list_of_ports_all_can_be_connected_to() {
    if !can(3) {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let gateway = sandboxed(&[], "syscalls = true").start().await;
    let code = format!("import socket\nsocket.create_connection(('127.0.0.1', {port})) is None");
    assert_eq!(done(&gateway, &code).await, "False");
    gateway.stop().await;
}

#[tokio::test]
async fn system_calls_that_no_server_needs_are_refused() {
    if !can(3) {
        return;
    }
    let gateway = sandboxed(&["/proc"], "syscalls = true").start().await;
    let status = "[l.split()[1] for l in open('/proc/self/status') if l.startswith('Seccomp:')][0]";
    assert_eq!(done(&gateway, status).await, "2");
    for call in [
        "unshare(0x10000000)",
        "mount(0, 0, 0, 0, 0)",
        "umount2(0, 0)",
        "ptrace(0, 0, 0, 0)",
        "setns(-1, 0)",
        "chroot(0)",
        "reboot(0)",
        // By number: a namespace of its own by `clone`, and what goes past all filters.
        &format!("syscall({}, 0x10000000, 0, 0, 0, 0)", libc_number("clone")),
        "syscall(425, 0, 0)",
    ] {
        assert!(is_refused(&gateway, call).await, "{call}");
    }
    // `clone3`, whose flags no filter can see, does not seem to be there.
    assert_eq!(made(&gateway, "syscall(435, 0, 0)").await, "(-1, 38)");
    // Threads and processes are made all the same.
    let work = "import threading, subprocess\nt = threading.Thread(target=print, \
     args=('', ), kwargs={'end': ''})\nsubprocess.run(['/bin/true']).returncode";
    assert_eq!(done(&gateway, work).await, "0");
    gateway.stop().await;
}

#[tokio::test]
async fn without_the_filter_the_same_calls_fail_for_other_reasons() {
    if !can(3) {
        return;
    }
    let gateway = sandboxed(&[], "syscalls = false").start().await;
    for call in ["setns(-1, 0)", "syscall(425, 0, 0)"] {
        assert!(!is_refused(&gateway, call).await, "{call}");
    }
    assert_ne!(made(&gateway, "syscall(435, 0, 0)").await, "(-1, 38)");
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_in_a_sandbox_cannot_signal_its_guard() {
    if !can(6) {
        return;
    }
    let gateway = sandboxed(&[], "syscalls = false").start().await;
    let code = "import os\nos.kill(os.getppid(), 0)";
    assert_eq!(done(&gateway, code).await, "PermissionError Operation not permitted");
    gateway.stop().await;
}

#[tokio::test]
async fn a_sandbox_that_leaves_out_the_program_itself_says_so() {
    if !can(3) {
        return;
    }
    let setup = boxed(&[], "sandbox = { read = [\"/etc\"] }");
    let text = check(&setup).await;
    assert!(text.contains("could not be confined as configured"), "{text}");
    assert!(text.contains("does not let it read its own program"), "{text}");
    assert!(text.contains("`sandbox.read`"), "{text}");
    assert!(text.contains("  configured: ") && !text.contains("in force: "), "{text}");
}

#[tokio::test]
async fn a_path_of_a_sandbox_that_is_not_there_is_named() {
    if !can(3) {
        return;
    }
    let text = check(&sandboxed(&[], "write = [\"/no/such/path\"]")).await;
    assert!(text.contains("cannot open /no/such/path of `sandbox.write`: No such file"), "{text}");
}

#[tokio::test]
async fn check_says_which_sandbox_is_in_force() {
    let text = check(&sandboxed(&[], "connect = [443, 80], optional = true")).await;
    let (kernel, has) = (Kernel::current(), |words: &str| text.contains(words));
    let tcp = kernel.landlock.is_some_and(|abi| abi >= 4);
    let landlock = kernel.landlock.map(|abi| format!("landlock (abi {abi})"));
    assert_eq!(landlock.is_some_and(|words| has(&words)), kernel.landlock.is_some(), "{text}");
    assert_eq!(has("connect 443 80"), tcp, "{text}");
    assert_eq!(has("not in force: "), !(tcp && kernel.seccomp), "{text}");
}

async fn check(setup: &Setup) -> String {
    let config = setup.write();
    let output = trunkline(setup, &["check", "--config", config.to_str().unwrap()]).await;
    String::from_utf8(output.stdout).unwrap()
}

/// The number of a system call that is not the same everywhere.
fn libc_number(call: &str) -> u32 {
    match (call, std::env::consts::ARCH) {
        ("clone", "x86_64") => 56,
        ("clone", _) => 220,
        _ => unreachable!("no other is asked for"),
    }
}
