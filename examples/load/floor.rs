//! The floor: what an HTTP server costs that does nothing but give each body back.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use tokio::net::TcpListener;

/// `floor ADDRESS`
#[tokio::main]
pub async fn run() -> Result<()> {
    let address: SocketAddr =
        std::env::args().nth(2).context("where to listen is missing")?.parse()?;
    let router = Router::new().route("/echo", post(|body: Bytes| async { body }));
    axum::serve(TcpListener::bind(address).await?, router).await?;
    Ok(())
}
