//! The headers of the protocol. Some repeat parts of the message.

use std::borrow::Cow;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;

use super::HttpEndpoint;
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

/// Limits for one repeated value, and for all of them with their names. Many servers accept 8 or
/// 16 KiB of headers, and close the whole connection beyond that. Over HTTP/2 all tenants share it.
const VALUE_LEN_MAX: usize = 4 * 1024;
const VALUES_LEN_MAX: usize = 8 * 1024;

/// The parts of a message that headers repeat.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MessageInfo {
    /// Empty for an answer.
    pub(super) method: String,
    name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamedParams {
    name: Option<String>,
    uri: Option<String>,
    task_id: Option<String>,
}

impl MessageInfo {
    pub(super) fn of(frame: &Frame) -> Self {
        let bytes = frame.bytes();
        let (method, params) = match decode(&bytes) {
            Ok(
                Message::Request { method, params, .. } | Message::Notification { method, params },
            ) => (method.into_owned(), params),
            Ok(Message::Response { .. }) | Err(_) => (String::new(), None),
        };
        let params =
            || params.and_then(|params| serde_json::from_str::<NamedParams>(params.get()).ok());
        let name = match method.as_str() {
            method::TOOLS_CALL | method::PROMPTS_GET => params().and_then(|params| params.name),
            method::RESOURCES_READ => params().and_then(|params| params.uri),
            other if other.starts_with("tasks/") => params().and_then(|params| params.task_id),
            _ => None,
        };
        Self { method, name }
    }

    /// Returns all headers of a message. `params` are those of the call, written for the server's
    /// era. A legacy server gets no header that repeats the method or the name.
    pub(super) fn headers(
        &self,
        endpoint: &HttpEndpoint,
        params: &[(String, String)],
    ) -> Result<HeaderMap, RequestError> {
        // The probe uses the newest version. `initialize` negotiates the version, so it names none.
        let version = match self.method.as_str() {
            method::DISCOVER => Some(ProtocolVersion::LATEST),
            method::INITIALIZE => None,
            _ => endpoint.connection.version(),
        };
        let mut headers = common(endpoint, version);
        headers.insert(ACCEPT, BOTH);
        headers.insert(CONTENT_TYPE, JSON);
        let is_modern = version.is_some_and(|version| version.era() == Era::Modern);
        self.add_call(is_modern, params, &mut headers)?;
        Ok(headers)
    }

    fn add_call(
        &self,
        is_modern: bool,
        params: &[(String, String)],
        to: &mut HeaderMap,
    ) -> Result<(), RequestError> {
        if let Ok(method) = HeaderValue::from_str(&self.method)
            && is_modern
            && !method.is_empty()
        {
            to.insert(METHOD, method);
        }
        let name = self.name.as_deref().filter(|_| is_modern);
        let name = name.map(|name| (NAME, encode(name)));
        let params = params.iter().filter_map(|(name, value)| {
            Some((name.parse::<HeaderName>().ok()?, Cow::Borrowed(value.as_str())))
        });
        let mut len = 0;
        for (name, value) in name.into_iter().chain(params) {
            len += name.as_str().len() + value.len();
            if value.len() > VALUE_LEN_MAX || len > VALUES_LEN_MAX {
                return Err(RequestError::Unsendable(format!(
                    "the value that the header `{name}` repeats is too long: one such header may \
                     have {VALUE_LEN_MAX} bytes, and all of them together {VALUES_LEN_MAX}"
                )));
            }
            if let Ok(value) = HeaderValue::from_str(&value) {
                to.insert(name, value);
            }
        }
        Ok(())
    }
}

/// Returns the headers of a request that opens a stream or ends the session.
pub(super) fn of_stream(endpoint: &HttpEndpoint, last_event_id: Option<&str>) -> HeaderMap {
    let mut headers = common(endpoint, endpoint.connection.version());
    headers.insert(ACCEPT, EVENTS);
    if let Some(id) = last_event_id.and_then(|id| HeaderValue::from_str(id).ok()) {
        headers.insert(LAST_EVENT_ID, id);
    }
    headers
}

