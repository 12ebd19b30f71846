//! What browsers want to be told before a page of another site may call and read the answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, Method, header};
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::http::rest::call;
use crate::http::{Front, error};

/// How long browsers need not ask again.
const MAX_AGE: Duration = Duration::from_secs(10 * 60);

/// The routes that a listener serves. Two routers and not a layer around one: calls that are not of web
/// pages, which is most, should not pay for those that are.
#[derive(Clone)]
pub struct Routes {
    everyone: HyperRouter,
    pages: Option<(HyperRouter, Arc<Front>)>,
}

type HyperRouter = TowerToHyperService<Router>;

impl Routes {
    /// No answer may be read by a page of another site.
    pub(crate) fn new(everyone: Router) -> Self {
        Self { everyone: TowerToHyperService::new(everyone), pages: None }
    }

    /// Pages that may call, and only these, are served by `pages`, which has [`layer`] where they may
    /// read the answers.
    pub(crate) fn with_pages(self, pages: Router, front: Arc<Front>) -> Self {
        Self { pages: Some((TowerToHyperService::new(pages), front)), ..self }
    }
}

impl Service<Request<Incoming>> for Routes {
    type Response = Response;
    type Error = Infallible;
    type Future = <HyperRouter as Service<Request<Incoming>>>::Future;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        if let Some((pages, front)) = &self.pages
            && let Some(origin) = request.headers().get(header::ORIGIN)
            && front.web.allows_origin(origin)
        {
            return pages.call(request);
        }
        self.everyone.call(request)
    }
}

/// Answers browsers' questions, and lets the page read the answer. [`Routes`] has checked the origin.
pub(crate) fn layer() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::mirror_request())
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            HeaderName::from_static("mcp-session-id"),
            HeaderName::from_static("mcp-protocol-version"),
            call::CALL_ID.clone(),
            call::OUTCOME.clone(),
            call::SERVER_TIMING.clone(),
            call::ATTEMPTS.clone(),
            error::RATE_LIMIT.clone(),
            error::RATE_LIMIT_POLICY.clone(),
            header::RETRY_AFTER,
            header::WWW_AUTHENTICATE,
        ])
        .max_age(MAX_AGE)
}
