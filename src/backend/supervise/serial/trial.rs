//! Calls that an operator has a server run, to find out whether it answers beside them.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join_all, poll_immediate};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::LATE;
use crate::backend::Ready;
use crate::backend::connection::{Answer, RequestError};
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::mcp::requests::CallMeta;

/// Calls at once.
pub(crate) const CALLS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// The times in which the server answered pings beside the calls.
#[derive(Debug, Default)]
pub(crate) struct Pings {
    pub(crate) longest: Duration,
    /// `None` without a ping.
    shortest: Option<Duration>,
}

impl Pings {
    fn note(&mut self, took: Duration) {
        self.longest = self.longest.max(took);
        self.shortest = Some(self.shortest.map_or(took, |shortest| shortest.min(took)));
    }

    /// Returns whether all were late. A busy machine may delay one.
    pub(crate) fn are_late(&self) -> bool {
        self.shortest.is_some_and(|shortest| shortest >= LATE)
    }
}

/// Calls a tool several times at once, and pings the server until all calls have ended. Fails with
/// the reason if a call fails.
pub(crate) async fn call_and_ping(
    ready: &Ready,
    tool: &str,
    arguments: &str,
) -> Result<Pings, String> {
    let arguments = RawObject::parse(Bytes::copy_from_slice(arguments.as_bytes()));
    let arguments = arguments.map_err(|error| error.to_string())?;
    let (connection, deadline) = (&ready.connection, Instant::now() + TIMEOUT);
    let name = Value::from(tool).to_string();
    let call = || {
        connection.request(deadline, |id| {
            ready.dialect.tools_call(id, &name, &arguments, "", &CallMeta::default())
        })
    };
    let mut calls = pin!(join_all((0..CALLS).map(|_| call())));
    let mut pings = Pings::default();
    // The calls are written before the first ping.
    if let Some(outcomes) = poll_immediate(&mut calls).await {
        return check(outcomes).map(|()| pings);
    }
    loop {
        let since = Instant::now();
        let ping = connection.request(deadline, |id| ready.dialect.ping(id));
        let outcomes = tokio::select! {
            outcomes = &mut calls => outcomes,
            _ = ping => {
                pings.note(since.elapsed());
                tokio::select! {
                    outcomes = &mut calls => return check(outcomes).map(|()| pings),
                    () = sleep(PAUSE) => continue,
                }
            }
        };
        // This ping has waited as long as the last call.
        pings.note(since.elapsed());
        return check(outcomes).map(|()| pings);
    }
}

fn check(outcomes: Vec<Result<Answer, RequestError>>) -> Result<(), String> {
    outcomes.into_iter().try_for_each(|outcome| match outcome {
        Ok(Answer::Result(_)) => Ok(()),
        Ok(Answer::Error(error)) => Err(String::from_utf8_lossy(&error).into_owned()),
        Err(error) => Err(error.to_string()),
    })
}
