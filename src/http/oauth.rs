//! Tells clients without a token where to get one. Served without authentication.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};

use super::error;
use super::state::AppState;

/// Returns the metadata of the gateway as a protected resource (RFC 9728). All addresses share it,
/// since a token is valid at all of them.
pub(super) async fn metadata(State(app): State<Arc<AppState>>, uri: Uri) -> Response {
    match &app.resource {
        Some(resource) => {
            let content_type = [(header::CONTENT_TYPE, "application/json")];
            (content_type, resource.metadata().to_owned()).into_response()
        }
        None => error::no_such_path(uri).await,
    }
}
