//! The processes inside a container, and what they use.

use anyhow::{Context, Result, ensure};

use crate::docker::docker;

/// The first process of a container.
pub const FIRST: u32 = 1;
/// Connections of callers (to port 8080) and to the server over HTTP (port 3001), which are kept
/// open for a while, in the kernel's list: `sl local remote state`, where 01 is an open one.
const KEPT_OPEN: &str =
    "^ *[0-9]+: [0-9A-F]+:1F90 [0-9A-F:]+ 01|^ *[0-9]+: [0-9A-F:]+ [0-9A-F]+:0BB9 01";

/// A process, by its numbers inside its container.
#[derive(Clone, Debug)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub state: char,
    pub name: String,
}

#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub memory_kib: u64,
    /// Without connections that are kept open for the next call.
    pub descriptors: u64,
}

impl Process {
    pub fn is_zombie(&self) -> bool {
        self.state == 'Z'
    }

    /// A line of `/proc/…/stat`: `1 (name) S 0 …`; a name may have spaces and brackets.
    fn parse(line: &str) -> Option<Self> {
        let (pid, rest) = line.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let mut rest = rest.split(' ');
        let state = rest.next()?.chars().next()?;
        let parent = rest.next()?.parse().ok()?;
        Some(Self { pid: pid.parse().ok()?, parent, state, name: name.to_owned() })
    }
}

/// All processes of a container, without those that somebody has let in to look.
pub async fn processes(container: &str) -> Result<Vec<Process>> {
    let look = "cat /proc/[0-9]*/stat 2>/dev/null; true";
    let text = docker(["exec", container, "sh", "-c", look]).await?;
    let mut all: Vec<_> = text.lines().filter_map(Process::parse).collect();
    // Such a process has no parent in there; its children go with it.
    let mut visitors: Vec<u32> = vec![0];
    while let Some(visitor) = visitors.pop() {
        let is_of_it = |it: &Process| it.pid != FIRST && it.parent == visitor;
        visitors.extend(all.iter().filter(|it| is_of_it(it)).map(|it| it.pid));
        all.retain(|it| !is_of_it(it));
    }
    Ok(all)
}

/// The gateway among the processes of its container: the first one, or what that has started.
pub fn gateway(processes: &[Process]) -> Option<&Process> {
    let is_gateway = |it: &&Process| it.name == "trunkline" && it.parent <= FIRST;
    processes.iter().find(is_gateway)
}

pub async fn usage(container: &str, pid: u32) -> Result<Usage> {
    let look = format!(
        "grep VmRSS /proc/{pid}/status; ls /proc/{pid}/fd | wc -l; cat \
         /proc/net/tcp* | grep -cE '{KEPT_OPEN}'"
    );
    // The gateway keeps its own user from looking into it.
    let text = docker(["exec", "-u", "0", container, "sh", "-c", &look]).await?;
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    let mut next = || numbers.next().with_context(|| format!("not understood: {text}"));
    let (memory_kib, all, kept_open) = (next()?, next()?, next()?);
    ensure!(all > 0, "the descriptors cannot be seen");
    Ok(Usage { memory_kib, descriptors: all.saturating_sub(kept_open) })
}
