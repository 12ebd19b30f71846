//! Requests to a running gateway, and the words for its refusals.

use anyhow::{Context, anyhow, bail};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, StatusCode, Url};
use serde_json::Value;

/// The default address of `trunkline serve`.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// Names a running gateway, and the one who asks it.
#[derive(clap::Args)]
pub(super) struct GatewayArgs {
    /// Address of the gateway
    #[arg(long, env = "TRUNKLINE_URL", default_value = DEFAULT_URL, value_parser = gateway_url)]
    url: Url,
    /// API key, or a token of the identity provider
    #[arg(long, env = "TRUNKLINE_KEY", hide_env_values = true)]
    key: Option<String>,
}

/// One gateway, asked with one key or with none.
pub(super) struct Gateway {
    pub(super) url: Url,
    key: Option<HeaderValue>,
    client: Client,
}

/// The rights with which a report was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Viewer {
    Operator,
    Caller,
}

/// An answer that is not 200.
pub(super) struct Refusal {
    status: StatusCode,
    detail: String,
}

/// Parses the address of a gateway.
pub(in crate::cli) fn gateway_url(text: &str) -> Result<Url, String> {
    if let Ok(url) = Url::parse(text)
        && ["http", "https"].contains(&url.scheme())
    {
        return Ok(url);
    }
    let with_scheme = Url::parse(&format!("http://{text}"));
    let is_address = with_scheme.is_ok_and(|url| url.username().is_empty());
    Err(if is_address && !text.contains("://") {
        format!("`{text}` has no scheme: write `http://{text}`")
    } else {
        format!("`{text}` is not the address of a gateway: it begins with http:// or https://")
    })
}

/// Returns the innermost cause, which is the one that a person can mend.
pub(in crate::cli) fn root_cause(error: reqwest::Error) -> String {
    let error = anyhow::Error::from(error.without_url());
    error.root_cause().to_string()
}

impl GatewayArgs {
    pub(super) fn open(self) -> anyhow::Result<Gateway> {
        let key = self.key.filter(|key| !key.is_empty());
        let key = key.map(|key| bearer(&key)).transpose()?;
        // The key is for the gateway, not for a proxy of the environment.
        Ok(Gateway { url: self.url, key, client: Client::builder().no_proxy().build()? })
    }
}

