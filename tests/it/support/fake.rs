//! The notes of the server that misbehaves on demand; see `fake_server.py`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Its program.
pub const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fake_server.py");

/// The trace that one server leaves, over all its runs.
pub struct Fake {
    log: PathBuf,
    extra: PathBuf,
}

impl Fake {
    pub fn new(dir: &Path, id: &str) -> Self {
        Self { log: dir.join(format!("{id}.log")), extra: dir.join(format!("{id}.tools")) }
    }

    /// The arguments that make it leave that trace.
    pub fn args(&self) -> [String; 2] {
        [format!("log={}", self.log.display()), format!("extra={}", self.extra.display())]
    }

    /// From now on it lists these tools too: names, or whole definitions, one per line. It does not
    /// say so by itself.
    pub fn set_extra_tools(&self, names: &str) {
        fs::write(&self.extra, names).unwrap();
    }

    /// The processes it has run as.
    pub fn pids(&self) -> Vec<i32> {
        self.noted("start ").iter().map(|pid| pid.parse().unwrap()).collect()
    }

    /// Every message that has reached it.
    pub fn received(&self) -> Vec<Value> {
        self.lines_received().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the notes as text.
    pub fn lines_received(&self) -> Vec<String> {
        self.noted("> ")
    }

    /// The messages of one method.
    pub fn received_of(&self, method: &str) -> Vec<Value> {
        self.received().into_iter().filter(|message| message["method"] == method).collect()
    }

    /// The calls of one tool.
    pub fn calls_of(&self, tool: &str) -> Vec<Value> {
        let mut calls = self.received_of("tools/call");
        calls.retain(|call| call["params"]["name"] == tool);
        calls
    }

    /// Its whole trace: `> ` before what it received, `< ` before what it sent.
    pub fn trace(&self) -> Vec<String> {
        self.noted("")
    }

    fn noted(&self, kind: &str) -> Vec<String> {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        // The last line may be half written.
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        whole.lines().filter_map(|line| line.strip_prefix(kind)).map(str::to_owned).collect()
    }
}
