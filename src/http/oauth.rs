//! Tells clients without a token where to get one. Served to everybody: those who ask cannot have a token yet.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};

use super::{Front, error};

/// Metadata of this gateway as a protected resource (RFC 9728): the same at all of its addresses, since a token is good at
/// all of them.
pub(super) async fn metadata(State(front): State<Arc<Front>>, uri: Uri) -> Response {
    match &front.resource {
        Some(resource) => {
            let content_type = [(header::CONTENT_TYPE, "application/json")];
            (content_type, resource.metadata().to_owned()).into_response()
        }
        None => error::no_such_path(uri).await,
    }
}
