//! Calls a tool of any gateway, over MCP or REST, and verifies every answer. `benches/peers/run`
//! compares Trunkline with other gateways by this program, so nothing here knows Trunkline.
//!
//! ```text
//! peers --url http://127.0.0.1:8080/mcp/bench --connections 64 --seconds 5
//! peers --url http://127.0.0.1:8080/echo --body '{"text":"TEXT"}' --calls 64 --connections 64
//! ```
//!
//! Prints one line of JSON. Every call sends a text that no other call sends, and its answer must
//! have that text in it. Over MCP, all sessions use the same ids, as clients do.
//!
//! - `connection`: one HTTP/1.1 connection, and how answers of all kinds are read
//! - `request`: the requests, and how the own answer is recognised
//! - `tally`: what came of the calls

mod connection;
mod request;
mod tally;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use reqwest::Url;
use tokio::net::lookup_host;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};

use crate::connection::Connection;
use crate::request::{Requests, Verdict};
use crate::tally::Tally;

/// The pause after a failed call, so that a gateway without its server is not flooded.
const PAUSE: Duration = Duration::from_millis(20);

/// Calls a tool of any gateway and verifies every answer
#[derive(Parser)]
pub struct Options {
    /// The address to call; NUMBER in the path stands for a number below `--numbers`, in turn
    #[arg(long)]
    pub url: Url,
    #[arg(long, default_value_t = 1)]
    pub numbers: u64,
    /// API keys, one in each line, for calls in turn
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Call over REST with this body, in which TEXT stands for the text [default: MCP]
    #[arg(long)]
    pub body: Option<String>,
    /// The tool's name, for MCP
    #[arg(long, default_value = "echo")]
    pub tool: String,
    /// The tool's arguments, for MCP; TEXT stands for the text
    #[arg(long, default_value = r#"{"text":"TEXT"}"#)]
    pub arguments: String,
    /// The length of the text
    #[arg(long, default_value_t = 64)]
    pub len: usize,
    /// Expect this text in each answer instead of the call's own
    #[arg(long)]
    pub expect: Option<String>,
    /// Connections, with a session and one call at a time each
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// How long to call
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Stop after this many calls
    #[arg(long)]
    calls: Option<u64>,
    /// Seconds that a call may take
    #[arg(long, default_value_t = 20.0)]
    timeout: f64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tally = LocalSet::new().block_on(&runtime, run(Rc::new(options)))?;
    println!("{}", tally.to_json());
    Ok(())
}

async fn run(options: Rc<Options>) -> Result<Tally> {
    let address = address(&options.url).await?;
    let keys = options.keys.as_ref().map(std::fs::read_to_string).transpose()?;
    let keys: Rc<[String]> = keys.iter().flat_map(|it| it.lines()).map(str::to_owned).collect();
    let mut callers = vec![];
    for number in 0..options.connections.max(1) {
        let requests = Requests::new(&options, keys.clone(), number);
        let mut caller = Caller { connection: Connection::new(address), requests };
        // One after another: opening sessions is not what is measured.
        let opened = timeout(Duration::from_secs(60), caller.open_session()).await;
        opened.context("no session within a minute")??;
        callers.push(caller);
    }
    let begin = Instant::now();
    let tally = Rc::new(RefCell::new(Tally::new(begin)?));
    let left = Rc::new(Cell::new(options.calls.unwrap_or(u64::MAX)));
    let end = begin + Duration::from_secs_f64(options.seconds);
    let most = Duration::from_secs_f64(options.timeout);
    let tasks = callers.into_iter().map(|mut caller| {
        let (tally, left) = (tally.clone(), left.clone());
        tokio::task::spawn_local(async move {
            while Instant::now() < end && left.get() > 0 {
                left.set(left.get() - 1);
                caller.call(most, &tally).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await?;
    }
    let mut tally = Rc::into_inner(tally).context("a caller is still there")?.into_inner();
    tally.end();
    Ok(tally)
}

async fn address(url: &Url) -> Result<SocketAddr> {
    let host = url.host_str().context("the URL names no host")?;
    let port = url.port_or_known_default().context("the URL names no port")?;
    lookup_host((host, port)).await?.next().context("the host has no address")
}

struct Caller {
    connection: Connection,
    requests: Requests,
}

impl Caller {
    async fn open_session(&mut self) -> Result<()> {
        let Some(initialize) = self.requests.initialize() else { return Ok(()) };
        let answer = self.connection.call(&initialize).await?;
        self.requests.session_opened(&answer)?;
        let initialized = self.requests.initialized();
        let answer = self.connection.call(&initialized).await?;
        anyhow::ensure!(answer.status < 300, "`initialized` was answered with {}", answer.status);
        Ok(())
    }

    async fn call(&mut self, most: Duration, tally: &RefCell<Tally>) {
        let begin = Instant::now();
        let request = self.requests.next();
        let answer = timeout(most, self.connection.call(request)).await;
        let took = begin.elapsed();
        let verdict = match &answer {
            Ok(Ok(answer)) => self.requests.judge(answer),
            Ok(Err(error)) => Verdict::Failed(error.to_string()),
            Err(_) => {
                self.connection.close();
                Verdict::Failed("no answer in time".to_owned())
            }
        };
        let is_answered = matches!(verdict, Verdict::Own);
        let is_without_session = matches!(&answer, Ok(Ok(answer)) if answer.status == 404);
        tally.borrow_mut().count(verdict, took);
        if is_answered {
            return;
        }
        sleep(PAUSE).await;
        if is_without_session {
            // As clients do. If it fails, the next call tells.
            let _ = timeout(most, self.open_session()).await;
        }
    }
}
