//! The stream on which a legacy server sends notifications that belong to no request.

use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use tokio::time::{Instant, sleep};

use super::HttpEndpoint;
use super::sse::SseDecoder;
use super::stream::{BodyKind, kind_of, read_events};
use crate::backend::connection::incoming::ExpectedAnswers;

/// The pause before the stream is opened again. It doubles after each stream that ended early.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);
/// A stream that lasted this long resets the pause.
const USEFUL_AFTER: Duration = Duration::from_secs(5);

/// Listens until the server says that it has no such stream.
pub(super) async fn listen(endpoint: Arc<HttpEndpoint>) {
    let mut decoder = SseDecoder::new(endpoint.message_len_max);
    let mut pause = RETRY_PAUSE;
    let mut is_first = true;
    loop {
        let began = Instant::now();
        match endpoint.get(decoder.last_id()).await {
            Ok(mut response) if response.status().is_success() => {
                if kind_of(&response) != BodyKind::Events {
                    return;
                }
                if !is_first {
                    // The server may have dropped notifications meanwhile, whatever it replays now.
                    endpoint.connection.note_missed_changes();
                }
                read_events(&endpoint, &mut response, &mut decoder, ExpectedAnswers::None).await;
                decoder.restart();
            }
            // Most often 405: no such stream. If the session has ended, the next call finds out.
            Ok(response) if is_final(response.status()) => return,
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "the stream of notifications could not be opened")
            }
        }
        is_first = false;
        pause = if began.elapsed() >= USEFUL_AFTER { RETRY_PAUSE } else { pause };
        sleep(pause.max(decoder.retry().unwrap_or_default())).await;
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
}

/// Returns whether retrying is of no use. A busy server may accept later, and so may one that
/// allows one stream and has not noticed yet that the previous one was cut (409).
fn is_final(status: StatusCode) -> bool {
    status.is_client_error() && !matches!(status.as_u16(), 408 | 409 | 425 | 429)
}
