//! Adds the headers that allowed browser origins need (CORS).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{Method, header};
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::http::headers::{
    ATTEMPTS, CALL_ID, OUTCOME, PROTOCOL_VERSION, RATE_LIMIT, RATE_LIMIT_POLICY, SERVER_TIMING,
    SESSION_ID,
};
use crate::http::state::AppState;

/// The time for which a browser keeps the answer to its preflight request.
const MAX_AGE: Duration = Duration::from_secs(10 * 60);

/// The routes of a listener. Two routers instead of a layer around one: requests without `Origin`,
/// which are most, do not pay for CORS.
#[derive(Clone)]
pub struct Routes {
    everyone: HyperRouter,
    pages: Option<(HyperRouter, Arc<AppState>)>,
}

type HyperRouter = TowerToHyperService<Router>;

impl Routes {
    /// Returns routes whose answers no page of another site may read.
    pub(crate) fn new(everyone: Router) -> Self {
        Self { everyone: TowerToHyperService::new(everyone), pages: None }
    }

    /// Adds the router for allowed origins; it has [`layer`] on the routes that they may read.
    pub(crate) fn with_pages(self, pages: Router, app: Arc<AppState>) -> Self {
        Self { pages: Some((TowerToHyperService::new(pages), app)), ..self }
    }
}

impl Service<Request<Incoming>> for Routes {
    type Response = Response;
    type Error = Infallible;
    type Future = <HyperRouter as Service<Request<Incoming>>>::Future;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        if let Some((pages, app)) = &self.pages
            && let Some(origin) = request.headers().get(header::ORIGIN)
            && app.origins.allows_origin(origin)
        {
            return pages.call(request);
        }
        self.everyone.call(request)
    }
}

/// Answers preflight requests and lets the page read the answer. [`Routes`] has checked the origin.
pub(crate) fn layer() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::mirror_request())
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            SESSION_ID.clone(),
            PROTOCOL_VERSION.clone(),
            CALL_ID.clone(),
            OUTCOME.clone(),
            SERVER_TIMING.clone(),
            ATTEMPTS.clone(),
            RATE_LIMIT.clone(),
            RATE_LIMIT_POLICY.clone(),
            header::RETRY_AFTER,
            header::WWW_AUTHENTICATE,
        ])
        .max_age(MAX_AGE)
}
