//! Spans of requests over MCP.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use serde_json::value::RawValue;

use super::rpc::RpcFailure;
use super::{HttpRequest, McpRequest, text_header};
use crate::events::call::{EndedRequest, before_now};
use crate::events::{Event, Kinds, TracedRequest};
use crate::http::headers::{PROTOCOL_VERSION, trace_of};
use crate::protocol::mcp::ProtocolVersion;
use crate::protocol::mcp::trace::Trace;

impl HttpRequest {
    /// Returns the span of a request that it carries, if it is to be traced.
    pub(super) fn sample(
        &self,
        trace: Option<&Trace>,
        id: &RawValue,
        method: &'static str,
    ) -> Option<Box<TracedRequest>> {
        let mut traced = self.app.gateway.sampler().sample(trace, method)?;
        let version = text_header(&self.headers, &PROTOCOL_VERSION);
        traced.set_rpc(id.get(), version.and_then(ProtocolVersion::parse));
        Some(traced)
    }

    /// Tells of a traced request that is no call.
    pub(super) fn tell_answered(&self, traced: Box<TracedRequest>, response: &Response<Body>) {
        let code = response.extensions().get::<RpcFailure>().map(|RpcFailure(code)| *code);
        let took = self.arrived.elapsed();
        let tenant = self.caller.tenant.id.clone();
        self.app.gateway.events().tell(Kinds::TRACED, || {
            let arrived = before_now(took);
            Event::RequestEnded(Arc::new(EndedRequest { tenant, traced, arrived, took, code }))
        });
    }
}

impl McpRequest<'_> {
    /// Returns the trace that the client's span belongs to. `_meta` names the request's own one,
    /// headers that of the HTTP request.
    pub(super) fn trace(&self) -> Option<Trace> {
        self.params.trace().unwrap_or_else(|| trace_of(&self.http.headers))
    }

    /// Returns the span of the request, if it is to be traced.
    pub(super) fn sample(&self, method: &'static str) -> Option<Box<TracedRequest>> {
        self.http.sample(self.trace().as_ref(), self.id, method)
    }
}
