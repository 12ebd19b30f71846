//! End to end: the plug is pulled on parts of the compose stack while callers of all kinds go on,
//! and every answer is checked to be its own. `tests/e2e/run` builds the images, brings the stack
//! up, runs this and takes it down.
//!
//! - `stack`, `docker`: what runs, and what is done to it
//! - `calls`, `answer`, `caller`, `load`, `work`: calls whose right answers are known, and those
//!   who make them
//! - `tenants`, `dag`, `limit`, `kill`, `rolling`, `batches`, `cuts`, `pauses`, `sessions`,
//!   `leftovers`: the cases, in this order
//! - `processes`: what runs inside a container; `report`: the page that is printed

mod answer;
mod batches;
mod caller;
mod calls;
mod cuts;
mod dag;
mod docker;
mod kill;
mod leftovers;
mod limit;
mod load;
mod pauses;
mod processes;
mod report;
mod rolling;
mod sessions;
mod stack;
mod tenants;
mod work;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use tokio::time::Instant;

use crate::docker::docker;
use crate::leftovers::Look;
use crate::report::Case;
use crate::stack::Stack;

/// The file that the page is written to, besides standard output.
const REPORT: &str = "target/e2e/report.md";
/// In this order: first what replaces the gateways' processes, then what those that are left must
/// survive.
const ORDER: [u8; 10] = [1, 2, 4, 5, 10, 3, 6, 7, 8, 9];
/// The largest size of the gateway's image, also with a program that is not optimised.
const IMAGE_MAX_MB: f64 = 120.0;
/// The first after which no gateway is restarted any more.
const SURVIVED_FROM: u8 = 3;

/// Pulls the plug on parts of the stack
#[derive(Parser)]
struct Options {
    /// Only these cases, such as 4,5
    #[arg(long, value_delimiter = ',')]
    only: Vec<u8>,
    /// How often every replica is restarted
    #[arg(long, default_value = "1")]
    restarts: u32,
    /// How long rates are watched
    #[arg(long, default_value = "10")]
    seconds: u64,
    /// The name of the compose project
    #[arg(long, env = "E2E_PROJECT")]
    project: String,
    /// The load balancer's port
    #[arg(long, env = "TRUNKLINE_PORT")]
    port: u16,
    /// The ports of the replicas
    #[arg(long, env = "E2E_GATEWAYS", value_parser = two_ports)]
    gateways: [u16; 2],
    /// Their ports for operators
    #[arg(long, env = "E2E_OPS", value_parser = two_ports)]
    ops: [u16; 2],
    /// Images whose size is shown; the first is the one that must be small
    #[arg(long, env = "E2E_IMAGES", value_delimiter = ',')]
    images: Vec<String>,
}

/// `8001,8002`
fn two_ports(text: &str) -> Result<[u16; 2]> {
    let (one, other) = text.split_once(',').context("write two ports, such as 8001,8002")?;
    Ok([one.parse()?, other.parse()?])
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the cases and returns whether all is well.
#[tokio::main]
async fn run(options: &Options) -> Result<bool> {
    let began = Instant::now();
    let stack = Stack::find(options).await?;
    let mut cases = vec![];
    let mut before = None;
    let is_wanted = |number: &u8| options.only.is_empty() || options.only.contains(number);
    for number in ORDER.into_iter().filter(is_wanted) {
        if before.is_none() && ((6..10).contains(&number) || number == SURVIVED_FROM) {
            before = Some(leftovers::look(&stack).await?);
        }
        let case = carry_out(&stack, number, options, before.as_ref()).await;
        eprintln!("{}", case.headline());
        cases.push((number, case));
    }
    cases.sort_by_key(|(number, _)| *number);
    let cases: Vec<_> = cases.into_iter().map(|(_, case)| case).collect();
    let mut page = report::page(&cases, began.elapsed());
    let mut is_good = !cases.iter().any(Case::has_failed);
    for (n, image) in options.images.iter().enumerate() {
        let size = docker(["image", "inspect", "-f", "{{.Size}}", image]).await?;
        let size = size.parse::<f64>()? / 1e6;
        let is_too_large = n == 0 && size > IMAGE_MAX_MB;
        let verdict = if is_too_large { " **FAIL**" } else { "" };
        page += &format!("\nImage `{image}`: {size:.0} MB{verdict}\n");
        is_good &= !is_too_large;
    }
    println!("{page}");
    std::fs::create_dir_all("target/e2e")?;
    std::fs::write(REPORT, page).context(REPORT)?;
    Ok(is_good)
}

/// One case, whatever becomes of it.
async fn carry_out(
    stack: &Stack,
    number: u8,
    options: &Options,
    before: Option<&[Look; 2]>,
) -> Case {
    let (began, time) = (Instant::now(), Duration::from_secs(options.seconds));
    let mut case = Case::new(number, title(number));
    let outcome = match (number, before) {
        (1, _) => tenants::run(stack, &mut case).await,
        (2, _) => dag::run(stack, &mut case).await,
        (3, _) => limit::run(stack, &mut case, time).await,
        (4, _) => kill::run(stack, &mut case).await,
        (5, _) => rolling::run(stack, &mut case, options.restarts).await,
        (6, _) => cuts::run(stack, &mut case, time).await,
        (7, _) => pauses::run(stack, &mut case).await,
        (8, _) => sessions::run(stack, &mut case).await,
        (10, _) => batches::run(stack, &mut case).await,
        (_, Some(before)) => leftovers::run(stack, &mut case, before).await,
        (_, None) => Ok(()),
    };
    if let Err(error) = outcome {
        case.broke_off(&error);
        if let Err(error) = stack.heal().await {
            case.broke_off(&error.context("and it could not be put right"));
        }
    }
    case.took(began.elapsed());
    case
}

fn title(number: u8) -> &'static str {
    match number {
        1 => "Two tenants, every way to call, both eras on both sides",
        2 => "A graph of 200 calls, fan-out 50",
        3 => "A rate over both replicas",
        4 => "A replica is killed under load, and comes back",
        5 => "All replicas are restarted under load, one after the other",
        6 => "One replica is cut off from PostgreSQL, Valkey and a server over HTTP",
        7 => "A replica hangs, and then a server over HTTP",
        8 => "What belongs to one replica, sent to the other",
        10 => "A graph of 10,000 calls as batches, while a replica is restarted",
        _ => "What is left",
    }
}
