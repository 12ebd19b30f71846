//! The checks of one endpoint, in the order of all the other clients.

use std::time::Duration;

use futures::future::try_join_all;
use rmcp::service::ServiceError;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::session::Session;
use crate::{Outcome, check, contains, same};

pub struct Endpoint<'a> {
    expected: &'a Value,
    session: &'a Session,
    path: &'a str,
    servers: Vec<&'a str>,
    prefixed: bool,
}

impl<'a> Endpoint<'a> {
    pub fn new(expected: &'a Value, endpoint: &'a Value, session: &'a Session) -> Self {
        Self {
            expected,
            session,
            path: text(&endpoint["path"]),
            servers: list(&endpoint["servers"]).iter().map(text).collect(),
            prefixed: endpoint["prefixed"].as_bool().unwrap_or(false),
        }
    }

    /// Returns how many checks failed.
    pub async fn check_all(&self) -> usize {
        let (path, expected) = (self.path, self.expected);
        let mut failed = check(path, "tools", self.tools()).await;
        for it in list(&expected["calls"]).iter().filter(|it| self.has(&it["server"])) {
            let name = format!("call {} {}", text(&it["server"]), text(&it["tool"]));
            failed += check(path, &name, self.call(it)).await;
        }
        if self.servers.contains(&"std") {
            failed += check(path, "unicode", self.echo(text(&expected["unicode"]))).await;
            failed += check(path, "tool error", self.tool_error()).await;
        }
        failed += check(path, "unknown tool", self.unknown_tool()).await;
        if self.has(&expected["progress"]["server"]) {
            failed += check(path, "progress", self.progress()).await;
        }
        if self.servers.contains(&"std") {
            failed += check(path, "cancel", self.cancel()).await;
            failed += check(path, "large", self.large()).await;
            failed += check(path, "parallel", self.parallel()).await;
        }
        if self.has(&expected["resource"]["server"]) {
            failed += check(path, "resources", self.resources()).await;
            failed += check(path, "templates", self.templates()).await;
        }
        if self.has(&expected["prompt"]["server"]) {
            failed += check(path, "prompt", self.prompt()).await;
            failed += check(path, "complete", self.complete()).await;
        }
        failed
    }

    fn has(&self, server: &Value) -> bool {
        self.servers.contains(&text(server))
    }

    fn named(&self, server: &Value, name: &Value) -> String {
        let (server, name) = (text(server), text(name));
        if self.prefixed { format!("{server}__{name}") } else { name.to_owned() }
    }

    fn located(&self, server: &Value, uri: &Value) -> String {
        let (server, uri) = (text(server), text(uri));
        if self.prefixed { format!("trunkline:{server}/{uri}") } else { uri.to_owned() }
    }

    async fn echo(&self, said: &str) -> Outcome {
        let name = self.named(&json!("std"), &json!("echo"));
        let answer = self.session.call(name, &json!({"text": said})).await?.text;
        if answer == said {
            Ok(())
        } else {
            Err(format!("{answer:.100?} is not {said:.100?}").into())
        }
    }

    async fn tools(&self) -> Outcome {
        let names = self.session.tools().await?;
        for server in &self.servers {
            for tool in list(&self.expected["tools"][server]) {
                includes(&names, &self.named(&json!(server), tool))?;
            }
        }
        Ok(())
    }

    async fn call(&self, it: &Value) -> Outcome {
        let name = self.named(&it["server"], &it["tool"]);
        let called = self.session.call(name, &it["arguments"]).await?;
        same(called.is_error, false)?;
        contains(&called.text, &it["says"])
    }

    async fn tool_error(&self) -> Outcome {
        let name = self.named(&json!("std"), &json!("fail"));
        let called = self.session.call(name, &json!({"message": "no luck"})).await?;
        same(called.is_error, true)?;
        contains(&called.text, &json!("no luck"))
    }

    async fn unknown_tool(&self) -> Outcome {
        let name = self.named(&json!(self.servers[0]), &json!("no_such_tool"));
        match self.session.call(name, &json!({})).await {
            Err(ServiceError::McpError(error)) => {
                same(Some(error.code.0.into()), self.expected["unknown_tool_code"].as_i64())
            }
            Err(error) => Err(error.into()),
            Ok(called) => Err(format!("no error, but {:.200}", called.text).into()),
        }
    }

    async fn progress(&self) -> Outcome {
        let it = &self.expected["progress"];
        let name = self.named(&it["server"], &it["tool"]);
        let mut seen = self.session.progress_of(name, &it["arguments"]).await?;
        let told = seen.len();
        seen.dedup();
        if told >= 2 && seen.len() == told {
            Ok(())
        } else {
            Err(format!("progress was {seen:?}").into())
        }
    }

    async fn cancel(&self) -> Outcome {
        let (it, began) = (&self.expected["cancel"], Instant::now());
        let name = self.named(&it["server"], &it["tool"]);
        let after = Duration::from_millis(200);
        same(self.session.call_and_cancel(name, &it["arguments"], after).await, true)?;
        self.echo("still here").await?;
        same(began.elapsed() < Duration::from_secs(5), true)
    }

    async fn large(&self) -> Outcome {
        let bytes = self.expected["large_bytes"].as_u64().unwrap_or_default() as usize;
        self.echo(&"0123456789abcdef".repeat(bytes / 16)).await
    }

    async fn parallel(&self) -> Outcome {
        let numbers = 0..self.expected["parallel"].as_u64().unwrap_or_default();
        let calls = numbers.map(async |i| self.echo(&format!("number {i}")).await);
        try_join_all(calls).await.map(drop)
    }

    async fn resources(&self) -> Outcome {
        let it = &self.expected["resource"];
        let uri = self.located(&it["server"], &it["uri"]);
        includes(&self.session.resources().await?, &uri)?;
        contains(&self.session.read(uri).await?, &it["says"])
    }

    async fn templates(&self) -> Outcome {
        let it = &self.expected["resource"];
        let template = self.located(&it["server"], &it["template"]);
        includes(&self.session.templates().await?, &template)?;
        let uri = self.located(&it["server"], &it["expanded"]);
        contains(&self.session.read(uri).await?, &it["expanded_says"])
    }

    async fn prompt(&self) -> Outcome {
        let it = &self.expected["prompt"];
        let name = self.named(&it["server"], &it["name"]);
        includes(&self.session.prompts().await?, &name)?;
        contains(&self.session.prompt(name, &it["arguments"]).await?, &it["says"])
    }

    async fn complete(&self) -> Outcome {
        for it in list(&self.expected["complete"]) {
            let name = self.named(&it["server"], &it["prompt"]);
            let (argument, value) = (text(&it["argument"]), text(&it["value"]));
            let values =
                self.session.complete_prompt(name, argument, value, &it["context"]).await?;
            same(json!(values), it["values"].clone())?;
        }
        let it = &self.expected["complete_template"];
        let uri = self.located(&it["server"], &self.expected["resource"]["template"]);
        let (argument, value) = (text(&it["argument"]), text(&it["value"]));
        let values = self.session.complete_template(uri, argument, value).await?;
        same(json!(values), it["values"].clone())
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn includes(names: &[String], wanted: &String) -> Outcome {
    if names.contains(wanted) {
        Ok(())
    } else {
        Err(format!("missing {wanted} in {names:?}").into())
    }
}
