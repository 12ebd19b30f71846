//! The recipients of a server's messages that answer no call.

use std::pin::Pin;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Changes;
use super::mailbox::Lists;
use crate::backend::connection::Connection;
use crate::backend::connection::call_notifications::Passed;
use crate::backend::instance::tools::ToolSet;
use crate::common::ids::ServerId;
use crate::protocol::jsonrpc::{Frame, INTERNAL_ERROR};
use crate::protocol::mcp::LogLevel;

/// The capabilities of callers that a server may ask. Those of each caller are looked at when it is
/// to be asked. Roots are not among them: they would count for all callers of the server.
const OF_CALLERS: &str = r#"{"elicitation":{"form":{},"url":{}},"sampling":{}}"#;

#[derive(Clone)]
pub struct Recipients {
    /// Listeners for changes.
    pub changes: Arc<Changes>,
    /// The only client of a server that is not shared (`sharing = "session"`). Requests of a shared
    /// server have no recipient.
    pub client: Option<Arc<dyn SessionClient>>,
    /// The tools that the client may have been shown before its server started.
    pub shown_tools: Option<Arc<ToolSet>>,
    /// Whether all listeners are of one tenant.
    pub is_of_tenant: bool,
    /// Whether the server's requests go to the caller of the only call that it works on.
    pub asks_callers: bool,
}

impl Recipients {
    pub fn new(server: ServerId, client: Option<Arc<dyn SessionClient>>) -> Self {
        let changes = Changes::new(server);
        Self { changes, client, shown_tools: None, is_of_tenant: false, asks_callers: false }
    }

    /// Returns the capabilities that are declared to a legacy server: a JSON object. `None` if its
    /// requests have no recipient.
    pub(crate) fn capabilities(&self) -> Option<&str> {
        match &self.client {
            Some(client) => Some(client.capabilities()),
            None => self.asks_callers.then_some(OF_CALLERS),
        }
    }

    /// Returns the lists of a server that has just started, and of which listeners must hear. A
    /// client that has its server to itself hears only of what it cannot know.
    pub(super) fn lists_at_start(&self, lists: Lists, tools: &ToolSet) -> Lists {
        match &self.client {
            Some(client) if !client.has_missed_lists() => {
                let differs = |shown: &Arc<ToolSet>| !shown.is_like(tools);
                let tools = lists.tools && self.shown_tools.as_ref().is_some_and(differs);
                Lists { tools, ..Lists::default() }
            }
            _ => lists,
        }
    }
}

/// The client of a session that has a server to itself.
pub trait SessionClient: Send + Sync {
    /// Returns the capabilities that the client declared: a JSON object.
    fn capabilities(&self) -> &str;

    /// Returns whether the client was given lists that leave out servers of its own.
    fn has_missed_lists(&self) -> bool;

    /// Subscribes the client to the changes of its own server.
    fn follow_changes(&self, changes: &Arc<Changes>);

    /// Returns since when the client has had neither a request nor a stream; `None` if it has one.
    fn idle_since(&self) -> Option<Instant>;

    /// Returns since when the client has had no request, no stream, and no server request to
    /// answer.
    fn inactive_since(&self) -> Option<Instant>;

    /// Returns since when the client has had no request at any server; it may have streams.
    fn silent_since(&self) -> Option<Instant>;

    /// Ends the session.
    fn end(&self);

    /// Ends the session if the client is inactive. Returns whether the session has ended.
    fn end_if_inactive(&self) -> bool;

    /// Ends the session if the client has no request at any server; it may have streams. Returns
    /// whether the session has ended.
    fn end_if_no_request(&self) -> bool;

    fn has_ended(&self) -> bool;

    /// Waits for the end of the session.
    fn ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Passes a server's request on to the client. Never waits.
    fn forward_request(&self, request: ServerRequest);

    /// Cancels a server's request.
    fn cancel_request(&self, connection: &Weak<Connection>, id: &RawValue);

    /// Passes a log message of the server on to the client. Never waits.
    fn log(&self, level: LogLevel, params: Bytes) -> Passed;

    /// Passes any other notification, which belongs to no call and to no list, on to the client.
    /// Never waits.
    fn notify(&self, method: &str, params: Option<Bytes>) -> Passed;
}

/// A request of a server to its client, to be answered under the server's own id.
#[derive(Clone, Debug)]
pub struct ServerRequest {
    /// The connection to answer on.
    pub connection: Weak<Connection>,
    /// The id as the server wrote it.
    pub id: Box<RawValue>,
    pub method: String,
    pub params: Option<Bytes>,
}

impl ServerRequest {
    /// Answers the request, unless its server has ended.
    pub fn answer(&self, outcome: Result<&RawValue, &RawValue>) {
        if let Some(connection) = self.connection.upgrade() {
            connection.notify(Frame::answer(&self.id, outcome));
        }
    }

    /// Refuses the request for this reason.
    pub fn refuse(&self, why: &str) {
        if let Some(connection) = self.connection.upgrade() {
            connection.metrics.refused_requests.inc();
            connection.notify(Frame::error(Some(&self.id), INTERNAL_ERROR, why, None));
        }
    }
}

/// For tests of channels: both are of one server, under one id.
impl PartialEq for ServerRequest {
    fn eq(&self, other: &Self) -> bool {
        self.connection.ptr_eq(&other.connection) && self.id.get() == other.id.get()
    }
}

impl Eq for ServerRequest {}
