//! What a legacy server says unasked: a stream of its own, for as long as the connection lasts.

use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use tokio::time::{Instant, sleep};

use super::Link;
use super::sse::SseDecoder;
use super::stream::{Kind, kind_of, read_events};
use crate::backend::connection::incoming::ExpectedAnswers;

/// The pause before the stream is asked for again. It grows each time nothing has come of it.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(60);
/// A stream that was there this long was of use.
const USEFUL_AFTER: Duration = Duration::from_secs(5);

/// Listens until the server says that it has no such stream.
pub(super) async fn listen(link: Arc<Link>) {
    let mut decoder = SseDecoder::new(link.message_len_max);
    let mut pause = AGAIN_AFTER;
    let mut is_first = true;
    loop {
        let began = Instant::now();
        match link.get(decoder.last_id()).await {
            Ok(mut response) if response.status().is_success() => {
                if kind_of(&response) != Kind::Events {
                    return;
                }
                if !is_first {
                    // Whatever it says of what it remembers: a change that it told nobody of must not go unnoticed.
                    link.connection.note_missed_changes();
                }
                read_events(&link, &mut response, &mut decoder, ExpectedAnswers::None).await;
                decoder.begin_again();
            }
            // Most often 405: it has nothing to say. If the session has ended, the next call will tell.
            Ok(response) if is_final(response.status()) => return,
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the server's stream of notifications is lost"),
        }
        is_first = false;
        pause = if began.elapsed() >= USEFUL_AFTER { AGAIN_AFTER } else { pause };
        sleep(pause.max(decoder.retry().unwrap_or_default())).await;
        pause = (pause * 2).min(AGAIN_AFTER_MAX);
    }
}

/// Whether asking again would end no better, as it would for a server that is busy, or that has not noticed yet that the
/// stream before is cut: it allows one at a time.
fn is_final(status: StatusCode) -> bool {
    let is_for_now = matches!(status.as_u16(), 408 | 409 | 425 | 429);
    status.is_client_error() && !is_for_now
}
