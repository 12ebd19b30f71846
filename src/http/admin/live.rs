//! The trunk as it is now, as events, and its last 15 minutes.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Extensions, HeaderMap};
use bytes::Bytes;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::ok;
use super::replicas::{OtherReplicas, of_replica};
use crate::http::auth::Administrator;
use crate::http::error::{HttpError, HttpResult};
use crate::http::pages::session::SessionEnd;
use crate::http::replicas::Forwarded;
use crate::http::sse::{self, MessageSource, named_event};
use crate::http::state::AppState;
use crate::trunk::feed::{Shown, Viewer};
use crate::trunk::history::{Counts, Pair, Sample, Shares};

/// Shows who holds which slot and who waits, and goes on with each change.
pub(super) async fn stream(
    State(app): State<Arc<AppState>>,
    Administrator { session, .. }: Administrator,
    headers: HeaderMap,
    extensions: Extensions,
) -> HttpResult {
    let (viewer, closing) = (app.trunk.watch(), app.closing.clone());
    let cluster = app.cluster.as_ref().filter(|_| extensions.get::<Forwarded>().is_none());
    let name = cluster.map(|cluster| cluster.me().address.to_string());
    let others = cluster.map(|it| OtherReplicas::listen(it.clone(), &headers));
    Ok(sse::respond(Frames { viewer, session, closing, name, others }))
}

struct Frames {
    viewer: Viewer,
    session: SessionEnd,
    closing: CancellationToken,
    /// The name of this replica, if it is one of several.
    name: Option<String>,
    others: Option<OtherReplicas>,
}

impl MessageSource for Frames {
    async fn next(&mut self) -> Option<Bytes> {
        let Self { viewer, session, closing, name, others } = self;
        let has_others = others.is_some();
        let of_others = async {
            match others {
                Some(others) => others.events.recv().await,
                None => None,
            }
        };
        tokio::select! {
            biased;
            () = closing.cancelled() => None,
            () = session.ended() => None,
            event = of_others, if has_others => event,
            shown = viewer.next() => {
                let event = match shown {
                    Shown::Whole(json) => named_event("whole", &[&json]),
                    Shown::Change(json) => named_event("change", &[&json]),
                };
                match name {
                    Some(name) => of_replica(&event, name),
                    None => Some(event),
                }
            }
        }
    }

    fn event(message: Bytes) -> Bytes {
        message
    }
}

/// One second, all servers and tenants together.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SecondView {
    /// In seconds since 1970.
    at: i64,
    #[serde(flatten)]
    counts: CountsView,
}

#[derive(Serialize, JsonSchema)]
struct CountsView {
    running: u32,
    waiting: u32,
    longest_wait_ms: u32,
    /// Refused by tenants' own limits.
    refused_own: u32,
    refused_other: u32,
}

/// Lists the last 15 minutes, second by second.
pub(super) async fn history(State(app): State<Arc<AppState>>, _: Administrator) -> HttpResult {
    let seconds: Vec<_> = app.trunk.read(|history| {
        let view = |it: &Sample| SecondView { at: it.at, counts: CountsView::of(&it.all) };
        history.seconds().map(view).collect()
    });
    ok(&json!({"seconds": seconds}))
}

/// Shows one second: the busiest pairs of server and tenant, and the rest together.
pub(super) async fn second(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    path: Result<Path<i64>, PathRejection>,
) -> HttpResult {
    let Path(at) = path?;
    let sample = app.trunk.read(|history| history.at(at).cloned());
    let sample = sample.ok_or_else(|| HttpError::NotFound(format!("second `{at}` any more")))?;
    ok(&second_json(&sample))
}

fn second_json(sample: &Sample) -> Value {
    let pair = |pair: &Pair| {
        let mut view = json!(CountsView::of(&pair.counts));
        view["server"] = json!(pair.server.as_str());
        view["tenant"] = json!(pair.tenant.as_str());
        view
    };
    json!({
        "at": sample.at,
        "pairs": sample.pairs.iter().map(pair).collect::<Vec<_>>(),
        "rest": CountsView::of(&sample.rest),
        "rest_pairs": sample.rest_pairs,
    })
}

impl CountsView {
    fn of(counts: &Counts) -> Self {
        Self {
            running: counts.running,
            waiting: counts.waiting,
            longest_wait_ms: counts.longest_wait_ms,
            refused_own: counts.refused.own,
            refused_other: counts.refused.other,
        }
    }
}

/// The use that a tenant made of a server's slots, and its weight.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ShareView {
    server: String,
    tenant: String,
    /// Absent of a tenant that was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
    /// Seconds of a slot in the last minute, in the last 5 minutes and in the last hour.
    used_1m: u64,
    used_5m: u64,
    used_1h: u64,
}

/// Lists how much of each server's slots each tenant has used.
pub(super) async fn shares(State(app): State<Arc<AppState>>, _: Administrator) -> HttpResult {
    let shares = app.trunk.read(|history| history.shares(Timestamp::now().as_second()));
    let tenants = app.directory.tenants();
    let weight = |name: &str| {
        let tenant = tenants.iter().find(|it| it.id.name().as_str() == name);
        tenant.map(|it| it.policy.weight)
    };
    let view = |share: Shares| ShareView {
        weight: weight(&share.tenant),
        server: share.server,
        tenant: share.tenant,
        used_1m: share.minute,
        used_5m: share.five_minutes,
        used_1h: share.hour,
    };
    ok(&json!({"shares": shares.into_iter().map(view).collect::<Vec<_>>()}))
}
