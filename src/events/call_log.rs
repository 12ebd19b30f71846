//! The call log: one entry for each call that it is told of, a line of JSON or a log record.
//!
//! A tenant has so many lines a second and no more: its flood must neither fill a disk nor push out
//! the lines of others. A line then says how many were left out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{EndedCall, Event, Kinds, Sink};
use crate::common::ids::TenantId;

/// Lines in a second about one tenant's calls that its own limits refused.
const OWN_LIMIT_LINES: u32 = 10;
/// Lines in a second about one tenant's other calls, unless all calls are logged.
const FAILURE_LINES: u32 = 100;
const SECOND: Duration = Duration::from_secs(1);

/// One entry of the log.
#[derive(Clone, Copy)]
pub enum Entry<'a> {
    Call(&'a Arc<EndedCall>),
    LeftOut(&'a LeftOut),
}

/// Lines about one tenant's calls that were left out.
#[derive(Clone, Debug)]
pub struct LeftOut {
    pub tenant: TenantId,
    /// Refusals by the tenant's own limits.
    pub of_own_limit: u64,
    pub of_others: u64,
}

/// Writes one entry somewhere. Must not wait.
pub type WriteEntry = Box<dyn Fn(Entry<'_>) + Send + Sync>;

pub struct CallLog {
    /// Whether calls that ended well are written, too.
    has_all: bool,
    places: Vec<WriteEntry>,
    /// The tenants with lines in this second that are bounded.
    by_tenant: Mutex<HashMap<TenantId, Quota>>,
}

/// The lines of one tenant in one second.
struct Quota {
    since: Instant,
    of_limits: Lines,
    of_failures: Lines,
}

#[derive(Default)]
struct Lines {
    written: u32,
    left_out: u64,
}

/// A line about one call.
#[derive(Serialize)]
struct CallLine<'a> {
    timestamp: Timestamp,
    target: &'static str,
    call: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    tenant: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    server: &'a str,
    tool: &'a str,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    executed: &'static str,
    attempts: u32,
    queue_ms: f64,
    backend_ms: f64,
    bytes_in: u64,
    bytes_out: u64,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    labels: &'a [String],
}

/// A line about lines that were left out.
#[derive(Serialize)]
struct LeftOutLine<'a> {
    timestamp: Timestamp,
    target: &'static str,
    tenant: &'a str,
    left_out_own_limit: u64,
    left_out_others: u64,
}

const TARGET: &str = "call";

impl CallLog {
    /// Creates a log of failures; with `has_all`, of all calls. Each place gets every entry.
    pub fn new(has_all: bool, places: Vec<WriteEntry>) -> Self {
        Self { has_all, places, by_tenant: Mutex::default() }
    }

    /// Returns the kinds of events that it must hear.
    pub fn kinds(&self) -> Kinds {
        if self.has_all { Kinds::ENDS } else { Kinds::NOTABLE }
    }

    /// Tells of lines that were left out, once a second, for ever.
    pub async fn run(&self) {
        loop {
            sleep(SECOND).await;
            self.tell_left_out();
        }
    }

    fn tell_left_out(&self) {
        let mut by_tenant = self.by_tenant.lock();
        by_tenant.retain(|tenant, quota| {
            let is_over = quota.since.elapsed() >= SECOND;
            if is_over {
                self.write_left_out(tenant, quota);
            }
            !is_over
        });
    }

    /// Returns whether a tenant may have one more line in this second.
    fn may_write(&self, call: &EndedCall) -> bool {
        let mut by_tenant = self.by_tenant.lock();
        let quota = by_tenant.entry(call.tenant.clone()).or_insert_with(Quota::new);
        if quota.since.elapsed() >= SECOND {
            self.write_left_out(&call.tenant, quota);
            *quota = Quota::new();
        }
        if call.is_own_limit {
            quota.of_limits.take(OWN_LIMIT_LINES)
        } else {
            quota.of_failures.take(FAILURE_LINES)
        }
    }

    fn write_left_out(&self, tenant: &TenantId, quota: &Quota) {
        let (of_limits, of_failures) = (quota.of_limits.left_out, quota.of_failures.left_out);
        if of_limits + of_failures > 0 {
            self.write(Entry::LeftOut(&LeftOut {
                tenant: tenant.clone(),
                of_own_limit: of_limits,
                of_others: of_failures,
            }));
        }
    }

    fn write(&self, entry: Entry<'_>) {
        self.places.iter().for_each(|write| write(entry));
    }
}

impl Sink for CallLog {
    fn hear(&self, event: &Event) {
        let Event::CallEnded(call) = event else { return };
        // A slow call is no failure, and neither is a tool's own.
        let is_wanted = self.has_all || !call.outcome.is_answer();
        let is_bounded = call.is_own_limit || !self.has_all;
        if is_wanted && (!is_bounded || self.may_write(call)) {
            self.write(Entry::Call(call));
        }
    }
}

impl Entry<'_> {
    pub fn tenant(&self) -> &TenantId {
        match self {
            Self::Call(call) => &call.tenant,
            Self::LeftOut(lines) => &lines.tenant,
        }
    }

    /// Returns the entry as one line of JSON, which ends with a newline.
    pub fn line(&self) -> Vec<u8> {
        let line = match self {
            Self::Call(call) => serde_json::to_vec(&CallLine::of(call)),
            Self::LeftOut(lines) => serde_json::to_vec(&LeftOutLine {
                timestamp: Timestamp::now(),
                target: TARGET,
                tenant: lines.tenant.name().as_str(),
                left_out_own_limit: lines.of_own_limit,
                left_out_others: lines.of_others,
            }),
        };
        let mut line = line.expect("lines are plain data");
        line.push(b'\n');
        line
    }
}

impl Quota {
    fn new() -> Self {
        let (of_limits, of_failures) = (Lines::default(), Lines::default());
        Self { since: Instant::now(), of_limits, of_failures }
    }
}

impl Lines {
    /// Takes one of `max` lines; counts it if there is none left.
    fn take(&mut self, max: u32) -> bool {
        let is_free = self.written < max;
        if is_free {
            self.written += 1;
        } else {
            self.left_out += 1;
        }
        is_free
    }
}

impl<'a> CallLine<'a> {
    fn of(call: &'a EndedCall) -> Self {
        Self {
            timestamp: Timestamp::now(),
            target: TARGET,
            call: call.id.to_string(),
            request_id: call.tags.request_id.as_deref(),
            tenant: call.tenant.name().as_str(),
            key: call.key.as_ref().map(|key| key.as_str()),
            server: &call.server,
            tool: &call.target,
            outcome: call.outcome.as_str(),
            code: call.code,
            executed: call.executed,
            attempts: call.attempts,
            queue_ms: in_ms(call.queue),
            backend_ms: in_ms(call.backend),
            bytes_in: call.bytes_in,
            bytes_out: call.bytes_out,
            labels: &call.tags.labels,
        }
    }
}

/// Returns milliseconds, to the microsecond.
pub fn in_ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}
