//! Reads the request of a batch. Whatever is wrong with it is found before anything runs.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::graph::Graph;
use super::references::{Arguments, InvalidReference, shown};
use crate::protocol::jsonrpc::framing::{DEPTH_MAX, deeper_than};
use crate::protocol::jsonrpc::members::Text;
use crate::tenants::Tenant;

/// The largest `[batch] max_calls`.
pub const CALLS_MAX: usize = 10_000;
const ID_LEN_MAX: usize = 64;
/// The longest time that a batch may take.
pub const TIMEOUT_MS_MAX: u64 = 60 * 60 * 1000;
const TIMEOUT_MS_DEFAULT: u64 = 5 * 60 * 1000;
/// Calls of one batch that run at once, unless the request or the tenant's limit says otherwise.
const CONCURRENCY_DEFAULT: usize = 32;
pub const CONCURRENCY_MAX: usize = 1000;
/// References and dependencies of a whole batch: each is looked up when its call begins.
const EDGES_MAX: usize = 20_000;

/// A checked batch.
#[derive(Debug)]
pub struct Batch {
    pub calls: Vec<BatchCall>,
    pub graph: Graph,
    pub timeout: Duration,
    pub concurrency: usize,
    pub on_error: OnError,
    pub when_limited: WhenLimited,
}

#[derive(Debug)]
pub struct BatchCall {
    pub id: String,
    pub server: String,
    pub tool: String,
    pub arguments: Arguments,
    pub timeout: Option<Duration>,
    pub if_dependency_fails: IfDependencyFails,
    /// The call's text in the request, before references are replaced.
    pub text: Bytes,
}

/// Says whether calls still begin after one has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    #[default]
    Continue,
    Stop,
}

/// Says whether a call that the tenant's own limits refuse waits for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenLimited {
    #[default]
    Wait,
    Fail,
}

/// Says whether a call runs although a call that it depends on has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IfDependencyFails {
    #[default]
    Fail,
    Run,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBatch {
    #[error("the body is not a batch: {0}")]
    Malformed(String),
    #[error("the body is nested deeper than {DEPTH_MAX} levels")]
    TooDeep,
    #[error("`calls` is empty; a batch has from 1 to {max} calls")]
    NoCalls { max: usize },
    #[error("a batch may have at most {max} calls (`[batch] max_calls`); send several batches")]
    TooManyCalls { max: usize },
    #[error(
        "the calls have more than {EDGES_MAX} dependencies and references together; send several \
         batches"
    )]
    TooManyEdges,
    #[error("`{name}` must be from 1 to {max}, and it is {value}")]
    OutOfRange { name: &'static str, max: u64, value: u64 },
    #[error("call {index}: {why}")]
    Call { index: usize, why: InvalidCall },
    #[error("these calls wait for each other: {}", .0.join(" → "))]
    Cycle(Vec<String>),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCall {
    #[error("{0}")]
    Malformed(String),
    #[error("`id` must be 1 to {ID_LEN_MAX} characters of A-Z, a-z, 0-9, `-` and `_`")]
    Id,
    #[error("the id `{0}` is used by an earlier call too")]
    DuplicateId(String),
    #[error("`arguments` must be an object")]
    Arguments,
    #[error("`timeout_ms` must be from 1 to {TIMEOUT_MS_MAX}")]
    Timeout,
    #[error("`depends_on` names `{0}`, and no call of this batch has that id")]
    UnknownDependency(String),
    #[error("`arguments`: {0}")]
    Reference(#[from] InvalidReference),
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchText<'a> {
    #[schemars(range(min = 1, max = 3_600_000))]
    timeout_ms: Option<u64>,
    #[schemars(range(min = 1, max = 1000))]
    max_concurrency: Option<u64>,
    #[serde(default)]
    on_error: OnError,
    #[serde(default)]
    when_limited: WhenLimited,
    #[serde(borrow, deserialize_with = "bounded::<_, _, CALLS_MAX>")]
    #[schemars(with = "Vec<CallText<'_>>", length(min = 1))]
    calls: Vec<&'a RawValue>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CallText<'a> {
    #[serde(borrow)]
    #[schemars(regex(pattern = "^[A-Za-z0-9_-]{1,64}$"))]
    id: Cow<'a, str>,
    server: String,
    tool: String,
    #[serde(borrow)]
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    arguments: Option<&'a RawValue>,
    #[schemars(range(min = 1, max = 3_600_000))]
    timeout_ms: Option<u64>,
    #[serde(borrow, default, deserialize_with = "bounded::<_, _, CALLS_MAX>")]
    #[schemars(with = "Vec<String>")]
    depends_on: Vec<Text<'a>>,
    #[serde(default)]
    if_dependency_fails: IfDependencyFails,
}

/// Reads an array of at most `MAX` entries: a longer one is refused before it takes memory.
fn bounded<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MAX: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct Bounded<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Bounded<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an array of at most {MAX} entries")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
            let mut list = vec![];
            while let Some(entry) = entries.next_element()? {
                if list.len() == MAX {
                    return Err(A::Error::invalid_length(MAX + 1, &self));
                }
                list.push(entry);
            }
            Ok(list)
        }
    }
    deserializer.deserialize_seq(Bounded::<T, MAX>(PhantomData))
}

