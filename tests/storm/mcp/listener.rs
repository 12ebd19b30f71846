//! A client of one tenant that only listens, at one server, to the resource named for its tenant.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::sleep;
use trunkline::protocol::mcp::method;

use super::request::listen;
use super::wire::{Connection, Events};
use crate::plan::resource_of;
use crate::report::Tally;

/// The pause before a stream that was refused or has ended is opened again.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    uri: Option<Cow<'a, str>>,
}

/// Listens for as long as the round takes. Everything but an update of the tenant's own resource is
/// a mismatch.
pub async fn run(address: SocketAddr, tenant: usize, server: usize, tally: Arc<Tally>) {
    loop {
        // A server that is down refuses, and a stream ends when its server is stopped.
        let _ = stream(address, tenant, server, &tally).await;
        sleep(PAUSE).await;
    }
}

async fn stream(
    address: SocketAddr,
    tenant: usize,
    server: usize,
    tally: &Tally,
) -> Result<(), String> {
    let own = resource_of(tenant);
    let mut connection = Connection::open(address).await?;
    let response = connection.send(listen(server, &own)).await?;
    let content_type = response.headers().get("content-type").cloned();
    if content_type.is_none_or(|value| value != "text/event-stream") {
        return Ok(());
    }
    let (mut body, mut events) = (response.into_body(), Events::default());
    while let Some(piece) = connection.next(&mut body).await? {
        for message in events.add(&piece)? {
            take(&message, &own, tally);
        }
    }
    Ok(())
}

fn take(json: &[u8], own: &str, tally: &Tally) {
    let message = serde_json::from_slice::<Message<'_>>(json).ok();
    let heard = message.as_ref().map(|it| (it.method.as_deref(), it.params.as_ref()));
    match heard {
        Some((Some(method::ACKNOWLEDGED), _)) => tally.subscriptions.add(1),
        Some((Some(method::RESOURCE_UPDATED), Some(Params { uri: Some(uri) }))) if uri == own => {
            tally.updates.add(1);
        }
        // The answer: the stream ends.
        Some((None, _)) => {}
        _ => {
            let text = String::from_utf8_lossy(json);
            tally.mismatch(&format!("that listens to {own}"), &format!("{text:.200}"));
        }
    }
}
