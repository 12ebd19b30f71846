//! Opens the call log, and runs the task that tells of lines that were left out.

use std::sync::Arc;

use anyhow::{Context, Result};
use futures_util::FutureExt;
use tokio_util::task::AbortOnDropHandle;

use crate::config::{LogConfig, LoggedCalls};
use crate::events::Events;
use crate::events::call_log::{CallLog, WriteEntry};
use crate::telemetry::logging::LineLog;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::tasks::restart_on_panic;

pub(super) struct CallLogTask {
    pub(super) lines: LineLog,
    log: Option<Arc<CallLog>>,
}

pub(super) struct RunningCallLog {
    lines: LineLog,
    _running: Option<AbortOnDropHandle<()>>,
}

impl CallLogTask {
    /// Opens the log, and has it hear of calls from now on.
    /// `exported` is its place at a collector, which stands for standard error.
    pub(super) fn open(
        config: &LogConfig,
        metrics: &Metrics,
        events: &Events,
        exported: Option<WriteEntry>,
    ) -> Result<Self> {
        let opened = LineLog::open(config.file.clone(), metrics.dropped_log_lines());
        let lines = opened.with_context(|| {
            let path = config.file.as_deref().unwrap_or("".as_ref()).display();
            format!("cannot open the call log `{path}` (`[log] file`)")
        })?;
        let has_lines = config.file.is_some() || exported.is_none();
        let written = has_lines.then(|| {
            let lines = lines.clone();
            let write: WriteEntry = Box::new(move |entry| lines.push(&entry.line()));
            write
        });
        let places = written.into_iter().chain(exported).collect();
        let log = match config.calls {
            LoggedCalls::Off => None,
            LoggedCalls::Failures => Some(CallLog::new(false, places)),
            LoggedCalls::All => Some(CallLog::new(true, places)),
        };
        let log = log.map(Arc::new);
        log.iter().for_each(|log| events.attach(log.kinds(), log.clone()));
        Ok(Self { lines, log })
    }

    pub(super) fn start(self, metrics: &Metrics) -> RunningCallLog {
        let metrics = metrics.clone();
        let running = self.log.map(|mut log| {
            AbortOnDropHandle::new(tokio::spawn(async move {
                restart_on_panic(&metrics, "call_log", &mut log, |log| log.run().boxed()).await;
            }))
        });
        RunningCallLog { lines: self.lines, _running: running }
    }
}

impl RunningCallLog {
    /// Writes what is left, after the last call.
    pub(super) fn stop(self) {
        self.lines.flush();
    }
}
