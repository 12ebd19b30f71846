//! Changes at servers, as the notifications that tell clients of them.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;

use crate::backend::changes::mailbox::{Change, List, Mailbox};
use crate::http::mcp::{Scope, rpc};
use crate::protocol::mcp::{meta, method, names};

pub(crate) struct ChangeMessages {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) scope: Scope,
    /// Names the `subscriptions/listen` request in each message; legacy streams have none.
    pub(crate) subscription_id: Option<Box<RawValue>>,
}

impl ChangeMessages {
    /// Waits for the next change. Cancel-safe.
    pub(crate) async fn next(&self) -> Bytes {
        match self.mailbox.next().await {
            Change::List(List::Tools) => self.message(method::TOOLS_CHANGED, None),
            Change::List(List::Prompts) => self.message(method::PROMPTS_CHANGED, None),
            Change::List(List::Resources) => self.message(method::RESOURCES_CHANGED, None),
            Change::Resource(server, uri) => {
                let uri = exposed_uri(&self.scope, server.as_str(), &uri);
                self.message(method::RESOURCE_UPDATED, Some(&uri))
            }
        }
    }

    fn message(&self, method: &str, uri: Option<&str>) -> Bytes {
        let uri = uri.map(|uri| format!("\"uri\":{}", json!(uri)));
        let members = uri.into_iter().chain(self.subscription_id.as_deref().map(subscription_meta));
        let members = members.collect::<Vec<_>>().join(",");
        rpc::notification(method, &format!("{{{members}}}"))
    }
}

/// Writes the `_meta` that names the `subscriptions/listen` request of a message.
pub(crate) fn subscription_meta(id: &RawValue) -> String {
    format!("\"_meta\":{{\"{}\":{}}}", meta::SUBSCRIPTION_ID, id.get())
}

/// Returns a server's URI as the endpoint lists it.
pub(crate) fn exposed_uri(scope: &Scope, server: &str, uri: &str) -> String {
    match scope {
        Scope::All => names::resource_uri(server, uri),
        Scope::One(_) => uri.to_owned(),
    }
}
