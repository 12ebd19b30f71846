//! Questions of modern servers to the client of a session. Such a server answers a call with its
//! questions; the gateway puts them to the client, as a legacy server would.
//!
//! The id of a question is sealed, with the session and the replica that waits for the answer: the
//! client may send the answer to any replica.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::{Delivery, Session};
use crate::backend::connection::call_notifications::{
    CallNotification, NotificationSender, Passed,
};
use crate::cluster::{Cluster, Peer};
use crate::common::seal::{Purpose, Sealer};
use crate::gateway::Held;
use crate::http::mcp::rpc;
use crate::protocol::mcp::method;
use crate::protocol::mcp::questions::{Askable, QUESTIONS_MAX, Question};

/// Questions that wait for the client of one session.
pub(super) type OpenQuestions = HashMap<u64, oneshot::Sender<ClientAnswer>>;

/// An answer of the client: a result or an error, as JSON.
pub(in crate::http::mcp) struct ClientAnswer {
    pub(in crate::http::mcp) outcome: Result<String, String>,
    /// Counts its bytes.
    pub(in crate::http::mcp) held: Option<Held>,
}

/// A question that was put to the client. Withdrawn when dropped without an answer.
pub(in crate::http::mcp) struct OpenQuestion {
    session: Arc<Session>,
    number: u64,
    id: String,
    pub(in crate::http::mcp) answer: oneshot::Receiver<ClientAnswer>,
}

/// The replica at which something waits, in a sealed text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::http::mcp) struct Replica {
    #[serde(rename = "r")]
    id: String,
    #[serde(rename = "a")]
    address: SocketAddr,
}

/// Names a question.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::http::mcp) struct QuestionId {
    #[serde(rename = "n")]
    pub(in crate::http::mcp) number: u64,
    #[serde(rename = "at")]
    pub(in crate::http::mcp) replica: Option<Replica>,
}

impl Replica {
    /// Returns this replica, if there are several.
    pub(in crate::http::mcp) fn this(cluster: Option<&Arc<Cluster>>) -> Option<Self> {
        let me = cluster?.me();
        Some(Self { id: me.id.clone(), address: me.address })
    }

    /// Returns the replica as a peer, unless it is this one.
    pub(in crate::http::mcp) fn other(&self, cluster: Option<&Arc<Cluster>>) -> Option<Peer> {
        let is_this = cluster.is_some_and(|cluster| cluster.me().id == self.id);
        (!is_this).then(|| Peer { id: self.id.clone(), address: self.address })
    }
}

impl QuestionId {
    fn seal(&self, sealer: &Sealer, session: &Session) -> String {
        let plain = serde_json::to_vec(self).expect("plain data");
        sealer.seal(Purpose::Question, &context(session), &plain)
    }

    /// Opens the id of an answer; `None` unless it is that of a question to this session.
    pub(in crate::http::mcp) fn open(sealer: &Sealer, session: &Session, id: &str) -> Option<Self> {
        let plain = sealer.open(Purpose::Question, &context(session), id)?;
        serde_json::from_slice(&plain).ok()
    }
}

fn context(session: &Session) -> Vec<u8> {
    [session.id.as_bytes(), session.tenant.unique_text().as_bytes()].concat()
}

impl Session {
    /// Returns the questions that the client can be asked, and how they are declared to a server.
    pub(in crate::http::mcp) fn askable(&self) -> Option<&(Askable, String)> {
        self.askable.as_ref()
    }

    /// Puts a question to the client, on the stream of the call that it is about if there is room.
    /// `None` if it reads no stream with room, or too many questions wait for it.
    pub(in crate::http::mcp) fn ask(
        self: &Arc<Self>,
        question: &Question,
        on: Option<&NotificationSender>,
        sealer: &Sealer,
        replica: Option<Replica>,
    ) -> Option<OpenQuestion> {
        let number = {
            let mut state = self.state.lock();
            if state.questions.len() >= QUESTIONS_MAX {
                return None;
            }
            state.next_number()
        };
        let id = QuestionId { number, replica }.seal(sealer, self);
        let params = question.legacy_params(&id);
        let message = format!(
            r#"{{"jsonrpc":"2.0","id":"{id}","method":"{}","params":{params}}}"#,
            question.method
        );
        let message = Bytes::from(message);
        let (waiter, answer) = oneshot::channel();
        // Before the client can answer.
        self.state.lock().questions.insert(number, waiter);
        let question = OpenQuestion { session: self.clone(), number, id, answer };
        let on_its_stream =
            on.is_some_and(|on| on.send(CallNotification::Message(message.clone())) == Passed::On);
        let is_asked = on_its_stream || self.state.lock().deliver(&message) == Delivery::Done;
        if is_asked {
            return Some(question);
        }
        self.state.lock().questions.remove(&number);
        None
    }

    /// Takes the answer to a question. Only the first one counts.
    pub(in crate::http::mcp) fn take_answer(
        &self,
        number: u64,
        outcome: Result<&RawValue, &RawValue>,
        held: Option<Held>,
    ) {
        let waiter = self.state.lock().questions.remove(&number);
        if let Some(waiter) = waiter {
            let text = |json: &RawValue| json.get().to_owned();
            let _ = waiter.send(ClientAnswer { outcome: outcome.map(text).map_err(text), held });
        }
    }
}

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        let mut state = self.session.state.lock();
        if state.questions.remove(&self.number).is_some() {
            let params = json!({"requestId": self.id}).to_string();
            state.deliver(&rpc::notification(method::CANCELLED, &params));
        }
    }
}