impl Batch {
    /// Reads a body with at most `calls_max` calls.
    pub fn parse(body: &Bytes, calls_max: usize) -> Result<Self, InvalidBatch> {
        // First, because this check is a plain loop: nothing recursive may see the body before it.
        if deeper_than(body, DEPTH_MAX) {
            return Err(InvalidBatch::TooDeep);
        }
        let batch: BatchText<'_> = serde_json::from_slice(body)
            .map_err(|error| InvalidBatch::Malformed(error.to_string()))?;
        let concurrency = batch.max_concurrency.unwrap_or(CONCURRENCY_DEFAULT as u64);
        let timeout_ms = batch.timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT);
        in_range("max_concurrency", concurrency, CONCURRENCY_MAX as u64)?;
        in_range("timeout_ms", timeout_ms, TIMEOUT_MS_MAX)?;
        match batch.calls.len() {
            0 => return Err(InvalidBatch::NoCalls { max: calls_max }),
            len if len > calls_max => return Err(InvalidBatch::TooManyCalls { max: calls_max }),
            _ => {}
        }
        let (calls, graph) = read_calls(body, &batch.calls)?;
        Ok(Self {
            calls,
            graph,
            timeout: Duration::from_millis(timeout_ms),
            concurrency: concurrency as usize,
            on_error: batch.on_error,
            when_limited: batch.when_limited,
        })
    }

    /// Runs no more calls at once than the tenant may.
    pub fn limit_concurrency(&mut self, tenant: &Tenant) {
        let max = tenant.policy.limit.max_in_flight.map_or(usize::MAX, |max| max as usize);
        self.concurrency = self.concurrency.min(max.max(1));
    }
}

fn in_range(name: &'static str, value: u64, max: u64) -> Result<(), InvalidBatch> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    Err(InvalidBatch::OutOfRange { name, max, value })
}

fn read_calls(body: &Bytes, texts: &[&RawValue]) -> Result<(Vec<BatchCall>, Graph), InvalidBatch> {
    let at = |index: usize| move |why: InvalidCall| InvalidBatch::Call { index, why };
    let read = texts.iter().enumerate().map(|(index, text)| {
        let malformed = |error: serde_json::Error| InvalidCall::Malformed(error.to_string());
        serde_json::from_str(text.get()).map_err(malformed).map_err(at(index))
    });
    let read: Vec<CallText<'_>> = read.collect::<Result<_, _>>()?;

    let mut indices = HashMap::with_capacity(read.len());
    for (index, call) in read.iter().enumerate() {
        check_id(&call.id).map_err(at(index))?;
        if indices.insert(&*call.id, index).is_some() {
            return Err(at(index)(InvalidCall::DuplicateId(call.id.to_string())));
        }
    }

    let mut calls = Vec::with_capacity(read.len());
    let mut dependencies = Vec::with_capacity(read.len());
    let mut edges = 0;
    for (index, (call, text)) in read.iter().zip(texts).enumerate() {
        edges += call.depends_on.len();
        let index_of = |id: &str| indices.get(id).copied();
        let arguments = read_arguments(body, call, index_of).map_err(at(index))?;
        edges += arguments.references().count();
        if edges > EDGES_MAX {
            return Err(InvalidBatch::TooManyEdges);
        }
        let mut waits_for: BTreeSet<usize> =
            arguments.references().map(|reference| reference.call).collect();
        for Text(id) in &call.depends_on {
            let unknown = || at(index)(InvalidCall::UnknownDependency(shown(id)));
            waits_for.insert(index_of(id).ok_or_else(unknown)?);
        }
        dependencies.push(waits_for);
        let timeout = read_timeout(call.timeout_ms).map_err(at(index))?;
        calls.push(BatchCall {
            id: call.id.to_string(),
            server: call.server.clone(),
            tool: call.tool.clone(),
            arguments,
            timeout,
            if_dependency_fails: call.if_dependency_fails,
            text: body.slice_ref(text.get().as_bytes()),
        });
    }
    let ids = |cycle: Vec<usize>| cycle.iter().map(|call| calls[*call].id.clone()).collect();
    let graph = Graph::new(dependencies).map_err(|cycle| InvalidBatch::Cycle(ids(cycle)))?;
    Ok((calls, graph))
}

fn check_id(id: &str) -> Result<(), InvalidCall> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_valid = (1..=ID_LEN_MAX).contains(&id.len()) && id.bytes().all(is_plain);
    if is_valid { Ok(()) } else { Err(InvalidCall::Id) }
}

fn read_timeout(timeout_ms: Option<u64>) -> Result<Option<Duration>, InvalidCall> {
    match timeout_ms {
        None => Ok(None),
        Some(ms @ 1..=TIMEOUT_MS_MAX) => Ok(Some(Duration::from_millis(ms))),
        Some(_) => Err(InvalidCall::Timeout),
    }
}

fn read_arguments(
    body: &Bytes,
    call: &CallText<'_>,
    index_of: impl Fn(&str) -> Option<usize>,
) -> Result<Arguments, InvalidCall> {
    let text = match call.arguments {
        // A tool without arguments can be called without the member.
        None => Bytes::from_static(b"{}"),
        Some(value) if value.get() == "null" => Bytes::from_static(b"{}"),
        Some(value) if value.get().starts_with('{') => body.slice_ref(value.get().as_bytes()),
        Some(_) => return Err(InvalidCall::Arguments),
    };
    Ok(Arguments::parse(text, index_of)?)
}

#[cfg(test)]
#[path = "tests/request.rs"]
mod tests;
