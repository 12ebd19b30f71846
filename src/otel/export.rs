//! Sends requests to a collector, and sends them again while it is away.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::RngExt;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::message::rejected;
use crate::common::error_chain::error_chain;
use crate::config::OtlpTarget;
use crate::telemetry::metrics::TelemetryMetrics;

/// Attempts at one request. With the pauses between them, a collector may be away for about half
/// a minute.
const ATTEMPTS_MAX: u32 = 6;
/// The pause before the second attempt; doubled for each further one.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// An answer is longer only if something is wrong.
const ANSWER_LEN_MAX: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("cannot read `{path}` (`OTEL_EXPORTER_OTLP_CERTIFICATE`): {reason}")]
    Certificate { path: String, reason: String },
    #[error("{0}")]
    Client(String),
}

/// Sends the requests of one signal.
pub(super) struct Exporter {
    client: Client,
    url: Url,
    signal: &'static str,
    metrics: TelemetryMetrics,
    /// Whether the last request failed, and the log has told so.
    is_failing: AtomicBool,
    stop: CancellationToken,
}

/// Why a request failed.
struct Failure {
    reason: String,
    is_temporary: bool,
    retry_after: Option<Duration>,
}

impl Exporter {
    pub(super) fn new(
        target: &OtlpTarget,
        metrics: TelemetryMetrics,
        signal: &'static str,
        stop: CancellationToken,
    ) -> Result<Self, ExportError> {
        let headers = target.headers.iter().filter_map(|(name, value)| {
            let mut value = HeaderValue::from_str(value.expose()).ok()?;
            value.set_sensitive(true);
            Some((name.parse::<HeaderName>().ok()?, value))
        });
        let mut client = Client::builder()
            .default_headers(headers.collect::<HeaderMap>())
            .timeout(target.timeout)
            .redirect(Policy::none());
        if let Some(path) = &target.certificate {
            let error =
                |reason| ExportError::Certificate { path: path.display().to_string(), reason };
            let pem = fs::read(path).map_err(|cause| error(cause.to_string()))?;
            let trusted =
                Certificate::from_pem_bundle(&pem).map_err(|cause| error(error_chain(&cause)))?;
            client = client.tls_certs_merge(trusted);
        }
        let client = client.build().map_err(|error| ExportError::Client(error_chain(&error)))?;
        let (url, is_failing) = (target.url.clone(), AtomicBool::new(false));
        tracing::info!(signal, url = shown(&url), "exporting {signal} to {}", shown(&url));
        Ok(Self { client, url, signal, metrics, is_failing, stop })
    }

    /// Returns the token that is cancelled when the gateway ends.
    pub(super) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Sends a request with so many records; again, if that may help. Counts those that are lost.
    pub(super) async fn send(&self, request: Vec<u8>, records: u64) {
        let request = bytes::Bytes::from(request);
        let mut pause = PAUSE;
        for attempt in 1.. {
            let failure = match self.attempt(request.clone()).await {
                Ok(rejected) => return self.sent(records, rejected),
                Err(failure) => failure,
            };
            // The end of the process does not wait for a collector that is away.
            let is_last = attempt == ATTEMPTS_MAX || self.stop.is_cancelled();
            if is_last || !failure.is_temporary {
                return self.failed(records, &failure);
            }
            let asked = failure.retry_after.unwrap_or(pause);
            let wait = asked.min(PAUSE_MAX).mul_f64(rand::rng().random_range(1.0..=1.2));
            self.stop.run_until_cancelled(sleep(wait)).await;
            pause *= 2;
        }
    }

    /// Returns how many records the collector has rejected.
    async fn attempt(&self, request: bytes::Bytes) -> Result<u64, Failure> {
        let request = self.client.post(self.url.clone()).body(request);
        let request = request.header(CONTENT_TYPE, "application/x-protobuf");
        let response = request.send().await.map_err(|error| Failure::temporary(&error))?;
        let status = response.status();
        if !status.is_success() {
            let is_temporary = matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::BAD_GATEWAY
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            );
            let retry_after = response.headers().get(RETRY_AFTER);
            let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
            let reason = format!("it answered with {status}");
            let retry_after = retry_after.map(Duration::from_secs);
            return Err(Failure { reason, is_temporary, retry_after });
        }
        let (count, reason) = rejected(&read(response).await?);
        if count > 0 {
            let signal = self.signal;
            tracing::warn!(signal, count, reason, "the collector rejected {count} of {signal}");
        }
        Ok(count)
    }

    fn sent(&self, records: u64, rejected: u64) {
        let rejected = rejected.min(records);
        self.metrics.dropped.inc_by(rejected);
        self.metrics.exported.inc_by(records - rejected);
        if self.is_failing.swap(false, Ordering::Relaxed) {
            let signal = self.signal;
            tracing::info!(signal, "{signal} are exported again");
        }
    }

    fn failed(&self, records: u64, failure: &Failure) {
        self.metrics.dropped.inc_by(records);
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            let (signal, url, reason) = (self.signal, shown(&self.url), &failure.reason);
            tracing::warn!(signal, url, reason, "{signal} cannot be exported to {url}: {reason}");
        }
    }
}

impl Failure {
    fn temporary(error: &reqwest::Error) -> Self {
        // The address is named beside it.
        let reason = error_chain(error);
        Self { reason, is_temporary: true, retry_after: None }
    }
}

async fn read(mut response: Response) -> Result<Vec<u8>, Failure> {
    let mut body = vec![];
    while let Some(chunk) = response.chunk().await.map_err(|error| Failure::temporary(&error))? {
        body.extend_from_slice(&chunk);
        if body.len() > ANSWER_LEN_MAX {
            break;
        }
    }
    Ok(body)
}

/// Returns an address without parts that may be secret.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.into()
}
