//! The one client of a server that is not shared (`sharing = "session"`). A shared server's questions have
//! nobody to go to; this one's do.

use std::pin::Pin;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Changes;
use crate::backend::connection::Connection;
use crate::common::ids::ServerId;
use crate::protocol::mcp::LogLevel;

/// Whoever a server has to itself.
pub trait Client: Send + Sync {
    /// What it can do, as it said when it introduced itself: a JSON object.
    fn capabilities(&self) -> &str;

    /// Wants to hear of changes at a server of its own.
    fn follow(&self, changes: &Arc<Changes>);

    /// Since when it has neither asked anything nor listened; `None` if it does so now.
    fn idle_since(&self) -> Option<Instant>;

    /// Since when nothing of it is under way: no request, no stream, and no question that it may answer.
    fn at_rest_since(&self) -> Option<Instant>;

    /// Its session is over.
    fn end(&self);

    /// The same if nothing of it is under way. Tells whether it is over.
    fn end_if_at_rest(&self) -> bool;

    /// The same if no request of it is under way, at whichever server; it may listen. Tells whether it is over.
    fn end_if_nothing_is_asked(&self) -> bool;

    /// Whether it is.
    fn has_ended(&self) -> bool;

    /// Done when it is.
    fn ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// A request of the server's. Never waits.
    fn ask(&self, question: Question);

    /// The server no longer wants the answer to its request.
    fn withdraw(&self, connection: &Weak<Connection>, id: &RawValue);

    /// A log line of the server's. Never waits.
    fn log(&self, level: LogLevel, params: Bytes);

    /// Any other notification of the server's that belongs to no call and to no list. Never waits.
    fn tell(&self, method: &str, params: Option<Bytes>);
}

/// Who hears what a server says beyond its answers.
#[derive(Clone)]
pub struct Audience {
    /// Those who asked for it.
    pub changes: Arc<Changes>,
    /// The one client, if the server is not shared.
    pub client: Option<Arc<dyn Client>>,
}

impl Audience {
    /// Nobody has asked yet.
    pub fn new(server: ServerId, client: Option<Arc<dyn Client>>) -> Self {
        Self { changes: Changes::new(server), client }
    }
}

/// A request of a server's to its client, to be answered under the server's own id.
pub struct Question {
    /// Where the answer goes.
    pub connection: Weak<Connection>,
    /// As the server wrote it.
    pub id: Box<RawValue>,
    /// What is asked.
    pub method: String,
    /// With what.
    pub params: Option<Bytes>,
}
