//! How a call ended, whichever way it was made, and whether it may have ended so.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

use crate::report::Tally;

/// How a call ended.
pub enum Outcome {
    /// With the server's result.
    Result { result: Bytes, is_error: bool },
    /// With the server's error.
    ServerError { message: String, data: String },
    /// Its server is down: the call was not made.
    Unavailable { retry_after: Duration, reason: String },
    /// The deadline passed.
    Expired,
    /// The server ended.
    Ended,
    /// The answer was over the limit.
    TooLarge,
    /// The answer made no sense, or was a question.
    Protocol,
    /// The gateway had no place for it.
    Refused,
    /// The caller gave it up and heard no more of it.
    Cancelled,
    /// Its tenant was removed meanwhile.
    Removed,
    /// In a way that would be our own fault: servers and tools are there, arguments are right.
    Wrong(String),
}

/// Counts an outcome, and compares what came with what was sent.
pub fn judge(tally: &Tally, mark: &str, outcome: Outcome) {
    match outcome {
        Outcome::Result { result, is_error } => {
            let counter = if is_error { &tally.tool_errors } else { &tally.ok };
            counter.add(1);
            compare(tally, mark, read_result(&result));
        }
        Outcome::ServerError { message, data } => {
            tally.server_errors.add(1);
            compare(tally, mark, read_error(&message, &data));
        }
        Outcome::Unavailable { .. } => tally.unavailable.add(1),
        Outcome::Expired => tally.expired.add(1),
        Outcome::Ended => tally.ended.add(1),
        Outcome::TooLarge => tally.too_large.add(1),
        Outcome::Protocol => tally.protocol.add(1),
        Outcome::Refused => tally.refused.add(1),
        Outcome::Cancelled => tally.cancelled.add(1),
        Outcome::Removed => tally.removed.add(1),
        Outcome::Wrong(what) => tally.fault(format!("the call {mark} {what}")),
    }
}

/// Every mark in an answer must be that of the call; an answer that cannot be read is nobody's.
fn compare(tally: &Tally, mark: &str, found: Result<Vec<Cow<'_, str>>, serde_json::Error>) {
    match found {
        Ok(marks) => {
            if let Some(other) = marks.iter().find(|found| *found != mark) {
                tally.mismatch(mark, &format!("the answer to {other}"));
            }
        }
        Err(error) => tally.mismatch(mark, &format!("an answer that cannot be read: {error}")),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult<'a> {
    #[serde(borrow)]
    content: [Text<'a>; 1],
    structured_content: Marks<'a>,
}

#[derive(Deserialize)]
struct Text<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Marks<'a> {
    #[serde(borrow)]
    mark: Cow<'a, str>,
    #[serde(borrow, default)]
    padding: Vec<&'a str>,
}

fn read_result(result: &[u8]) -> Result<Vec<Cow<'_, str>>, serde_json::Error> {
    let ToolResult { content: [Text { text }], structured_content: Marks { mark, padding } } =
        serde_json::from_slice(result)?;
    Ok([text, mark].into_iter().chain(padding.into_iter().map(Cow::Borrowed)).collect())
}

fn read_error<'a>(message: &'a str, data: &'a str) -> Result<Vec<Cow<'a, str>>, serde_json::Error> {
    let data: Marks<'a> = serde_json::from_str(data)?;
    Ok(vec![Cow::Borrowed(message), data.mark])
}
