//! The helpers of the integration tests.

mod answer;
mod api;
mod authorization_server;
mod binary;
mod collector;
mod databases;
mod fake;
mod gateway;
mod http2;
mod http_answers;
mod http_played;
mod http_server;
mod identity_provider;
pub mod mcp_legacy;
pub mod mcp_modern;
mod metrics;
mod postgres;
mod processes;
mod raw_http;
mod receiver;
mod redis;
mod setup;
mod skip;
mod tenants;
pub mod tls;
mod token_endpoint;

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

pub use self::answer::{Answer, failed, refused};
pub use self::api::Api;
pub use self::authorization_server::{AuthorizationServer, Brought};
pub use self::binary::{
    Serving, trunkline, trunkline_reading, trunkline_with, trunkline_with_stderr,
};
pub use self::collector::{Collector, attributes};
pub use self::databases::{Database, on_both};
pub use self::fake::Fake;
pub use self::gateway::Gateway;
pub use self::http_server::HttpServer;
pub use self::http2::Http2;
pub use self::identity_provider::{
    AUDIENCE, ISSUER, Provider, SigningKey, claims, now_s, token_of,
};
pub use self::mcp_modern::Mcp;
pub use self::postgres::Postgres;
pub use self::processes::{arguments_of, environment_of, exists, is_alive, kill};
pub use self::raw_http::RawHttp;
pub use self::receiver::{Delivery, Receiver};
pub use self::redis::{Redis, Replica};
pub use self::setup::{Setup, python};
pub use self::skip::{missing, skipped};
pub use self::tenants::Tenants;
pub use self::token_endpoint::{Asked, TokenEndpoint};

/// The program under test.
pub const TRUNKLINE: &str = env!("CARGO_BIN_EXE_trunkline");

/// Far longer than anything here takes, also on a machine that is busy with other things.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Waits until `look` finds something.
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    within(LIMIT, what, look).await
}

/// Waits until `look` finds something, which must be before `limit`.
pub async fn within<T>(limit: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + limit;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < give_up, "after {limit:?} still not: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for something that must end.
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("after {LIMIT:?} still not: {what}"))
}
