//! Calls whose right answers are known before they are made, and what became of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

/// How long a caller waits that has no deadline of its own: longer than a server's own time.
const PATIENCE: Duration = Duration::from_secs(40);
/// How much longer than its deadline a caller waits: the load balancer
/// itself waits for five seconds more.
const PATIENCE_BEYOND: Duration = Duration::from_secs(9);

/// A server behind the gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// The bundled one, inside each gateway; modern.
    Std,
    /// The one over HTTP, in a container of its own; legacy.
    Everything,
    /// A copy of that program inside each gateway, one process per session.
    Own,
}

impl Server {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Std => "std",
            Self::Everything => "everything",
            Self::Own => "own",
        }
    }
}

/// A call, and the text that it must be answered with.
#[derive(Clone, Debug)]
pub struct Call {
    pub server: Server,
    pub tool: &'static str,
    pub arguments: Value,
    pub expected: String,
    /// The deadline that the gateway is told.
    pub within: Option<Duration>,
}

impl Call {
    /// Asks for a text back that no other call has.
    pub fn echo(server: Server) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let text = format!("text {} of {}", COUNT.fetch_add(1, Ordering::Relaxed), server.name());
        let (arguments, expected) = match server {
            Server::Std => (json!({"text": text}), text),
            Server::Everything | Server::Own => (json!({"message": text}), format!("Echo: {text}")),
        };
        Self { server, tool: "echo", arguments, expected, within: None }
    }

    /// Takes a while at `std`.
    pub fn sleep(ms: u64) -> Self {
        let (arguments, expected) = (json!({"ms": ms}), format!("slept {ms} ms"));
        Self { server: Server::Std, tool: "sleep", arguments, expected, within: None }
    }

    /// Makes the call with a deadline.
    pub fn within(self, time: Duration) -> Self {
        Self { within: Some(time), ..self }
    }

    /// How long its caller waits for it.
    pub fn patience(&self) -> Duration {
        self.within.map_or(PATIENCE, |within| within + PATIENCE_BEYOND)
    }
}

/// A code, and whether the tool ran: `yes`, `no` or `unknown`.
pub type Told = (&'static str, &'static str);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its own answer.
    Right,
    /// An error of the gateway's, or of the load balancer's in its stead, by its code, and whether
    /// the tool ran.
    Typed { status: i64, code: String, executed: String },
    /// The connection was closed instead.
    Closed,
    /// The answer broke off, or nothing came in time.
    Cut(String),
    /// An answer that is not its own, or none that can be understood.
    Wrong(String),
}

impl Outcome {
    /// A failure that is told by one of these codes, and by what it says of whether the tool ran.
    pub fn is_told(&self, as_one_of: &[Told]) -> bool {
        let Self::Typed { code, executed, .. } = self else { return false };
        as_one_of.contains(&(code.as_str(), executed.as_str()))
    }

    /// In a word.
    pub fn kind(&self) -> String {
        match self {
            Self::Right => "right".to_owned(),
            Self::Typed { code, executed, .. } => format!("{code}, executed: {executed}"),
            Self::Closed => "connection closed".to_owned(),
            Self::Cut(why) => format!("cut ({why})"),
            Self::Wrong(what) => format!("wrong ({what})"),
        }
    }

    /// An error of the gateway's with this code.
    pub fn has_code(&self, wanted: &str) -> bool {
        matches!(self, Self::Typed { code, .. } if code == wanted)
    }
}

/// Counts every call of the whole run.
#[derive(Debug, Default)]
pub struct Tally {
    pub calls: AtomicU64,
    pub wrong: AtomicU64,
}

impl Tally {
    /// Counts a call that has ended.
    pub fn count(&self, outcome: &Outcome) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if matches!(outcome, Outcome::Wrong(_)) {
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
    }
}
