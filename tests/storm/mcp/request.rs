//! The requests of a client.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use rand::RngExt;
use trunkline::protocol::mcp::{Era, ProtocolVersion, meta, method};

use crate::plan::{Plan, SERVERS, rng};
use crate::round::server_name;

/// How one call is made; drawn, like its plan.
#[derive(Clone, Copy)]
pub struct Manner {
    /// How the client speaks.
    pub era: Era,
    /// Whether to call where all servers are shown together.
    pub among_all: bool,
    /// Whether to ask for progress.
    pub progress: bool,
    /// Modern: whether to ask for log lines.
    pub logs: bool,
    /// How long the client leaves the answer unread once it has begun.
    pub unread: Option<Duration>,
    /// Modern: whether the client then hangs up instead of reading on.
    pub hangs_up: bool,
    /// Legacy: whether to give a call up by saying so, and not by hanging up.
    pub says_so: bool,
}

/// One call, ready to be sent, and what must come back with its answer.
pub struct Call {
    pub manner: Manner,
    /// As it is written in JSON.
    pub id: String,
    /// The token for progress, if it is asked for.
    pub token: Option<String>,
    endpoint: Endpoint,
    tool: String,
    mark: String,
    timeout_ms: u128,
}

/// The endpoint: of one server, or of all.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Endpoint(pub Option<usize>);

impl Call {
    pub fn new(plan: &Plan, server: usize) -> Self {
        let mut rng = rng((&plan.mark, "manner"));
        let mut manner = Manner {
            era: if rng.random_ratio(1, 2) { Era::Modern } else { Era::Legacy },
            among_all: rng.random_ratio(1, 4),
            progress: rng.random_ratio(1, 3),
            says_so: rng.random_ratio(2, 3),
            logs: rng.random_ratio(1, 3),
            unread: rng.random_ratio(1, 12).then(|| Duration::from_millis(rng.random_range(1..40))),
            hangs_up: rng.random_ratio(1, 2),
        };
        if server >= SERVERS {
            // A server that has left a call unanswered has its log lines passed to nobody.
            manner = Manner { era: Era::Modern, logs: true, unread: None, ..manner };
        }
        // Not drawn: all clients of all tenants have the same.
        let number = plan.client_id;
        let id =
            if number.is_multiple_of(3) { format!("\"{number}\"") } else { number.to_string() };
        let token =
            if number.is_multiple_of(2) { number.to_string() } else { "\"progress\"".to_owned() };
        let tool = match manner.among_all {
            true => format!("{}__echo", server_name(server)),
            false => "echo".to_owned(),
        };
        Self {
            manner,
            id,
            token: manner.progress.then_some(token),
            endpoint: Endpoint((!manner.among_all).then_some(server)),
            tool,
            mark: plan.mark.clone(),
            timeout_ms: plan.timeout.as_millis().max(1),
        }
    }

    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// In the modern era each request says all about itself, in headers too.
    pub fn modern(&self) -> Request<Full<Bytes>> {
        let version = ProtocolVersion::LATEST.as_str();
        let mut meta = about_client();
        if let Some(token) = &self.token {
            meta += &format!(",\"progressToken\":{token}");
        }
        if self.manner.logs {
            meta += &format!(",\"{}\":\"debug\"", meta::LOG_LEVEL);
        }
        let headers = [
            ("mcp-protocol-version", version),
            ("mcp-method", method::TOOLS_CALL),
            ("mcp-name", &self.tool),
            ("trunkline-timeout-ms", &self.timeout_ms.to_string()),
        ];
        post(self.endpoint, &headers, self.body(&meta))
    }

    /// In the legacy era it belongs to a session.
    pub fn legacy(&self, session: &str) -> Request<Full<Bytes>> {
        let meta = self.token.as_ref().map(|token| format!("\"progressToken\":{token}"));
        let timeout = self.timeout_ms.to_string();
        let headers = in_session(session);
        let headers = [headers[0], headers[1], ("trunkline-timeout-ms", &timeout)];
        post(self.endpoint, &headers, self.body(&meta.unwrap_or_default()))
    }

    fn body(&self, meta: &str) -> String {
        let Self { id, tool, mark, .. } = self;
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{}\",\"params\":{{\"name\":\"{tool}\
                \",\"arguments\":{{\"mark\":\"{mark}\"}},\"_meta\":{{{meta}}}}}}}",
            method::TOOLS_CALL
        )
    }

    /// Legacy: says that the answer is not wanted any more.
    pub fn cancelled(&self, session: &str) -> Request<Full<Bytes>> {
        let body = format!(
            r#"{{"jsonrpc":"2.0","method":"{}","params":{{"requestId":{}}}}}"#,
            method::CANCELLED,
            self.id
        );
        post(self.endpoint, &in_session(session), body)
    }
}

/// Modern: tells who the client is, as members of `_meta`.
fn about_client() -> String {
    let version = ProtocolVersion::LATEST.as_str();
    format!(
        r#""{}":"{version}","{}":{{"name":"storm","version":"1"}},"{}":{{}}"#,
        meta::PROTOCOL_VERSION,
        meta::CLIENT_INFO,
        meta::CLIENT_CAPABILITIES,
    )
}

/// Modern: listens to a resource of one server.
pub fn listen(server: usize, uri: &str) -> Request<Full<Bytes>> {
    let body = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{}\",\"params\":{{\"notifications\":\
         {{\"resourceSubscriptions\":[\"{uri}\"]}},\"_meta\":{{{}}}}}}}",
        method::LISTEN,
        about_client()
    );
    let version = ProtocolVersion::LATEST.as_str();
    let headers = [("mcp-protocol-version", version), ("mcp-method", method::LISTEN)];
    post(Endpoint(Some(server)), &headers, body)
}

/// Legacy: opens a session.
pub fn initialize(endpoint: Endpoint) -> Request<Full<Bytes>> {
    let version = ProtocolVersion::LATEST_LEGACY.as_str();
    let body = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"{}\",\
         \"params\":{{\"protocolVersion\":\"{version}\
            \",\"capabilities\":{{}},\"clientInfo\":{{\"name\":\"storm\",\"version\":\"1\"}}}}}}",
        method::INITIALIZE
    );
    post(endpoint, &[], body)
}

/// Legacy: asks whether the session is there.
pub fn ping(endpoint: Endpoint, session: &str) -> Request<Full<Bytes>> {
    let body = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"{}"}}"#, method::PING);
    post(endpoint, &in_session(session), body)
}

fn in_session(session: &str) -> [(&'static str, &str); 2] {
    let version = ProtocolVersion::LATEST_LEGACY.as_str();
    [("mcp-protocol-version", version), ("mcp-session-id", session)]
}

fn post(endpoint: Endpoint, headers: &[(&str, &str)], body: String) -> Request<Full<Bytes>> {
    let path = match endpoint.0 {
        Some(server) => format!("/mcp/{}", server_name(server)),
        None => "/mcp".to_owned(),
    };
    let request = Request::post(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(Full::from(body)).expect("plain headers")
}
