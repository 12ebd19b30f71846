//! One page's commands in one shell, as a reader has them in one terminal.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use std::{env, fs};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;
use tokio::time::timeout;

use crate::markdown::{Block, Mark};
use crate::matches;

/// Runs `serve` in the background and stops it when the shell ends or another one is started.
const PRELUDE: &str = r#"
set -euo pipefail
gateway=
stop() {
  [ -n "$gateway" ] || return 0
  kill "$gateway" 2>/dev/null || true
  wait "$gateway" || true
  gateway=
}
trap stop EXIT
# A refusal is a failure, unless the page shows what is printed.
curl() { command curl $fail "$@"; }
trunkline() {
  [ "$1" = serve ] || { command trunkline "$@"; return; }
  stop
  command trunkline "$@" >"$DOCS/gateway.log" 2>&1 &
  gateway=$!
  until command trunkline healthcheck 2>/dev/null; do
    kill -0 "$gateway" 2>/dev/null || { cat "$DOCS/gateway.log" >&2; return 1; }
    sleep 0.05
  done
}
"#;

/// Far longer than any page takes.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs the `sh` blocks of a page and compares what they print. Returns each failure.
pub async fn run(blocks: &[Block]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let [work, docs, bin] = ["work", "docs", "bin"].map(|name| dir.path().join(name));
    for folder in [&work, &docs, &bin] {
        fs::create_dir(folder).unwrap();
    }
    let program = env!("CARGO_BIN_EXE_trunkline");
    std::os::unix::fs::symlink(program, bin.join("trunkline")).unwrap();
    let address = free_address();
    fs::write(docs.join("script"), script(blocks, &address)).unwrap();
    let mut command = Command::new("bash");
    let ours = |name: &str| name.starts_with("TRUNKLINE_") || name == "RUST_LOG";
    for name in env::vars().map(|(name, _)| name).filter(|name| ours(name)) {
        command.env_remove(name);
    }
    let mut shell = command
        .arg(docs.join("script"))
        .current_dir(&work)
        .env("PATH", format!("{}:{}", bin.display(), env::var("PATH").unwrap()))
        .env("HOME", &work)
        .env("XDG_STATE_HOME", dir.path().join("state"))
        .env("DOCS", &docs)
        .env("TRUNKLINE_LISTEN", &address)
        .env("TRUNKLINE_URL", format!("http://{address}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(docs.join("err")).unwrap())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let group = shell.id().and_then(|id| Pid::from_raw(id.cast_signed())).unwrap();
    let ended = timeout(LIMIT, shell.wait()).await;
    // The gateway is of this group, too. Nothing is left of it, unless the shell was too slow.
    let _ = kill_process_group(group, Signal::KILL);
    if ended.is_ok_and(|status| status.unwrap().success()) {
        return compare(blocks, &docs);
    }
    let at = read(&docs.join("at"));
    let (out, err) = (read(&docs.join(format!("out.{at}"))), read(&docs.join("err")));
    vec![format!("{at}: a command failed, or took too long\n{out}{err}")]
}

/// Writes all blocks that do something as one script; `at` names the line that it has come to.
fn script(blocks: &[Block], address: &str) -> String {
    let mut script = PRELUDE.to_owned();
    for (index, Block { line, language, mark, text }) in blocks.iter().enumerate() {
        match (mark, language.as_str()) {
            (Mark::File(name), _) => {
                script += &format!("cat >{name} <<'END_OF_FILE'\n{text}END_OF_FILE\n")
            }
            (Mark::None, "sh") => {
                let is_shown = blocks.get(index + 1).is_some_and(|next| next.mark == Mark::Output);
                let fail = if is_shown { "" } else { "\"-f -S\"" };
                script += &format!("fail={fail}; printf {line} >\"$DOCS/at\"\n");
                script += &format!("{{\n{text}\n}} >\"$DOCS/out.{line}\"\n");
            }
            _ => {}
        }
    }
    script.replace("cargo run --release -- ", "trunkline ").replace("127.0.0.1:8080", address)
}

/// Compares every `output` block with what the `sh` block before it printed.
fn compare(blocks: &[Block], docs: &Path) -> Vec<String> {
    let mut failures = vec![];
    let mut command = None;
    for block in blocks {
        match (&block.mark, block.language.as_str()) {
            (Mark::None, "sh") => command = Some(block.line),
            (Mark::Output, _) => {
                let printed = command.map(|line| read(&docs.join(format!("out.{line}"))));
                let printed = printed.unwrap_or_default();
                if !matches(&block.text, &printed) {
                    let (line, text) = (block.line, &block.text);
                    failures.push(format!("{line}: expected\n{text}and it printed\n{printed}"));
                }
            }
            _ => {}
        }
    }
    failures
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}