/// Parses the key. No error contains the key itself.
fn bearer(key: &str) -> anyhow::Result<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| {
        anyhow!("the key has characters in it that no key has, such as a line break")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

impl Gateway {
    /// Returns a request for a path below the gateway's address.
    pub(super) fn request(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
    ) -> RequestBuilder {
        let mut url = self.url.clone();
        url.path_segments_mut().expect("an HTTP address").pop_if_empty().extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let request = self.client.request(method, url);
        match &self.key {
            Some(key) => request.header(AUTHORIZATION, key),
            None => request,
        }
    }

    pub(super) async fn send(&self, request: RequestBuilder) -> anyhow::Result<reqwest::Response> {
        request.send().await.map_err(|error| {
            anyhow!(
                "no gateway answers at {}: {}; `trunkline serve` starts one, --url names another",
                self.url,
                root_cause(error)
            )
        })
    }

    /// Reads a report that callers may have, as an operator sees it if the key is an
    /// administrator's.
    pub(super) async fn view(
        &self,
        of_operators: &[&str],
        of_callers: &[&str],
        query: &[(&str, String)],
    ) -> anyhow::Result<(Viewer, Value)> {
        let as_operator = match self.key {
            Some(_) => match self.get(of_operators, query).await? {
                Ok(report) => return Ok((Viewer::Operator, report)),
                Err(refusal) if refusal.is_of_key() => Some(refusal),
                Err(refusal) => return Err(self.explain(None, &refusal)),
            },
            None => None,
        };
        match self.get(of_callers, query).await? {
            Ok(report) => Ok((Viewer::Caller, report)),
            Err(refusal) => Err(self.explain(as_operator.as_ref(), &refusal)),
        }
    }

    /// Reads a report that only administrators may have.
    pub(super) async fn view_as_operator(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> anyhow::Result<Value> {
        self.get(path, query).await?.map_err(|refusal| self.explain_to_operator(&refusal))
    }

    /// Opens a stream that only administrators may have.
    pub(super) async fn stream(&self, path: &[&str]) -> anyhow::Result<reqwest::Response> {
        let response = self.send(self.request(Method::GET, path, &[])).await?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        match self.read(response).await? {
            Ok(_) => bail!("{} is not a gateway: it answers without a stream", self.url),
            Err(refusal) => Err(self.explain_to_operator(&refusal)),
        }
    }

    /// Says why a report for administrators cannot be had, and what to do.
    fn explain_to_operator(&self, refusal: &Refusal) -> anyhow::Error {
        match refusal.status {
            StatusCode::FORBIDDEN => anyhow!(
                "this needs an administrator's key, and the key is a tenant's: `trunkline key \
                 create --admin` makes one"
            ),
            StatusCode::UNAUTHORIZED if self.key.is_none() => anyhow!(
                "this needs an administrator's key: set TRUNKLINE_KEY, or give --key KEY; \
                 `trunkline key create --admin` makes one"
            ),
            _ if refusal.has_no_path() => anyhow!(
                "{} serves callers only: --url must be the operators' address (`ops_listen`)",
                self.url
            ),
            _ => self.explain(None, refusal),
        }
    }

    /// Reads a JSON document; a refusal is not an error yet.
    pub(super) async fn get(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> anyhow::Result<Result<Value, Refusal>> {
        let request = self.request(Method::GET, path, query);
        let response = self.send(request).await?;
        self.read(response).await
    }

    async fn read(&self, response: reqwest::Response) -> anyhow::Result<Result<Value, Refusal>> {
        let status = response.status();
        let body = response.bytes().await.context("the answer was cut off")?;
        let Ok(json) = serde_json::from_slice::<Value>(&body) else {
            bail!("{} is not a gateway: it answers {status}, without JSON", self.url)
        };
        if status == StatusCode::OK {
            return Ok(Ok(json));
        }
        let detail = json["detail"].as_str().unwrap_or("it does not say why").to_owned();
        Ok(Err(Refusal { status, detail }))
    }

    /// Says why neither an operator's nor a caller's report can be had, and what to do.
    fn explain(&self, as_operator: Option<&Refusal>, refusal: &Refusal) -> anyhow::Error {
        let (url, Refusal { status, detail }) = (&self.url, refusal);
        let is_callers_port = as_operator.is_some_and(Refusal::has_no_path);
        match *status {
            StatusCode::UNAUTHORIZED if self.key.is_none() => anyhow!(
                "the gateway at {url} needs a key: set TRUNKLINE_KEY, or give --key KEY; \
                 `trunkline key create TENANT` makes one"
            ),
            StatusCode::UNAUTHORIZED => anyhow!(
                "the gateway at {url} refuses the key: {detail}; `trunkline key list TENANT` \
                 shows the valid ones"
            ),
            // An administrator's key, where operators have an address of their own.
            StatusCode::FORBIDDEN if is_callers_port => anyhow!(
                "{url} serves callers only, and the key is an administrator's: --url must be the \
                 operators' address (`ops_listen`)"
            ),
            _ if refusal.has_no_path() && self.key.is_some() => anyhow!(
                "{url} serves operators only, and the key is a tenant's: --url must be the \
                 callers' address (`listen`), or the key an administrator's"
            ),
            _ if refusal.has_no_path() => anyhow!(
                "{url} serves operators only: give an administrator's key with --key or \
                 TRUNKLINE_KEY, or the callers' address (`listen`) with --url"
            ),
            _ => anyhow!("the gateway at {url} answers {status}: {detail}"),
        }
    }
}

impl Refusal {
    /// Returns whether another kind of key might get a report.
    fn is_of_key(&self) -> bool {
        [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&self.status)
            || self.has_no_path()
    }

    /// Returns whether the report is not served at this address at all.
    fn has_no_path(&self) -> bool {
        self.status == StatusCode::NOT_FOUND && self.detail.starts_with("there is nothing at ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_scheme_is_told_with_one() {
        for text in ["127.0.0.1:8080", "localhost:8080", "gateway", "[::1]:8080"] {
            let told = format!("`{text}` has no scheme: write `http://{text}`");
            assert_eq!(gateway_url(text), Err(told));
        }
        for text in ["ftp://gateway", "mailto:a@b.example", "", "http://"] {
            let told = format!(
                "`{text}` is not the address of a gateway: it begins with http:// or \
                         https://"
            );
            assert_eq!(gateway_url(text), Err(told));
        }
        assert_eq!(gateway_url("https://gateway/below").unwrap().path(), "/below");
    }
}
