//! Spans of requests that are traced, and the decision which ones are.

use crate::protocol::mcp::requests::ProtocolVersion;
use crate::protocol::mcp::trace::{SpanContext, SpanId, Trace, new_trace_id};

/// A request that is traced. Made at its arrival; spans are made of it at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedRequest {
    pub span: SpanContext,
    /// The caller's span, if it named one.
    pub parent: Option<SpanId>,
    pub state: Option<Box<str>>,
    /// The method, also of a request over REST.
    pub method: &'static str,
    /// Only of a request over MCP.
    pub rpc: Option<RpcRequest>,
}

/// The parts of an MCP client's request that a span names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcRequest {
    /// As the client wrote it, without quotes.
    pub id: Box<str>,
    pub version: Option<ProtocolVersion>,
}

/// Decides which requests are traced.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sampler {
    #[default]
    Off,
    /// Decides alike whatever the caller says.
    Own(Share),
    /// A caller's span decides; the share is of requests without one.
    ParentBased(Share),
}

/// A share of all traces.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Out of [`Share::RANGE`].
    traced: u64,
}

impl Share {
    /// The standard has the last 56 bits of a trace's id be random.
    const RANGE: u64 = 1 << 56;
    pub const ALL: Self = Self { traced: Self::RANGE };
    pub const NONE: Self = Self { traced: 0 };

    /// Returns a share, from 0 to 1.
    pub fn of(ratio: f64) -> Self {
        Self { traced: (ratio.clamp(0.0, 1.0) * Self::RANGE as f64) as u64 }
    }

    /// Returns whether a trace is in it. All services with this share decide alike.
    fn has(self, trace_id: u128) -> bool {
        Self::RANGE - (trace_id as u64 & (Self::RANGE - 1)) <= self.traced
    }
}

impl Sampler {
    /// Returns the spans of a request, if it is to be traced.
    #[inline]
    pub fn sample(
        self,
        caller: Option<&Trace>,
        method: &'static str,
    ) -> Option<Box<TracedRequest>> {
        if self == Self::Off { None } else { self.decide(caller, method) }
    }

    fn decide(self, caller: Option<&Trace>, method: &'static str) -> Option<Box<TracedRequest>> {
        let parent = caller.map(|trace| trace.span);
        let trace_id = parent.map_or_else(new_trace_id, |parent| parent.trace_id);
        let is_sampled = match (self, parent) {
            (Self::Off, _) => false,
            (Self::ParentBased(_), Some(parent)) => parent.is_sampled(),
            (Self::Own(share) | Self::ParentBased(share), _) => share.has(trace_id),
        };
        is_sampled.then(|| {
            Box::new(TracedRequest {
                span: parent
                    .map_or_else(|| SpanContext::new_root(trace_id), SpanContext::new_child),
                parent: parent.map(|parent| parent.span_id),
                state: caller.and_then(|trace| trace.state.clone()),
                method,
                rpc: None,
            })
        })
    }
}

impl TracedRequest {
    /// Notes the id of an MCP client's request, as JSON, and the version that it names.
    pub fn set_rpc(&mut self, id: &str, version: Option<ProtocolVersion>) {
        self.rpc = Some(RpcRequest { id: id.trim_matches('"').into(), version });
    }

    /// Returns the trace that the server of one attempt is told of.
    pub fn for_server(&self, span: SpanId) -> Trace {
        Trace { span: self.span.with_span(span), state: self.state.clone() }
    }

    /// Returns the memory that it takes, roughly and never too little.
    pub(super) fn cost(&self) -> usize {
        let state = self.state.as_ref().map_or(0, |state| state.len());
        size_of::<Self>() + state + self.rpc.as_ref().map_or(0, |rpc| rpc.id.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(flags: &str) -> Trace {
        let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
        Trace::parse(&parent, Some("a=1")).unwrap()
    }

    fn count(sampler: Sampler, caller: Option<&Trace>) -> usize {
        (0..10_000).filter(|_| sampler.sample(caller, "tools/call").is_some()).count()
    }

    #[test]
    fn a_callers_span_decides_and_else_the_share() {
        let (sampled, not) = (caller("01"), caller("00"));
        for share in [Share::ALL, Share::NONE] {
            let sampler = Sampler::ParentBased(share);
            assert_eq!((count(sampler, Some(&sampled)), count(sampler, Some(&not))), (10_000, 0));
            assert_eq!(count(sampler, None), if share == Share::ALL { 10_000 } else { 0 });
            assert_eq!(count(Sampler::Own(share), Some(&not)), count(sampler, None));
        }
        assert_eq!(count(Sampler::Off, Some(&sampled)), 0);
        let part = count(Sampler::ParentBased(Share::of(0.1)), None);
        assert!((800..1200).contains(&part), "{part} of 10,000");
        assert_eq!(Share::of(1.0), Share::ALL);
        assert_eq!((Share::of(f64::NAN), Share::of(-1.0)), (Share::NONE, Share::NONE));
    }

    #[test]
    fn a_traced_request_is_a_span_of_its_callers_trace() {
        let caller = caller("03");
        let traced = Sampler::Own(Share::ALL).sample(Some(&caller), "tools/call").unwrap();
        assert_eq!(traced.span.trace_id, caller.span.trace_id);
        assert_eq!(traced.parent, Some(caller.span.span_id));
        assert_ne!(traced.span.span_id, caller.span.span_id);
        assert_eq!(traced.span.flags(), 3);
        let told = traced.for_server(SpanId::MIN);
        assert_eq!((told.span.trace_id, told.span.span_id), (caller.span.trace_id, SpanId::MIN));
        assert_eq!(told.state.as_deref(), Some("a=1"));
    }
}
