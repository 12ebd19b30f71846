//! The headers of the protocol, which repeat parts of the message they come with.

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;

use super::Link;
use crate::jsonrpc::{Frame, Message, decode};
use crate::mcp::headers::encode;
use crate::mcp::{ProtocolVersion, method};

const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// What a message is about.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Empty for an answer.
    pub(super) method: String,
    name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params {
    name: Option<String>,
    uri: Option<String>,
    task_id: Option<String>,
}

impl Head {
    pub(super) fn of(frame: &Frame) -> Self {
        let (method, params) = match decode(frame.as_bytes()) {
            Ok(
                Message::Request { method, params, .. } | Message::Notification { method, params },
            ) => (method.into_owned(), params),
            Ok(Message::Response { .. }) | Err(_) => (String::new(), None),
        };
        let params = || params.and_then(|params| serde_json::from_str::<Params>(params.get()).ok());
        let name = match method.as_str() {
            method::TOOLS_CALL | method::PROMPTS_GET => params().and_then(|params| params.name),
            method::RESOURCES_READ => params().and_then(|params| params.uri),
            other if other.starts_with("tasks/") => params().and_then(|params| params.task_id),
            _ => None,
        };
        Self { method, name }
    }

    /// All headers of a message; `params` repeat arguments.
    pub(super) fn headers(&self, link: &Link, params: &[(String, String)]) -> HeaderMap {
        // The probe is written in the newest version; with the handshake the version is yet to be found.
        let version = match self.method.as_str() {
            method::DISCOVER => Some(ProtocolVersion::LATEST),
            method::INITIALIZE => None,
            _ => link.connection.version(),
        };
        let mut headers = common(link, version);
        headers.insert(ACCEPT, BOTH);
        headers.insert(CONTENT_TYPE, JSON);
        if let Ok(method) = HeaderValue::from_str(&self.method)
            && !method.is_empty()
        {
            headers.insert(METHOD, method);
        }
        if let Some(name) = &self.name
            && let Ok(name) = HeaderValue::from_str(&encode(name))
        {
            headers.insert(NAME, name);
        }
        for (name, value) in params {
            if let (Ok(name), Ok(value)) =
                (name.parse::<HeaderName>(), HeaderValue::from_str(value))
            {
                headers.insert(name, value);
            }
        }
        headers
    }
}

/// The headers of a request for a stream, or for the end of the session.
pub(super) fn of_stream(link: &Link, last_event_id: Option<&str>) -> HeaderMap {
    let mut headers = common(link, link.connection.version());
    headers.insert(ACCEPT, EVENTS);
    if let Some(id) = last_event_id.and_then(|id| HeaderValue::from_str(id).ok()) {
        headers.insert(LAST_EVENT_ID, id);
    }
    headers
}

fn common(link: &Link, version: Option<ProtocolVersion>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(version) = version {
        headers.insert(VERSION, HeaderValue::from_static(version.as_str()));
    }
    if let Some(session) = link.session.get() {
        headers.insert(SESSION, session.clone());
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::requests;

    #[test]
    fn a_message_says_what_it_is_about() {
        let head = |method: &str, params: &str| Head::of(&Frame::request(1, method, &[params]));
        let name_of = |method, params| head(method, params).name;
        assert_eq!(name_of("tools/call", r#"{"name":"a","arguments":{"name":1}}"#).unwrap(), "a");
        assert_eq!(name_of("prompts/get", r#"{"name":"é"}"#).unwrap(), "é");
        assert_eq!(name_of("resources/read", r#"{"uri":"x://y","name":"n"}"#).unwrap(), "x://y");
        assert_eq!(name_of("tasks/get", r#"{"taskId":"t"}"#).unwrap(), "t");
        assert_eq!(name_of("tools/list", r#"{"name":"a"}"#), None);
        assert_eq!(head("tools/list", "{}").method, "tools/list");
        assert_eq!(Head::of(&requests::initialized()).method, "notifications/initialized");
        let answer = Frame::error(None, 1, "no", None);
        assert_eq!(Head::of(&answer), Head { method: String::new(), name: None });
    }
}
