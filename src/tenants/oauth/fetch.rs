//! Fetches the identity provider's keys.

use std::time::Duration;

use reqwest::header::ACCEPT;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};

use super::keys::KeySetError;
use crate::common::error_chain::error_chain;

/// From the first byte sent to the last one received.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// Far more than a hundred keys with their certificates.
const DOCUMENT_LEN_MAX: usize = 1 << 20;

pub(super) struct KeySource {
    client: Client,
    url: Url,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the identity provider's keys cannot be fetched; are the system's CA certificates installed?"
)]
pub struct FetchSetupError(#[from] reqwest::Error);

#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("{}", error_chain(.0))]
    Request(#[from] reqwest::Error),
    #[error("the status is {0}, and it must be 200; redirects are not followed")]
    Status(StatusCode),
    #[error("the answer is over {DOCUMENT_LEN_MAX} bytes")]
    TooLarge,
    #[error(transparent)]
    KeySet(#[from] KeySetError),
}

impl KeySource {
    pub(super) fn new(url: &Url) -> Result<Self, FetchSetupError> {
        let client = Client::builder()
            .redirect(Policy::none())
            .timeout(TIMEOUT)
            // It would be closed before the next fetch.
            .pool_max_idle_per_host(0);
        // A proxy of the environment is for remote hosts only.
        let client = if url.scheme() == "http" { client.no_proxy() } else { client };
        Ok(Self { client: client.build()?, url: url.clone() })
    }

    pub(super) async fn get(&self) -> Result<Vec<u8>, FetchError> {
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
        Ok(document)
    }
}
