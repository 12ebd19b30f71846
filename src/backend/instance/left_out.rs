//! Tools that a server lists and that are left out: nobody sees or can call them.

use std::borrow::Cow;
use std::fmt;

use crate::backend::connection::Connection;
use crate::protocol::mcp::Era;
use crate::protocol::mcp::requests::Dialect;

/// The most that are named, and the longest part of a name.
const NAMED_MAX: usize = 20;
const NAME_CHARS_MAX: usize = 64;

/// The peculiarities of a server that decide which of its tools can be used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsableTools {
    /// Tools that break the rules for headers cannot.
    pub(super) checks_headers: bool,
    /// Tools that can be called only as tasks can.
    pub(super) has_tasks: bool,
}

impl UsableTools {
    pub(super) fn of(connection: &Connection, dialect: &Dialect) -> Self {
        let is_modern = dialect.version().era() == Era::Modern;
        let checks_headers = connection.has_headers() && is_modern;
        Self { checks_headers, has_tasks: dialect.has_tasks() }
    }
}

/// A tool that is left out, and why.
#[derive(Debug)]
struct LeftOutTool {
    name: String,
    why: Cow<'static, str>,
}

#[derive(Debug, Default)]
pub struct LeftOutTools {
    count: usize,
    named: Vec<LeftOutTool>,
}

impl LeftOutTools {
    pub(super) fn add(&mut self, name: &str, why: impl Into<Cow<'static, str>>) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            // Control characters could forge lines of the log.
            let shown = name.chars().take(NAME_CHARS_MAX).flat_map(char::escape_debug);
            self.named.push(LeftOutTool { name: shown.collect(), why: why.into() });
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn len(&self) -> usize {
        self.count
    }
}

/// Names the tools, with the reasons.
impl fmt::Display for LeftOutTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, LeftOutTool { name, why }) in self.named.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}`{name}` ({why})")?;
        }
        match self.count - self.named.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
