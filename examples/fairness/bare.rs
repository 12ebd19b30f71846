//! A bare `axum::serve` server in the gateway's place. What a hostile load does to the neighbour
//! there, it does by the processors, the system and HTTP alone: no gateway can do better.

use std::env;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::routing::post;
use axum::serve::ListenerExt;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;
use tokio::time::{Duration, sleep};

use crate::hostile::apart::raise_descriptors;

/// The first argument of this program where it is to be that server. The last one is the address.
pub const COMMAND: &str = "bare";
/// The time of the neighbour's calls where they sleep, and their answer.
const SLEEP: Duration = Duration::from_millis(10);
const SLEPT: &str = "slept 10 ms";

/// Serves until the process is ended.
#[tokio::main]
pub async fn serve() -> Result<()> {
    raise_descriptors();
    let address: SocketAddr = env::args().next_back().context("an address")?.parse()?;
    let listener = TcpListener::bind(address).await?.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    let routes =
        Router::new().route("/v1/servers/{server}/tools/{tool}", post(call)).fallback(|| async {});
    Ok(axum::serve(listener, routes).await?)
}

async fn call(Path((_, tool)): Path<(String, String)>, body: Bytes) -> Bytes {
    match tool.as_str() {
        "sleep" => {
            sleep(SLEEP).await;
            Bytes::from_static(SLEPT.as_bytes())
        }
        "hash" => {
            let hash = spawn_blocking(move || Sha256::digest(&body).to_vec()).await;
            hash.expect("hashing does not panic").into()
        }
        _ => body,
    }
}
