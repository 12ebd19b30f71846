//! Answers one request in the form of its era.
//!
//! A request whose `_meta` names its version is modern, any other is legacy. Nothing is kept from
//! one request to the next.

use std::pin::Pin;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::tools::{self, Called, Outcome};
use crate::protocol::jsonrpc::framing::type_name;
use crate::protocol::jsonrpc::{Frame, INVALID_PARAMS, METHOD_NOT_FOUND};
use crate::protocol::mcp::params::text_of;
use crate::protocol::mcp::{
    Era, IMPLEMENTATION_NAME, IMPLEMENTATION_VERSION, ProtocolVersion,
    UNSUPPORTED_PROTOCOL_VERSION, meta, method,
};

/// Time for which a client may cache the tool list, which changes only with the program.
const TTL_MS: u64 = 3_600_000;

/// An answer that takes time.
pub(super) type Pending = Pin<Box<dyn Future<Output = Frame> + Send>>;

pub(super) enum RpcAnswer {
    Now(Frame),
    Later(Pending),
}

/// An error to answer a request with.
struct RpcRefusal {
    code: i64,
    message: String,
    data: Option<Box<RawValue>>,
}

/// The members that any of the methods reads. Absent and `null` are equivalent.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolParams<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    cursor: Option<&'a RawValue>,
    #[serde(borrow)]
    protocol_version: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

/// The names are those of [`meta`], as the tests check: `rename` cannot take constants.
#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    protocol_version: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientCapabilities")]
    client_capabilities: Option<&'a RawValue>,
}

/// Answers a request, at once or later.
pub(super) fn answer(id: &RawValue, method: &str, params: Option<&RawValue>) -> RpcAnswer {
    dispatch(id, method, params).unwrap_or_else(|refusal| {
        let RpcRefusal { code, message, data } = refusal;
        RpcAnswer::Now(Frame::error(Some(id), code, &message, data.as_deref()))
    })
}

