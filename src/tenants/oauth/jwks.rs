//! Known keys of the provider. They are fetched regularly, and when a token names an unknown one.
//! There is one fetch at a time, however many tokens come.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use jsonwebtoken::Validation;
use parking_lot::Mutex;
use reqwest::header::ACCEPT;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::TokenError;
use super::keys::{KeySet, KeySetError};
use super::token::TokenHeader;
use crate::common::error_chain::error_chain;

/// A key that the provider withdrew is accepted for so long.
const REFRESH_EVERY: Duration = Duration::from_secs(5 * 60);
/// After a failed fetch.
pub const RETRY_AFTER: Duration = Duration::from_secs(10);
/// How often tokens with unknown keys, all together, can cause a fetch.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// From the first byte sent to the last one received.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Far more than a hundred keys with their certificates.
const DOCUMENT_LEN_MAX: usize = 1 << 20;

pub(super) struct Jwks {
    client: Client,
    url: Url,
    requirements: Validation,
    /// The result of the last successful fetch.
    known: ArcSwapOption<KeySet>,
    fetches: Mutex<Fetches>,
}

struct Fetches {
    /// Cancelled when the last fetch has ended.
    last: CancellationToken,
    /// When a token last caused one.
    asked_at: Option<Instant>,
    failed: bool,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the identity provider's keys cannot be fetched; are the system's CA certificates installed?"
)]
pub struct FetchSetupError(#[from] reqwest::Error);

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{}", error_chain(.0))]
    Request(#[from] reqwest::Error),
    #[error("the status is {0}, and it must be 200; redirects are not followed")]
    Status(StatusCode),
    #[error("the answer is over {DOCUMENT_LEN_MAX} bytes")]
    TooLarge,
    #[error(transparent)]
    KeySet(#[from] KeySetError),
}

impl Jwks {
    pub(super) fn new(url: &Url, requirements: Validation) -> Result<Self, FetchSetupError> {
        let client = Client::builder()
            .redirect(Policy::none())
            .timeout(TIMEOUT)
            // It would be closed before the next fetch.
            .pool_max_idle_per_host(0);
        // A proxy of the environment is for remote hosts only.
        let client = if url.scheme() == "http" { client.no_proxy() } else { client };
        let last = CancellationToken::new();
        last.cancel();
        Ok(Self {
            client: client.build()?,
            url: url.clone(),
            requirements,
            known: ArcSwapOption::empty(),
            fetches: Mutex::new(Fetches { last, asked_at: None, failed: false }),
        })
    }

    /// Returns the claims of a valid token, by the keys known now.
    pub(super) fn check(&self, token: &str, header: &TokenHeader) -> Result<Value, TokenError> {
        self.known.load().as_ref().ok_or(TokenError::KeysUnavailable)?.check(token, header)
    }

    /// Fetches the keys now and regularly. Runs for ever.
    pub(super) async fn keep_up_to_date(self: &Arc<Self>) {
        loop {
            let fetch = self.fetch_unless_under_way(&mut self.fetches.lock());
            fetch.cancelled().await;
            let failed = self.fetches.lock().failed;
            sleep(if failed { RETRY_AFTER } else { REFRESH_EVERY }).await;
        }
    }

    /// Waits for the fetch in flight, or for a new one unless a token caused one recently.
    pub(super) async fn fetched(self: &Arc<Self>) {
        let fetch = {
            let mut fetches = self.fetches.lock();
            let recently = fetches.asked_at.is_some_and(|at| at.elapsed() < ASK_EVERY);
            if fetches.last.is_cancelled() && !recently {
                fetches.asked_at = Some(Instant::now());
                self.fetch_unless_under_way(&mut fetches);
            }
            fetches.last.clone()
        };
        fetch.cancelled().await;
    }

    /// In a task of its own, so that it ends even if nobody waits. The token is cancelled when it
    /// has ended.
    fn fetch_unless_under_way(self: &Arc<Self>, fetches: &mut Fetches) -> CancellationToken {
        if fetches.last.is_cancelled() {
            fetches.last = CancellationToken::new();
            let ended = fetches.last.clone().drop_guard();
            let jwks = self.clone();
            tokio::spawn(async move {
                jwks.fetch().await;
                drop(ended);
            });
        }
        fetches.last.clone()
    }

    async fn fetch(&self) {
        let fetched = self.try_fetch().await;
        self.fetches.lock().failed = fetched.is_err();
        match fetched {
            Ok(keys) => {
                if keys.len() == 0 {
                    tracing::warn!("the identity provider has no keys: no token is accepted");
                }
                tracing::debug!(keys = keys.len(), "the identity provider's keys were fetched");
                self.known.store(Some(Arc::new(keys)));
            }
            Err(error) => tracing::warn!(
                %error,
                "cannot fetch the identity provider's keys; known ones stay in use"
            ),
        }
    }

    async fn try_fetch(&self) -> Result<KeySet, FetchError> {
        let request = self.client.get(self.url.clone()).header(ACCEPT, "application/json");
        let mut response = request.send().await?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status(response.status()));
        }
        let mut document = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if document.len() + chunk.len() > DOCUMENT_LEN_MAX {
                return Err(FetchError::TooLarge);
            }
            document.extend_from_slice(&chunk);
        }
        Ok(KeySet::parse(&document, &self.requirements)?)
    }
}
