//! What other replicas send on: requests of sessions that this one keeps, and words for all of them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use axum::middleware::Next;
use axum::response::IntoResponse;
use tokio::time::Instant;

use super::{Front, body};
use crate::cluster::{PROOF, ProofError, REFUSED_BY, REPLICA};

/// Marks a request that another replica has sent on. It is answered here, whatever it is.
#[derive(Clone, Copy)]
pub(super) struct Relayed;

/// Lets in what other replicas send, and nothing else. Who calls is looked at afterwards, as of any request.
pub(super) async fn prove(
    State(front): State<Arc<Front>>,
    request: Request<Body>,
    next: Next,
) -> Response<Body> {
    let Some(replicas) = &front.replicas else { return StatusCode::FORBIDDEN.into_response() };
    let (mut parts, body) = request.into_parts();
    let proof = parts.headers.remove(&PROOF);
    let proof = proof.as_ref().and_then(|proof| proof.to_str().ok()).unwrap_or_default();
    let opened = match replicas.verify_proof(proof, &parts.method, parts.uri.path()) {
        Ok(opened) => opened,
        Err(refused) => return refuse(refused, &replicas.me().id),
    };
    let signature = replicas.sign(&opened);
    let deadline = Instant::now() + body::TIMEOUT;
    let mut response = match body::read(&parts.headers, body, front.max_body, deadline).await {
        Ok(body) if opened.matches_body(&body) => {
            opened.restore_headers(&mut parts.headers);
            parts.extensions.insert(Relayed);
            next.run(Request::from_parts(parts, Body::from(body))).await
        }
        Ok(_) => return refuse(ProofError::Invalid, &replicas.me().id),
        Err(error) => error.into_response(),
    };
    response.headers_mut().insert(&REPLICA, plain(&signature));
    response
}

fn plain(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("made of letters, digits, `-` and `_`")
}

fn refuse(refused: ProofError, by: &str) -> Response<Body> {
    match refused {
        ProofError::NotForUs => {
            (StatusCode::NOT_FOUND, "this is another replica\n").into_response()
        }
        // A replica that meant this one learns that it is not gone.
        ProofError::Invalid => {
            let by = [(REFUSED_BY.clone(), plain(by))];
            (StatusCode::FORBIDDEN, by, "only other replicas may call here\n").into_response()
        }
    }
}
