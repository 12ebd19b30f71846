//! Receives requests that other replicas forward: those of sessions that this replica owns, and
//! notices to all replicas.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::middleware::Next;
use axum::response::IntoResponse;
use tokio::time::Instant;

use super::body;
use super::connections::ConnectionHandle;
use super::headers::text_value;
use super::state::AppState;
use crate::cluster::{PROOF, ProofError, REFUSED_BY, REPLICA};

/// Marks a request that another replica has forwarded. This replica answers it and never forwards
/// it.
#[derive(Clone, Copy)]
pub(super) struct Forwarded;

/// Admits requests with a replica's proof only. Their callers are authenticated as any others are.
pub(super) async fn check_proof(
    State(app): State<Arc<AppState>>,
    request: Request<Body>,
    next: Next,
) -> Response<Body> {
    let Some(replicas) = &app.cluster else { return StatusCode::FORBIDDEN.into_response() };
    let (mut parts, body) = request.into_parts();
    let proof = parts.headers.remove(&PROOF);
    let proof = proof.as_ref().and_then(|proof| proof.to_str().ok()).unwrap_or_default();
    let opened = match replicas.verify_proof(proof, &parts.method, parts.uri.path()) {
        Ok(opened) => opened,
        Err(refused) => return refuse(refused, &replicas.me().id),
    };
    if let Some(connection) = parts.extensions.get::<ConnectionHandle>() {
        connection.used_by_operator();
    }
    let signature = replicas.sign(&opened);
    let deadline = Instant::now() + body::TIMEOUT;
    let mut response = match body::read(body, app.max_body, deadline).await {
        Ok(body) if opened.matches_body(&body) => {
            opened.restore_headers(&mut parts.headers);
            parts.extensions.insert(Forwarded);
            next.run(Request::from_parts(parts, Body::from(body))).await
        }
        Ok(_) => return refuse(ProofError::Invalid, &replicas.me().id),
        Err(error) => error.into_response(),
    };
    response.headers_mut().insert(&REPLICA, text_value(signature));
    response
}

fn refuse(refused: ProofError, by: &str) -> Response<Body> {
    match refused {
        ProofError::NotForUs => {
            (StatusCode::NOT_FOUND, "this is another replica\n").into_response()
        }
        // Tells a replica that means this one that it is still there.
        ProofError::Invalid => {
            let by = [(REFUSED_BY.clone(), text_value(by.to_owned()))];
            (StatusCode::FORBIDDEN, by, "only other replicas may call here\n").into_response()
        }
    }
}
