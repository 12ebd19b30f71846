//! The headers of the protocol, which repeat parts of the message they come with.

use std::borrow::Cow;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;

use super::Link;
use crate::backend::connection::RequestError;
use crate::protocol::jsonrpc::{Frame, Message, decode};
use crate::protocol::mcp::headers::encode;
use crate::protocol::mcp::{Era, ProtocolVersion, method};

const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// The longest value that repeats something of a caller's, and all of them together with their names. Servers take a header
/// that is too long for a fault of the whole connection, which over HTTP/2 is that of all tenants; many draw the line at 8
/// or 16 KiB for all headers.
const VALUE_LEN_MAX: usize = 4 * 1024;
const VALUES_LEN_MAX: usize = 8 * 1024;

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

    /// All headers of a message; `params` repeat arguments. A legacy server gets none that repeat anything.
    pub(super) fn headers(
        &self,
        link: &Link,
        params: &[(String, String)],
    ) -> Result<HeaderMap, RequestError> {
        // The probe is written in the newest version; with the handshake the version is yet to be found.
        let version = match self.method.as_str() {
            method::DISCOVER => Some(ProtocolVersion::LATEST),
            method::INITIALIZE => None,
            _ => link.connection.version(),
        };
        let mut headers = common(link, version);
        headers.insert(ACCEPT, BOTH);
        headers.insert(CONTENT_TYPE, JSON);
        if version.is_some_and(|version| version.era() == Era::Modern) {
            self.repeat(params, &mut headers)?;
        }
        Ok(headers)
    }

    /// Adds the headers that repeat parts of the message.
    fn repeat(&self, params: &[(String, String)], to: &mut HeaderMap) -> Result<(), RequestError> {
        if let Ok(method) = HeaderValue::from_str(&self.method)
            && !method.is_empty()
        {
            to.insert(METHOD, method);
        }
        let name = self.name.as_deref().map(|name| (NAME, encode(name)));
        let params = params.iter().filter_map(|(name, value)| {
            Some((name.parse::<HeaderName>().ok()?, Cow::Borrowed(value.as_str())))
        });
        let mut len = 0;
        for (name, value) in name.into_iter().chain(params) {
            len += name.as_str().len() + value.len();
            if value.len() > VALUE_LEN_MAX || len > VALUES_LEN_MAX {
                return Err(RequestError::Unsendable(format!(
                    "what the header `{name}` repeats is too long: a header may have {VALUE_LEN_MAX} bytes, and all that \
                     repeat something {VALUES_LEN_MAX} together"
                )));
            }
            if let Ok(value) = HeaderValue::from_str(&value) {
                to.insert(name, value);
            }
        }
        Ok(())
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
    use crate::protocol::mcp::requests;

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

    #[tokio::test]
    async fn only_a_modern_server_is_told_in_headers_what_the_body_says() {
        let headers = |version: &str, method: &str| {
            let link = Link::to_nowhere();
            link.connection.set_version(ProtocolVersion::parse(version).unwrap());
            let head = Head { method: method.to_owned(), name: Some("a".to_owned()) };
            let headers = head.headers(&link, &[("mcp-param-b".to_owned(), "b".to_owned())]);
            let headers = headers.unwrap();
            let value =
                |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
            ["mcp-method", "mcp-name", "mcp-param-b"].map(value)
        };
        let all = |method: &str| [method, "a", "b"].map(|value| Some(value.to_owned()));
        assert_eq!(headers("2026-07-28", "tools/call"), all("tools/call"));
        assert_eq!(headers("2025-11-25", "tools/call"), [const { None }; 3]);
        // Before it is known what it is: the first is for modern servers alone, the other for legacy ones.
        assert_eq!(headers("2025-11-25", "server/discover"), all("server/discover"));
        assert_eq!(headers("2026-07-28", "initialize"), [const { None }; 3]);
    }

    #[tokio::test]
    async fn what_is_too_long_for_a_header_is_not_sent() {
        let link = Link::to_nowhere();
        link.connection.set_version(ProtocolVersion::LATEST);
        let check = |name: &str, params: &[&str]| {
            let head = Head { method: "tools/call".to_owned(), name: Some(name.to_owned()) };
            let param =
                |(at, value): (usize, &&str)| (format!("mcp-param-{at}"), (*value).to_owned());
            let params: Vec<_> = params.iter().enumerate().map(param).collect();
            head.headers(&link, &params).map(drop)
        };
        let (fits, over) = ("x".repeat(VALUE_LEN_MAX), "x".repeat(VALUE_LEN_MAX + 1));
        let half = "x".repeat(VALUE_LEN_MAX / 2);
        assert_eq!((check(&fits, &[&half]), check("a", &[&fits, &half])), (Ok(()), Ok(())));
        let is_refused = |outcome, header: &str| match outcome {
            Err(RequestError::Unsendable(why)) => assert!(why.contains(header), "{why}"),
            other => panic!("{other:?}"),
        };
        is_refused(check(&over, &[]), "mcp-name");
        // It is what it is encoded to that counts.
        is_refused(check(&"é".repeat(VALUE_LEN_MAX / 2), &[]), "mcp-name");
        is_refused(check("a", &["b", &over]), "mcp-param-1");
        is_refused(check("a", &[&fits, &half, &half]), "mcp-param-2");
    }
}
