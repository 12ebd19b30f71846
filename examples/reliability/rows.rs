//! The rounds of each row, and what is expected of them.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep, sleep_until};

use crate::figure::Figure;
use crate::neighbour::{Calls, Neighbour};
use crate::target::Target;
use crate::trouble::Trouble;
use crate::watch::{Seen, Watch};
use crate::{Options, crash_loop};

/// The neighbour is called for so long alone, and at least for so long beside.
const TIME: Duration = Duration::from_secs(3);
/// By how much its p99 may rise, as a part of what it was or absolutely.
const RISE_MAX_PART: f64 = 1.2;
const RISE_MAX_MS: f64 = 2.0;

struct Round {
    figures: Vec<Figure>,
    alone: Calls,
    beside: Calls,
    seen: Seen,
}

/// Shows and prints all rows. Tells whether all aims are met.
pub async fn all(options: &Options) -> Result<bool> {
    let is_wanted = |name: &str| options.only.as_ref().is_none_or(|word| name.contains(word));
    let starts = "how often a server that always fails is started";
    let starting = (!options.quick && is_wanted(starts)).then(|| tokio::spawn(crash_loop::watch()));
    let mut good = true;
    for trouble in Trouble::ALL.into_iter().filter(|trouble| is_wanted(trouble.name())) {
        let mut rounds = vec![];
        for _ in 0..if options.quick { 1 } else { options.rounds } {
            rounds.push(round(trouble, options.quick).await?);
        }
        println!("{}", trouble.name());
        good &= print(trouble, &rounds, options.quick);
    }
    if let Some(starting) = starting {
        println!("{starts}");
        for figure in starting.await?? {
            good &= figure.print();
        }
    }
    Ok(good)
}

async fn round(trouble: Trouble, quick: bool) -> Result<Round> {
    let target = Target::start(&trouble.server()).await?;
    let neighbour = Neighbour::start(target.address);
    sleep(TIME).await;
    let alone = neighbour.end().await?;

    let watch = Watch::start(&target)?;
    let neighbour = Neighbour::start(target.address);
    let end = Instant::now() + TIME;
    let figures = trouble.cause(&target, quick).await?;
    sleep_until(end).await;
    let beside = neighbour.end().await?;
    let seen = watch.end()?;
    target.stop().await;
    Ok(Round { figures, alone, beside, seen })
}

/// Prints what all rounds have shown; tells whether it is good.
fn print(trouble: Trouble, rounds: &[Round], quick: bool) -> bool {
    let mut good = true;
    let figures = rounds.iter().map(|round| round.figures.len()).min().unwrap_or_default();
    for figure in
        (0..figures).filter_map(|n| Figure::of_rounds(rounds.iter().map(|round| &round.figures[n])))
    {
        good &= if quick { figure.not_judging_latency() } else { figure }.print();
    }
    let memory = |of: fn(&Seen) -> u64| rounds.iter().map(|it| of(&it.seen)).max().unwrap_or(0);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let growth = mib(memory(|seen| seen.growth));
    good &= Figure::new("memory growth, at most", growth, "MiB", trouble.growth_max_mib()).print();
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
