//! The rounds of each row, and what is expected of them.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep, sleep_until};

use crate::figure::Figure;
use crate::neighbour::{Calls, Neighbour};
use crate::surroundings::Fault;
use crate::target::{Setup, Target};
use crate::trouble::Trouble;
use crate::watch::{Seen, Watch};
use crate::{Options, crash_loop};

/// The neighbour is called for so long alone, and at least for so long beside.
const TIME: Duration = Duration::from_secs(3);
/// By how much its p99 may rise, as a part of what it was or absolutely.
const RISE_MAX_PART: f64 = 1.2;
const RISE_MAX_MS: f64 = 2.0;

#[derive(Clone, Copy)]
enum Row {
    Server(Trouble),
    Surroundings(Fault),
}

pub enum Shown {
    Round(Round),
    /// With the reason.
    NotRun(String),
}

#[derive(Default)]
pub struct Round {
    pub figures: Vec<Figure>,
    /// Nothing if there was no neighbour.
    pub meanwhile: Option<Meanwhile>,
}

/// Holds what was seen of the neighbour and of the gateway.
pub struct Meanwhile {
    alone: Calls,
    beside: Calls,
    seen: Seen,
}

impl Row {
    fn all() -> impl Iterator<Item = Self> {
        let servers = Trouble::ALL.into_iter().map(Self::Server);
        servers.chain(Fault::ALL.into_iter().map(Self::Surroundings))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Server(trouble) => trouble.name(),
            Self::Surroundings(fault) => fault.name(),
        }
    }

    fn growth_max_mib(self) -> Option<f64> {
        match self {
            Self::Server(trouble) => trouble.growth_max_mib(),
            Self::Surroundings(_) => None,
        }
    }

    fn rounds(self, options: &Options) -> u32 {
        match self {
            _ if options.quick => 1,
            Self::Surroundings(fault) if fault.is_costly() => 1,
            _ => options.rounds,
        }
    }

    async fn show(self, quick: bool) -> Result<Shown> {
        let trouble = match self {
            Self::Server(trouble) => trouble,
            Self::Surroundings(fault) => return fault.show(quick).await,
        };
        let bad = trouble.server();
        let target = Target::start(Setup { bad, ..Setup::default() }).await?;
        let round = beside(&target, trouble.cause(&target, quick)).await?;
        target.stop().await;
        Ok(Shown::Round(round))
    }
}

impl Round {
    /// Returns how many of the neighbour's calls were answered.
    pub fn answered(&self) -> usize {
        self.meanwhile.iter().map(|it| it.alone.count() + it.beside.count()).sum()
    }
}

/// Shows and prints all rows. Tells whether all aims are met.
pub async fn all(options: &Options) -> Result<bool> {
    let is_wanted = |name: &str| options.only.as_ref().is_none_or(|word| name.contains(word));
    let starts = "how often a server that always fails is started";
    let starting = (!options.quick && is_wanted(starts)).then(|| tokio::spawn(crash_loop::watch()));
    let mut good = true;
    for row in Row::all().filter(|row| is_wanted(row.name())) {
        let (mut rounds, mut not_run) = (vec![], None);
        for _ in 0..row.rounds(options) {
            match row.show(options.quick).await? {
                Shown::Round(round) => rounds.push(round),
                Shown::NotRun(reason) => not_run = Some(reason),
            }
        }
        println!("{}", row.name());
        match not_run {
            Some(reason) => println!("    NOT RUN: {reason}\n"),
            None => good &= print(row, &rounds, options.quick),
        }
    }
    if let Some(starting) = starting {
        println!("{starts}");
        for figure in starting.await?? {
            good &= figure.print();
        }
    }
    Ok(good)
}

/// Calls the neighbour alone, and beside a fault that is caused meanwhile.
pub async fn beside(
    target: &Target,
    cause: impl Future<Output = Result<Vec<Figure>>>,
) -> Result<Round> {
    let neighbour = Neighbour::start(target);
    sleep(TIME).await;
    let alone = neighbour.end().await?;

    let watch = Watch::start(target)?;
    let neighbour = Neighbour::start(target);
    let end = Instant::now() + TIME;
    let figures = cause.await?;
    sleep_until(end).await;
    let beside = neighbour.end().await?;
    let meanwhile = Some(Meanwhile { alone, beside, seen: watch.end() });
    Ok(Round { figures, meanwhile })
}

/// Prints what all rounds have shown; tells whether it is good.
fn print(row: Row, rounds: &[Round], quick: bool) -> bool {
    let mut good = true;
    let figures = rounds.iter().map(|round| round.figures.len()).min().unwrap_or_default();
    for figure in
        (0..figures).filter_map(|n| Figure::of_rounds(rounds.iter().map(|round| &round.figures[n])))
    {
        good &= if quick { figure.not_judging_latency() } else { figure }.print();
    }
    let meanwhile: Vec<_> = rounds.iter().filter_map(|round| round.meanwhile.as_ref()).collect();
    if meanwhile.is_empty() {
        println!();
        return good;
    }
    good & print_meanwhile(row, &meanwhile, quick)
}

fn print_meanwhile(row: Row, rounds: &[&Meanwhile], quick: bool) -> bool {
    let memory = |of: fn(&Seen) -> u64| rounds.iter().map(|it| of(&it.seen)).max().unwrap_or(0);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let growth = mib(memory(|seen| seen.growth));
    let mut good =
        Figure::new("memory growth, at most", growth, "MiB", row.growth_max_mib()).print();
    Figure::new("memory growth, kept", mib(memory(|seen| seen.growth_kept)), "MiB", None).print();

    let failed = rounds.iter().map(|round| round.beside.failed).sum();
    good &= Figure::none("neighbour's calls that failed", failed).print();
    let quantiles = |part| {
        let alone = median(rounds.iter().map(|round| round.alone.quantile_ms(part)));
        (alone, median(rounds.iter().map(|round| round.beside.quantile_ms(part))))
    };
    let ((p50_alone, p50), (p99_alone, p99)) = (quantiles(0.5), quantiles(0.99));
    let most = (p99_alone * RISE_MAX_PART).max(p99_alone + RISE_MAX_MS);
    Figure::new("neighbour's p50 alone", p50_alone, "ms", None).print();
    Figure::new("neighbour's p50 meanwhile", p50, "ms", None).print();
    Figure::new("neighbour's p99 alone", p99_alone, "ms", None).print();
    good &= Figure::new("neighbour's p99 meanwhile", p99, "ms", (!quick).then_some(most)).print();
    let calls: usize = rounds.iter().map(|round| round.beside.count()).sum();
    let story = rounds.last().map(|round| round.seen.story()).unwrap_or_default();
    println!("    ({calls} calls of the neighbour) GET /v1/servers/bad: {story}\n");
    good
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
