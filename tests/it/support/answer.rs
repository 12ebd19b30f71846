//! A response of the gateway.

use reqwest::RequestBuilder;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::in_time;

/// One response, complete.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// An error as callers see it.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    status: u16,
    code: String,
    retryable: bool,
    executed: String,
}

/// The tool was not run, and trying again is of no use.
pub fn refused(status: u16, code: &str) -> Problem {
    Problem { status, code: code.to_owned(), retryable: false, executed: "no".to_owned() }
}

/// The tool may have run.
pub fn failed(status: u16, code: &str) -> Problem {
    Problem { executed: "unknown".to_owned(), ..refused(status, code) }
}

impl Problem {
    pub fn for_now(self) -> Self {
        Self { retryable: true, ..self }
    }
}

impl Answer {
    pub async fn of(request: RequestBuilder) -> Self {
        let response = in_time("answered", request.send()).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = in_time("the body", response.bytes()).await.unwrap().to_vec();
        Self { status, headers, body }
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The text that a tool returned.
    pub fn tool_text(&self) -> String {
        assert_eq!((self.status, self.header("trunkline-outcome")), (200, "ok"), "{self:?}");
        self.json()["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// The error, which must look like one.
    pub fn problem(&self) -> Problem {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let body = self.json();
        assert_eq!(body["status"], self.status);
        assert!(body["title"].is_string() && body["detail"].is_string(), "{body}");
        Problem {
            status: self.status,
            code: body["code"].as_str().unwrap().to_owned(),
            retryable: body["retryable"].as_bool().unwrap(),
            executed: body["executed"].as_str().unwrap().to_owned(),
        }
    }

    /// Returns the error's `detail`.
    pub fn detail(&self) -> String {
        self.json()["detail"].as_str().unwrap().to_owned()
    }

    /// When to come back.
    pub fn retry_after(&self) -> Option<u64> {
        self.headers.get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap())
    }
}