/// Writes the answer to a `tools/call`.
fn call_result(id: &RawValue, era: Era, outcome: &Outcome<'_>) -> Frame {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct CallResult<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        result_type: Option<&'static str>,
        content: [Content<'a>; 1],
        #[serde(skip_serializing_if = "Option::is_none")]
        structured_content: Option<&'a Value>,
        is_error: bool,
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<&'static RawValue>,
    }
    #[derive(Serialize)]
    struct Content<'a> {
        r#type: &'static str,
        text: &'a str,
    }
    let is_modern = era == Era::Modern;
    Frame::result(
        id,
        &CallResult {
            result_type: is_modern.then_some("complete"),
            content: [Content { r#type: "text", text: &outcome.text }],
            structured_content: outcome.structured.as_ref(),
            is_error: outcome.is_error,
            meta: is_modern.then_some(&RESULT_META),
        },
    )
}

fn dispatch(
    id: &RawValue,
    method: &str,
    params: Option<&RawValue>,
) -> Result<RpcAnswer, RpcRefusal> {
    let params = params.map(|params| read_object::<ToolParams<'_>>("params", params));
    let params = params.transpose()?.unwrap_or_default();
    let era = params.era()?;
    let frame = match (method, era) {
        (method::TOOLS_CALL, _) => return call(id, era, &params),
        (method::TOOLS_LIST, _) => tools_list(id, era, &params)?,
        (method::DISCOVER, Era::Modern) => Frame::result(id, &*DISCOVER_RESULT),
        (method::LISTEN, Era::Modern) => acknowledge(id),
        (method::INITIALIZE, _) => initialize(id, &params),
        (method::PING, Era::Legacy) => Frame::result(id, &json!({})),
        (method::DISCOVER | method::LISTEN, Era::Legacy) => {
            let key = meta::PROTOCOL_VERSION;
            return Err(RpcRefusal::params(format!("`_meta` must have `{key}`")));
        }
        _ => {
            let message = format!("there is no method `{method}`");
            return Err(RpcRefusal { code: METHOD_NOT_FOUND, message, data: None });
        }
    };
    Ok(RpcAnswer::Now(frame))
}

fn call(id: &RawValue, era: Era, params: &ToolParams<'_>) -> Result<RpcAnswer, RpcRefusal> {
    let name = params.name.and_then(text_of);
    let name =
        name.ok_or_else(|| RpcRefusal::params("`name` must be a string, the name of the tool"))?;
    match tools::call(&name, params.arguments) {
        Some(Called::Done(outcome)) => Ok(RpcAnswer::Now(call_result(id, era, &outcome))),
        Some(Called::Later(work)) => {
            let id = id.to_owned();
            Ok(RpcAnswer::Later(Box::pin(async move { call_result(&id, era, &work.await) })))
        }
        None => Err(RpcRefusal::params(format!("there is no tool `{name}`"))),
    }
}

fn tools_list(id: &RawValue, era: Era, params: &ToolParams<'_>) -> Result<Frame, RpcRefusal> {
    if params.cursor.is_some() {
        return Err(RpcRefusal::params("`cursor` must be absent: the list has one page"));
    }
    Ok(match era {
        Era::Legacy => Frame::result(id, &*LEGACY_TOOLS),
        Era::Modern => Frame::result(id, &*MODERN_TOOLS),
    })
}

/// Answers the handshake without keeping anything. An unknown version gets the newest legacy one.
fn initialize(id: &RawValue, params: &ToolParams<'_>) -> Frame {
    let version = params
        .protocol_version
        .and_then(text_of)
        .and_then(|version| ProtocolVersion::parse(&version))
        .filter(|version| version.era() == Era::Legacy)
        .unwrap_or(ProtocolVersion::LATEST_LEGACY);
    let result = json!({
        "protocolVersion": version.as_str(),
        "capabilities": {"tools": {}},
        "serverInfo": server_info(),
    });
    Frame::result(id, &result)
}

/// Acknowledges a subscription. This server never sends notifications, so it agrees to none and
/// keeps nothing: the request stays unanswered for as long as the client wants.
fn acknowledge(id: &RawValue) -> Frame {
    let subscription = meta::SUBSCRIPTION_ID;
    let params = format!(r#"{{"_meta":{{"{subscription}":{}}},"notifications":{{}}}}"#, id.get());
    Frame::notification(method::ACKNOWLEDGED, &params)
}

static RESULT_META: LazyLock<Box<RawValue>> =
    LazyLock::new(|| raw(&json!({meta::SERVER_INFO: server_info()})));

static LEGACY_TOOLS: LazyLock<Box<RawValue>> =
    LazyLock::new(|| raw(&json!({"tools": tools::definitions()})));

static MODERN_TOOLS: LazyLock<Box<RawValue>> = LazyLock::new(|| {
    raw(&json!({
        "resultType": "complete",
        "tools": tools::definitions(),
        "ttlMs": TTL_MS,
        "cacheScope": "public",
        "_meta": {meta::SERVER_INFO: server_info()},
    }))
});

static DISCOVER_RESULT: LazyLock<Box<RawValue>> = LazyLock::new(|| {
    raw(&json!({
        "resultType": "complete",
        "supportedVersions": modern_versions(),
        "capabilities": {"tools": {}},
        "ttlMs": TTL_MS,
        "cacheScope": "public",
        "_meta": {meta::SERVER_INFO: server_info()},
    }))
});

fn server_info() -> Value {
    let name = format!("{IMPLEMENTATION_NAME}-std");
    json!({"name": name, "version": IMPLEMENTATION_VERSION})
}

fn modern_versions() -> Vec<&'static str> {
    let versions = ProtocolVersion::ALL.into_iter();
    versions.filter(|v| v.era() == Era::Modern).map(ProtocolVersion::as_str).collect()
}

fn raw(value: &Value) -> Box<RawValue> {
    to_raw_value(value).expect("values are plain data")
}

impl ToolParams<'_> {
    /// Returns the era of the request. A modern one must be complete and of a supported version.
    fn era(&self) -> Result<Era, RpcRefusal> {
        let Some(meta) = self.meta else { return Ok(Era::Legacy) };
        let meta: Meta<'_> = read_object("_meta", meta)?;
        let Some(version) = meta.protocol_version else { return Ok(Era::Legacy) };
        let Some(version) = text_of(version) else {
            let (key, kind) = (meta::PROTOCOL_VERSION, type_name(version.get()));
            return Err(RpcRefusal::params(format!("`{key}` must be a string, and it is {kind}")));
        };
        if ProtocolVersion::parse(&version).map(ProtocolVersion::era) != Some(Era::Modern) {
            let data = json!({"supported": modern_versions(), "requested": version});
            let message = "Unsupported protocol version".to_owned();
            let code = UNSUPPORTED_PROTOCOL_VERSION;
            return Err(RpcRefusal { code, message, data: Some(raw(&data)) });
        }
        if !meta.client_capabilities.is_some_and(|it| it.get().starts_with('{')) {
            let key = meta::CLIENT_CAPABILITIES;
            return Err(RpcRefusal::params(format!("`_meta` must have `{key}`, an object")));
        }
        Ok(Era::Modern)
    }
}

fn read_object<'a, T: Deserialize<'a>>(name: &str, raw: &'a RawValue) -> Result<T, RpcRefusal> {
    // Without this check serde would also accept an array, member by member.
    if !raw.get().starts_with('{') {
        let kind = type_name(raw.get());
        return Err(RpcRefusal::params(format!("`{name}` must be an object, and it is {kind}")));
    }
    serde_json::from_str(raw.get())
        .map_err(|error| RpcRefusal::params(format!("`{name}` cannot be read: {error}")))
}

impl RpcRefusal {
    fn params(message: impl Into<String>) -> Self {
        Self { code: INVALID_PARAMS, message: message.into(), data: None }
    }
}
