//! The command line.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use reqwest::Url;

use crate::target::Kind;

/// Measures the gateway's tool calls over HTTP, next to a bare server that only echoes
#[derive(Parser)]
pub struct Options {
    #[arg(long, value_enum, default_value = "both")]
    target: Which,
    /// By which way to call the gateway
    #[arg(long, value_enum, default_value = "rest")]
    front: Front,
    /// Measure a gateway that runs already, instead of starting one
    #[arg(long, conflicts_with = "target")]
    pub url: Option<Url>,
    /// The gateway's program, to compare builds [default: this one]
    #[arg(long, value_name = "FILE")]
    pub gateway: Option<PathBuf>,
    /// The gateway's store, such as `postgres://user@host/database` [default: a new SQLite file]
    #[arg(long, value_name = "URL", conflicts_with = "url")]
    pub store: Option<String>,
    /// Connections, each with one call at a time
    #[arg(long, default_value = "64")]
    pub connections: NonZeroUsize,
    /// How long to measure in each round, in seconds
    #[arg(long, default_value = "10")]
    duration: NonZeroU32,
    /// How long to call before that, in seconds
    #[arg(long, default_value = "2")]
    warmup: u32,
    /// Calls per second, sent when they are due whether or not others have been answered, and timed
    /// from when they were due [default: each connection calls again as soon as it has its answer]
    #[arg(long)]
    pub rate: Option<NonZeroU32>,
    /// The tool to call
    #[arg(long, value_enum, default_value = "echo")]
    pub tool: Tool,
    /// How long `sleep` sleeps, in milliseconds
    #[arg(long, default_value = "100")]
    pub sleep_ms: u32,
    /// The calls of `echo` in each batch; the latency is that of the batch
    #[arg(long, default_value = "100")]
    pub batch: NonZeroUsize,
    /// The length of the text that is echoed, in bytes
    #[arg(long, default_value = "64")]
    pub body: usize,
    /// How often each target is measured; medians are shown at the end
    #[arg(long, default_value = "3")]
    pub rounds: NonZeroU32,
    /// Threads of the client, with their share of the connections each
    #[arg(long, default_value = "2")]
    pub threads: NonZeroUsize,
    /// Send this many `sleep` calls at one moment, and show how long it takes to the last answer
    #[arg(long, value_name = "CALLS")]
    pub concurrent_sleep: Option<NonZeroUsize>,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    Both,
    Gateway,
    Floor,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Front {
    Rest,
    Mcp,
    Both,
    /// REST with an API key and limits, next to REST without
    Keys,
    /// REST with an `Idempotency-Key` of each call's own, next to REST without
    Keyed,
    /// Batches of calls, next to single calls over REST
    Batch,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Tool {
    Echo,
    Sleep,
}

impl Options {
    pub fn kinds(&self) -> Vec<Kind> {
        match (&self.url, self.target) {
            (Some(_), _) | (None, Which::Gateway) => self.fronts().to_vec(),
            (None, Which::Floor) => vec![Kind::Floor],
            (None, Which::Both) => [&[Kind::Floor], self.fronts()].concat(),
        }
    }

    /// The ways to call the gateway.
    pub fn fronts(&self) -> &'static [Kind] {
        match self.front {
            Front::Rest => &[Kind::Rest],
            Front::Mcp => &[Kind::Mcp],
            Front::Both => &[Kind::Rest, Kind::Mcp],
            Front::Keys => &[Kind::Rest, Kind::Limited],
            Front::Keyed => &[Kind::Rest, Kind::Keyed],
            Front::Batch => &[Kind::Rest, Kind::Batch],
        }
    }

    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.duration.get().into())
    }

    pub fn warmup(&self) -> Duration {
        Duration::from_secs(self.warmup.into())
    }
}
