//! Sends one callback, once.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};

use super::signature::{SigningKey, signatures};
use crate::common::checked_address::{Allowed, CheckedResolver, Lookup, system_lookup};
use crate::common::error_chain::error_chain;

/// From the first byte sent to the last one received.
const TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const URL_LEN_MAX: usize = 2048;

/// Sends callbacks. Follows no redirect, uses no proxy, and dials no address that is not open.
pub struct Sender {
    /// Made when it is needed first: certificates take time to read, and may be missing.
    client: OnceLock<Result<Client, String>>,
    lookup: Lookup,
    allowed: Allowed,
}

/// Describes why a receiver has not got a callback.
#[derive(Debug, PartialEq, Eq)]
pub enum SendError {
    /// Trying again may help.
    Temporary { reason: String, retry_after: Option<Duration> },
    /// The receiver wants no such callback, ever (410).
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTarget {
    #[error("must be an absolute `https` URL of at most {URL_LEN_MAX} characters")]
    NotHttps,
    #[error("must have no user name or password")]
    Credentials,
    #[error("names the address {0}, which is private; name a public host")]
    PrivateAddress(IpAddr),
}

impl Sender {
    /// `allowed` are networks that callbacks may reach although they are not public.
    pub fn new(allowed: Vec<IpNet>) -> Self {
        Self::with_lookup(allowed, system_lookup())
    }

    fn with_lookup(allowed: Vec<IpNet>, lookup: Lookup) -> Self {
        Self { client: OnceLock::new(), lookup, allowed: Allowed::new(allowed) }
    }

    fn client(&self) -> Result<&Client, SendError> {
        let make = || {
            let (lookup, allowed) = (self.lookup.clone(), self.allowed.clone());
            let client = Client::builder()
                .https_only(true)
                .redirect(Policy::none())
                .no_proxy()
                .dns_resolver(Arc::new(CheckedResolver { lookup, allowed }))
                .timeout(TIMEOUT)
                .connect_timeout(CONNECT_TIMEOUT)
                // A kept connection would pass the check of its address by.
                .pool_max_idle_per_host(0)
                .build();
            client.map_err(|error| error_chain(&error))
        };
        let client = self.client.get_or_init(make).as_ref();
        client.map_err(|why| SendError::Temporary { reason: why.clone(), retry_after: None })
    }

    /// Checks a URL as far as that is possible without looking up its host.
    pub fn check(&self, text: &str) -> Result<Url, InvalidTarget> {
        let url = Url::parse(text).ok().filter(|url| {
            text.len() <= URL_LEN_MAX && url.scheme() == "https" && url.host_str().is_some()
        });
        let url = url.ok_or(InvalidTarget::NotHttps)?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidTarget::Credentials);
        }
        // An address is dialled without being resolved.
        match address_of(&url) {
            Some(address) if !self.allowed.includes(address) => {
                Err(InvalidTarget::PrivateAddress(address))
            }
            _ => Ok(url),
        }
    }

    /// Sends a callback, signed with each key. Any status from 200 to 299 accepts the callback. The
    /// body of the response is not read.
    pub async fn send(
        &self,
        url: Url,
        id: &str,
        body: &str,
        keys: &[SigningKey],
    ) -> Result<(), SendError> {
        let failed = |reason: String| SendError::Temporary { reason, retry_after: None };
        // The operator may have closed a network since the URL was checked.
        let url = self.check(url.as_str()).map_err(|error| failed(format!("the URL {error}")))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let request = self
            .client()?
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", now)
            .header("webhook-signature", signatures(keys, id, now, body.as_bytes()))
            .body(body.to_owned());
        let response = request.send().await;
        let response = response.map_err(|error| failed(error_chain(&error.without_url())))?;
        match response.status() {
            status if status.is_success() => Ok(()),
            StatusCode::GONE => Err(SendError::Gone),
            status => Err(SendError::Temporary {
                reason: format!("it answered with the HTTP status {}", status.as_u16()),
                retry_after: retry_after(&response),
            }),
        }
    }
}

fn address_of(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Reads `Retry-After` in seconds. A date is rare enough to be treated as none.
fn retry_after(response: &Response) -> Option<Duration> {
    let value = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use reqwest::dns::Resolve;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    fn check(url: &str) -> Result<(), InvalidTarget> {
        Sender::new(vec![]).check(url).map(drop)
    }

    #[test]
    fn only_public_https_urls_are_accepted() {
        use InvalidTarget::{Credentials, NotHttps};
        assert_eq!(check("https://hooks.example/run?x=1"), Ok(()));
        assert_eq!(check("https://93.184.216.34:8443/"), Ok(()));
        for url in ["http://hooks.example/", "https://", "/path", "file:///etc/passwd", ""] {
            assert_eq!(check(url), Err(NotHttps), "{url}");
        }
        assert_eq!(check(&format!("https://hooks.example/{}", "x".repeat(2048))), Err(NotHttps));
        assert_eq!(check("https://user:word@hooks.example/"), Err(Credentials));
    }

    #[test]
    fn private_addresses_are_refused_however_they_are_written() {
        for url in [
            "https://127.0.0.1/",
            "https://2130706433/",
            "https://0x7f.1/",
            "https://0177.0.0.1/",
            "https://[::1]/",
            "https://[::ffff:10.0.0.1]/",
            "https://169.254.169.254/latest",
        ] {
            assert!(matches!(check(url), Err(InvalidTarget::PrivateAddress(_))), "{url}");
        }
    }

    /// A resolver that answers with a public address first, and with this machine afterwards.
    #[tokio::test]
    async fn a_name_that_changes_its_address_is_checked_each_time_it_is_dialled() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (private, looks) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let seen = looks.clone();
        let lookup: Lookup = Arc::new(move |_| {
            let is_first = seen.fetch_add(1, Ordering::AcqRel) == 0;
            let found = if is_first { "93.184.216.34:0".parse().unwrap() } else { private };
            Box::pin(async move { Ok(vec![found]) })
        });
        let resolver = CheckedResolver { lookup: lookup.clone(), allowed: Allowed::new(vec![]) };
        let name = || "rebound.example".parse().unwrap();
        assert_eq!(resolver.resolve(name()).await.unwrap().count(), 1);
        assert!(resolver.resolve(name()).await.is_err());
        let sender = Sender::with_lookup(vec![], lookup);
        let url = format!("https://rebound.example:{}/", private.port());
        for looked in 3..5 {
            let (url, keys) = (sender.check(&url).unwrap(), [SigningKey::generate()]);
            let error = sender.send(url, "id", "{}", &keys).await.unwrap_err();
            let SendError::Temporary { reason, .. } = error else { panic!() };
            assert!(reason.contains("no address that may be reached"), "{reason}");
            assert_eq!(looks.load(Ordering::Acquire), looked);
        }
        assert!(timeout(Duration::from_millis(50), listener.accept()).await.is_err());
    }

    #[tokio::test]
    async fn a_name_of_a_private_address_is_refused_when_it_is_dialled() {
        let sender = Sender::new(vec![]);
        let url = sender.check("https://localhost:1/").unwrap();
        let error = sender.send(url, "id", "{}", &[SigningKey::generate()]).await.unwrap_err();
        let SendError::Temporary { reason, .. } = error else { panic!() };
        assert!(reason.contains("no address that may be reached"), "{reason}");
    }
}
