//! The requests of one connection, and how the answer to each is recognised.

use std::borrow::Cow;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use memchr::memmem;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::Options;
use crate::connection::Answer;

const VERSION: &str = "2025-06-18";
/// Stands for the text of a call.
const TEXT: &str = "TEXT";
/// Stands for a number in the path.
const NUMBER: &str = "NUMBER";

pub struct Requests {
    host: String,
    path: String,
    /// Numbers that the path may have.
    numbers: u64,
    keys: Rc<[String]>,
    front: Front,
    expect: Option<String>,
    len: usize,
    /// Numbers this connection in its texts.
    connection: usize,
    session: Option<String>,
    /// The last call, which is also its JSON-RPC id.
    serial: u64,
    text: String,
    request: Vec<u8>,
}

enum Front {
    Mcp { tool: String, arguments: String },
    Rest { body: String },
}

pub enum Verdict {
    Own,
    /// An answer that belongs to another call.
    Wrong(String),
    Failed(String),
}

/// A JSON-RPC message.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult {
    #[serde(default)]
    is_error: bool,
}

impl Requests {
    pub fn new(options: &Options, keys: Rc<[String]>, connection: usize) -> Self {
        let url = &options.url;
        let port = url.port_or_known_default().unwrap_or(80);
        let front = match &options.body {
            Some(body) => Front::Rest { body: body.clone() },
            None => Front::Mcp { tool: options.tool.clone(), arguments: options.arguments.clone() },
        };
        Self {
            host: format!("{}:{port}", url.host_str().unwrap_or("127.0.0.1")),
            path: url.path().to_owned(),
            numbers: options.numbers.max(1),
            keys,
            front,
            expect: options.expect.clone(),
            len: options.len,
            connection,
            session: None,
            serial: 0,
            text: String::new(),
            request: vec![],
        }
    }

    /// Returns the request that opens a session, which only MCP has.
    pub fn initialize(&mut self) -> Option<Vec<u8>> {
        if matches!(self.front, Front::Rest { .. }) {
            return None;
        }
        self.session = None;
        let params = json!({
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": { "name": "peers", "version": "1" },
        });
        let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        Some(self.post(&body.to_string()))
    }

    /// Notes the session of the answer to [`Self::initialize`].
    pub fn session_opened(&mut self, answer: &Answer) -> Result<()> {
        let body = String::from_utf8_lossy(&answer.body);
        ensure!(answer.status == 200, "`initialize` was answered with {}: {body}", answer.status);
        let messages = messages(answer);
        let read = messages.iter().filter_map(|it| serde_json::from_slice::<Message<'_>>(it).ok());
        let opened = read.filter_map(|message| message.result).next();
        opened.with_context(|| format!("`initialize` was answered with {body}"))?;
        self.session = answer.session.clone();
        Ok(())
    }

    pub fn initialized(&self) -> Vec<u8> {
        self.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)
    }

    /// Returns the next call.
    pub fn next(&mut self) -> &[u8] {
        self.serial += 1;
        self.text = format!("{}-{}-", self.connection, self.serial);
        let fill = self.len.saturating_sub(self.text.len());
        self.text.extend(std::iter::repeat_n('x', fill));
        let body = match &self.front {
            Front::Rest { body } => body.replace(TEXT, &self.text),
            Front::Mcp { tool, arguments } => format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"tools/call\",\
                 \"params\":{{\"name\":\"{tool}\",\"arguments\":{}}}}}",
                self.serial,
                arguments.replace(TEXT, &self.text)
            ),
        };
        self.request = self.post(&body);
        &self.request
    }

    fn post(&self, body: &str) -> Vec<u8> {
        // Connections begin at different places, and take turns.
        let turn = self.serial.wrapping_add(self.connection as u64 * 31);
        let path = match self.numbers {
            1 => Cow::Borrowed(self.path.as_str()),
            numbers => Cow::Owned(self.path.replace(NUMBER, &(turn % numbers).to_string())),
        };
        let mut headers = String::new();
        if let Some(session) = &self.session {
            headers += &format!("Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: {VERSION}\r\n");
        }
        if !self.keys.is_empty() {
            let key = &self.keys[turn as usize % self.keys.len()];
            headers += &format!("Authorization: Bearer {key}\r\n");
        }
        format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{headers}Content-Length: {}\r\n\
             \r\n{body}",
            self.host,
            body.len()
        )
        .into_bytes()
    }

    /// Says whether an answer is that of the last call.
    pub fn judge(&self, answer: &Answer) -> Verdict {
        if answer.status != 200 {
            let body = String::from_utf8_lossy(&answer.body);
            return Verdict::Failed(format!("{}: {body}", answer.status));
        }
        match self.front {
            Front::Rest { .. } => self.judge_text(&answer.body),
            Front::Mcp { .. } => self.judge_messages(&messages(answer)),
        }
    }

    fn judge_messages(&self, messages: &[Vec<u8>]) -> Verdict {
        for bytes in messages {
            let Ok(message) = serde_json::from_slice::<Message<'_>>(bytes) else { continue };
            let text = || String::from_utf8_lossy(bytes).into_owned();
            match message {
                Message { error: Some(_), .. } => return Verdict::Failed(text()),
                Message { id, result: Some(result), .. } => {
                    if id.map(RawValue::get) != Some(self.serial.to_string().as_str()) {
                        return Verdict::Wrong(text());
                    }
                    let result = result.get();
                    let is_error = serde_json::from_str(result).map(|it: ToolResult| it.is_error);
                    if !is_error.is_ok_and(|is| !is) {
                        return Verdict::Failed(text());
                    }
                    return self.judge_text(result.as_bytes());
                }
                _ => {}
            }
        }
        Verdict::Failed("there is no answer in the response".to_owned())
    }

    fn judge_text(&self, found: &[u8]) -> Verdict {
        let expected = self.expect.as_ref().unwrap_or(&self.text);
        match memmem::find(found, expected.as_bytes()) {
            Some(_) => Verdict::Own,
            None => Verdict::Wrong(String::from_utf8_lossy(found).into_owned()),
        }
    }
}

/// Returns the JSON-RPC messages of an answer: its body, or the data of its events.
fn messages(answer: &Answer) -> Vec<Vec<u8>> {
    if !answer.is_stream {
        return vec![answer.body.clone()];
    }
    let lines = answer.body.split(|byte| *byte == b'\n');
    let data = lines.filter_map(|line| line.strip_prefix(b"data:"));
    data.map(|data| data.trim_ascii().to_vec()).filter(|data| !data.is_empty()).collect()
}
