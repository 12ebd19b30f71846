//! Who calls, as a parameter of the handlers: none can forget to ask.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::Front;
use crate::gateway::{CallError, Caller};

/// A caller that may call.
pub(super) struct Authenticated(pub(super) Caller);

impl FromRequestParts<Arc<Front>> for Authenticated {
    type Rejection = CallError;

    async fn from_request_parts(parts: &mut Parts, front: &Arc<Front>) -> Result<Self, CallError> {
        front.web.check(parts)?;
        let tenant = front.anonymous.clone().ok_or(CallError::Unauthenticated)?;
        Ok(Self(Caller { tenant, session: None }))
    }
}