fn common(endpoint: &HttpEndpoint, version: Option<ProtocolVersion>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(version) = version {
        headers.insert(VERSION, HeaderValue::from_static(version.as_str()));
    }
    if let Some(session) = endpoint.session.get() {
        headers.insert(SESSION, session.clone());
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::mcp::requests;

    #[test]
    fn method_and_name_are_read_from_the_message() {
        let info =
            |method: &str, params: &str| MessageInfo::of(&Frame::request(1, method, &[params]));
        let name_of = |method, params| info(method, params).name;
        assert_eq!(name_of("tools/call", r#"{"name":"a","arguments":{"name":1}}"#).unwrap(), "a");
        assert_eq!(name_of("prompts/get", r#"{"name":"é"}"#).unwrap(), "é");
        assert_eq!(name_of("resources/read", r#"{"uri":"x://y","name":"n"}"#).unwrap(), "x://y");
        assert_eq!(name_of("tasks/get", r#"{"taskId":"t"}"#).unwrap(), "t");
        assert_eq!(name_of("tools/list", r#"{"name":"a"}"#), None);
        assert_eq!(info("tools/list", "{}").method, "tools/list");
        assert_eq!(MessageInfo::of(&requests::initialized()).method, "notifications/initialized");
        let answer = Frame::error(None, 1, "no", None);
        assert_eq!(MessageInfo::of(&answer), MessageInfo { method: String::new(), name: None });
    }

    #[tokio::test]
    async fn only_a_modern_server_gets_headers_that_repeat_method_and_name() {
        let headers = |version: &str, method: &str| {
            let endpoint = HttpEndpoint::unreachable();
            endpoint.connection.set_version(ProtocolVersion::parse(version).unwrap());
            let info = MessageInfo { method: method.to_owned(), name: Some("a".to_owned()) };
            let headers = info.headers(&endpoint, &[("traceparent".to_owned(), "b".to_owned())]);
            let headers = headers.unwrap();
            let value =
                |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
            ["mcp-method", "mcp-name", "traceparent"].map(value)
        };
        let all = |method: &str| [method, "a", "b"].map(|value| Some(value.to_owned()));
        let call_alone = [None, None, Some("b".to_owned())];
        assert_eq!(headers("2026-07-28", "tools/call"), all("tools/call"));
        assert_eq!(headers("2025-11-25", "tools/call"), call_alone);
        // Independent of the version: one is for modern servers only, the other for legacy ones.
        assert_eq!(headers("2025-11-25", "server/discover"), all("server/discover"));
        assert_eq!(headers("2026-07-28", "initialize"), call_alone);
    }

    #[tokio::test]
    async fn a_value_that_is_too_long_for_a_header_is_not_sent() {
        let endpoint = HttpEndpoint::unreachable();
        endpoint.connection.set_version(ProtocolVersion::LATEST);
        let check = |name: &str, params: &[&str]| {
            let info = MessageInfo { method: "tools/call".to_owned(), name: Some(name.to_owned()) };
            let param =
                |(at, value): (usize, &&str)| (format!("mcp-param-{at}"), (*value).to_owned());
            let params: Vec<_> = params.iter().enumerate().map(param).collect();
            info.headers(&endpoint, &params).map(drop)
        };
        let (fits, over) = ("x".repeat(VALUE_LEN_MAX), "x".repeat(VALUE_LEN_MAX + 1));
        let half = "x".repeat(VALUE_LEN_MAX / 2);
        assert_eq!((check(&fits, &[&half]), check("a", &[&fits, &half])), (Ok(()), Ok(())));
        let is_refused = |outcome, header: &str| match outcome {
            Err(RequestError::Unsendable(why)) => assert!(why.contains(header), "{why}"),
            other => panic!("{other:?}"),
        };
        is_refused(check(&over, &[]), "mcp-name");
        // The encoded length counts.
        is_refused(check(&"é".repeat(VALUE_LEN_MAX / 2), &[]), "mcp-name");
        is_refused(check("a", &["b", &over]), "mcp-param-1");
        is_refused(check("a", &[&fits, &half, &half]), "mcp-param-2");
    }
}
