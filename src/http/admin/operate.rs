//! The changes that an operator makes to what runs: cancel a call, pause a server, replace an
//! instance. Each is noted in the audit log first, and not made if it cannot be noted.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Extensions, HeaderMap, Method};
use bytes::Bytes;
use serde_json::json;

use super::ok;
use super::pins::server_id;
use crate::calls::Refusal;
use crate::cluster::{PeerRequest, end_to_end};
use crate::http::auth::Administrator;
use crate::http::error::{HttpError, HttpResult};
use crate::http::replicas::Forwarded;
use crate::http::rest::calls::id_in;
use crate::http::rest::recent::ask_others;
use crate::http::state::AppState;
use crate::registry::Server;

/// Cancels a call that waits or runs, at whichever replica.
pub(super) async fn cancel(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    extensions: Extensions,
) -> HttpResult {
    let id = id_in(path)?;
    let registry = app.gateway.registry();
    let Some(found) = registry.find_call(id) else {
        if extensions.get::<Forwarded>().is_some() {
            return Err(Refusal::NoSuchCall.into());
        }
        let path = format!("/admin/v1/calls/{id}");
        let asked = ask_others(&app, Method::DELETE, path, &headers).await;
        return asked.ok_or_else(|| Refusal::NoSuchCall.into());
    };
    let detail = json!({"tenant": found.tenant.name().as_str(), "server": found.server.as_str()});
    app.store.note_change(&actor, "call.cancel", format!("call:{id}"), detail).await?;
    match registry.cancel(id) {
        true => ok(&json!({"id": id.to_string(), "state": "cancelled"})),
        // It has ended meanwhile.
        false => Err(Refusal::NoSuchCall.into()),
    }
}

pub(super) async fn pause(
    state: State<Arc<AppState>>,
    administrator: Administrator,
    path: Path<String>,
    headers: HeaderMap,
    extensions: Extensions,
) -> HttpResult {
    set_paused(state, administrator, path, (&headers, &extensions), true).await
}

pub(super) async fn resume(
    state: State<Arc<AppState>>,
    administrator: Administrator,
    path: Path<String>,
    headers: HeaderMap,
    extensions: Extensions,
) -> HttpResult {
    set_paused(state, administrator, path, (&headers, &extensions), false).await
}

/// Pauses a server at all replicas that can be reached, or resumes it. Callers wait until their
/// deadlines.
async fn set_paused(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    Path(id): Path<String>,
    (headers, extensions): (&HeaderMap, &Extensions),
    is_paused: bool,
) -> HttpResult {
    let server = find(&app, &id)?;
    let verb = if is_paused { "pause" } else { "resume" };
    if extensions.get::<Forwarded>().is_none() {
        let (action, target) = (format!("server.{verb}"), format!("server:{id}"));
        app.store.note_change(&actor, &action, target, json!({})).await?;
    }
    app.gateway.registry().pause(&server, is_paused);
    if let Some(cluster) = &app.cluster
        && extensions.get::<Forwarded>().is_none()
    {
        let (path, headers) = (format!("/admin/v1/servers/{id}/{verb}"), end_to_end(headers));
        let request = PeerRequest { method: Method::POST, path, headers, body: Bytes::new() };
        cluster.notify(&cluster.others_and(None), &request).await;
    }
    ok(&json!({"id": id, "paused": is_paused}))
}

/// Has the next run of one instance begin, and the present one end after its calls.
pub(super) async fn replace(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    path: Result<Path<(String, usize)>, PathRejection>,
) -> HttpResult {
    let Path((id, number)) = path?;
    let server = find(&app, &id)?;
    let detail = json!({"instance": number});
    app.store.note_change(&actor, "instance.replace", format!("server:{id}"), detail).await?;
    match app.gateway.registry().replace_instance(&server, number) {
        true => ok(&json!({"id": id, "instance": number, "state": "replacing"})),
        false => Err(HttpError::NotFound(format!(
            "ready instance {number} of `{id}`: one that is not ready starts by itself, and the \
             processes of a tenant or a session are not replaced here"
        ))),
    }
}

fn find(app: &AppState, id: &str) -> Result<Arc<Server>, HttpError> {
    server_id(id)?;
    let server = app.gateway.registry().get(id);
    server.ok_or_else(|| HttpError::NotFound(format!("server `{id}`")))
}
