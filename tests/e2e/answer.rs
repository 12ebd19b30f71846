//! Answers, and whether they are those that were asked for.

use anyhow::Result;
use reqwest::Response;
use serde_json::Value;

use crate::calls::Outcome;

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The last message of a stream, or the body; nothing if it is no JSON.
    pub json: Option<Value>,
    body: String,
}

/// The answer that a call must get.
pub struct Expected<'a> {
    /// The id of an MCP request; nothing for REST.
    pub id: Option<Value>,
    pub text: &'a str,
}

impl Answer {
    /// Reads a response to its end.
    pub async fn read(response: Response) -> Result<Self> {
        let status = response.status().as_u16();
        let body = response.text().await?;
        let json = match body.strip_prefix('{') {
            Some(_) => serde_json::from_str(&body).ok(),
            None => body.split("\n\n").filter_map(data_of).last(),
        };
        Ok(Self { status, json, body })
    }

    pub fn judge(&self, expected: &Expected<'_>) -> Outcome {
        let Some(json) = &self.json else { return self.wrong(expected) };
        if let Some(error) = self.error() {
            return error;
        }
        let result = match &expected.id {
            Some(id) if json["id"] != *id => return self.wrong(expected),
            Some(_) => &json["result"],
            None => json,
        };
        match result["content"][0]["text"].as_str() {
            Some(text) if self.status == 200 && text == expected.text => Outcome::Right,
            _ => self.wrong(expected),
        }
    }

    /// The gateway's error, if it is one: a problem, or an error of JSON-RPC.
    pub fn error(&self) -> Option<Outcome> {
        let json = self.json.as_ref()?;
        let status = i64::from(self.status);
        let executed = |told: &Value| told["executed"].as_str().unwrap_or("not told").to_owned();
        if let Some(code) = json["code"].as_str() {
            let executed = executed(json);
            return Some(Outcome::Typed { status, code: code.to_owned(), executed });
        }
        let error = json.get("error")?;
        let code = match error["data"]["code"].as_str() {
            Some(code) => code.to_owned(),
            None => format!("JSON-RPC {}", error["code"]),
        };
        let status = error["code"].as_i64().unwrap_or(status);
        Some(Outcome::Typed { status, code, executed: executed(&error["data"]) })
    }

    fn wrong(&self, expected: &Expected<'_>) -> Outcome {
        let body: String = self.body.chars().take(300).collect();
        Outcome::Wrong(format!("for `{}`: {} {body}", expected.text, self.status))
    }
}

/// The message of an event.
pub fn data_of(event: &str) -> Option<Value> {
    let data = event.lines().find_map(|line| line.strip_prefix("data: "))?;
    serde_json::from_str(data).ok()
}
