//! The rows, and what is expected of them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;

use crate::load::{self, Backlog, Quiet};
use crate::target::{Server, Target};

/// Tenants of a gateway, the one that is not quiet included.
const TENANTS: usize = 100;
/// Connections of a tenant that floods, each with a call: as many hundred times its part of the
/// slots.
const FLOOD_CONNECTIONS: usize = 256;
/// The time of a flood's calls and of a hanging tenant's, in milliseconds.
const FLOOD_MS: u64 = load::QUIET_MS;
const SLOW_MS: u64 = 10 * FLOOD_MS;
const HANG_MS: u64 = 30_000;
/// Connections of a tenant that hangs or cancels.
const HANG_CONNECTIONS: usize = 64;
/// By how much the calls of a flood differ.
const SPREAD: f64 = 0.2;
/// The rate of the limited tenant, the multiple that it asks for, its connections, and the least
/// multiple that it must reach: less would not be the row that is named.
const RATE_PER_S: u32 = 50;
const ASKED_TIMES: u32 = 100;
const ASKED_TIMES_MIN: f64 = 95.0;
const ASKING_CONNECTIONS: u32 = 64;

/// By how much the quiet tenants' p99 may rise, absolutely or as a part of what it was; and by how
/// much where slots are hung up, absolutely.
const RISE_MAX: Duration = Duration::from_millis(2);
const RISE_MAX_PART: f64 = 1.2;
const JAIN_MIN: f64 = 0.99;
const WEIGHT_DEVIATION_MAX: f64 = 0.02;

/// The behaviour of the tenant that is not quiet.
#[derive(Clone, Copy)]
enum Nuisance {
    None,
    /// Connections, what their calls take, and by which part that differs.
    Flood(usize, u64, f64),
    /// Asks for far more than its rate.
    Asks,
    Cancel,
}

struct Round {
    quiet: Quiet,
    /// How many times its rate the one with a rate has asked for.
    asked_times: Option<f64>,
}

/// Measures and prints all rows. Tells whether all criteria are met.
pub async fn all(time: Duration, rounds: u32) -> Result<bool> {
    println!("{:44} {:>6} {:>9} {:>9} {:>8}", "quiet tenants", "calls", "p50", "p99", "refused");
    let mut good = true;
    for (name, nuisance, server, is_hung) in [
        ("a flood", Nuisance::Flood(FLOOD_CONNECTIONS, FLOOD_MS, SPREAD), Server::Std, false),
        (
            "a flood of calls of 80 to 120 ms",
            Nuisance::Flood(FLOOD_CONNECTIONS, SLOW_MS, SPREAD),
            Server::Std,
            false,
        ),
        (
            "a flood of calls of exactly 100 ms",
            Nuisance::Flood(FLOOD_CONNECTIONS, SLOW_MS, 0.0),
            Server::Std,
            false,
        ),
        ("one that asks for 100 times its rate", Nuisance::Asks, Server::Std, false),
        (
            "one that hangs all it gets, 30 s",
            Nuisance::Flood(HANG_CONNECTIONS, HANG_MS, SPREAD),
            Server::Std,
            true,
        ),
        ("one that cancels, and is ignored", Nuisance::Cancel, Server::Fake, true),
    ] {
        let (mut alone, mut beside) = (vec![], vec![]);
        // In turns: whatever else the machine does, it does to both.
        for _ in 0..rounds {
            alone.push(quiet_beside(Nuisance::None, server, time).await?);
            beside.push(quiet_beside(nuisance, server, time).await?);
        }
        let p99_alone = print_quiet("alone", &alone);
        let p99 = print_quiet(&format!("beside {name}"), &beside);
        let part = if is_hung { p99_alone } else { p99_alone.mul_f64(RISE_MAX_PART) };
        let kept = p99 <= part.max(p99_alone + RISE_MAX);
        let none_refused =
            beside.iter().all(|round| round.quiet.refused == 0 && round.quiet.calls() > 0);
        let asked = beside.iter().filter_map(|round| round.asked_times).reduce(f64::min);
        if let Some(times) = asked {
            println!(
                "{:44} {times:.1} times its rate, in the round with the fewest",
                "it asked for"
            );
        }
        let is_as_said = asked.is_none_or(|times| times >= ASKED_TIMES_MIN);
        println!("{:44} {}", "", verdict(kept && none_refused && is_as_said));
        good &= kept && none_refused && is_as_said;
    }
    println!();
    good &= equal_tenants(time).await?;
    good &= weighted_tenants(time).await?;
    Ok(good)
}

async fn quiet_beside(nuisance: Nuisance, server: Server, time: Duration) -> Result<Round> {
    let settings = match nuisance {
        Nuisance::Asks => vec![format!("rate = \"{RATE_PER_S}/s\"")],
        _ => vec![],
    };
    let target = Target::start(TENANTS, &settings).await?;
    let (loud, quiet) = (&target.tenants[0], &target.tenants[1..]);
    let mut asked = None;
    let nuisances = match nuisance {
        Nuisance::None => None,
        Nuisance::Flood(connections, ms, spread) => {
            Some(load::flood(loud, connections, ms, spread))
        }
        Nuisance::Asks => {
            let per_s = RATE_PER_S * ASKED_TIMES;
            let (tasks, answered) = load::ask(loud, ASKING_CONNECTIONS, per_s, FLOOD_MS);
            asked = Some(answered);
            Some(tasks)
        }
        Nuisance::Cancel => Some(load::cancel(loud, HANG_CONNECTIONS)),
    };
    let quiet = load::quiet(quiet, server, time).await;
    let asked_for = (load::WARMUP + time - load::HEAD_START).as_secs_f64();
    let asked_times = asked.map(|answered| {
        answered.load(Ordering::Relaxed) as f64 / asked_for / f64::from(RATE_PER_S)
    });
    drop(nuisances);
    target.stop().await;
    Ok(Round { quiet, asked_times })
}

/// Prints what became of the quiet tenants in all rounds; gives the median of the rounds' p99.
fn print_quiet(name: &str, rounds: &[Round]) -> Duration {
    let p99 = median(rounds, 0.99);
    println!(
        "{name:44} {:>6} {:>9.2?} {p99:>9.2?} {:>8}",
        rounds.iter().map(|round| round.quiet.calls()).sum::<usize>(),
        median(rounds, 0.5),
        rounds.iter().map(|round| round.quiet.refused).sum::<usize>(),
    );
    p99
}

/// The median of the rounds' quantiles: a pause of the machine's spoils a round, not the figure.
fn median(rounds: &[Round], part: f64) -> Duration {
    let mut quantiles: Vec<_> = rounds.iter().map(|round| round.quiet.quantile(part)).collect();
    quantiles.sort();
    quantiles[quantiles.len() / 2]
}

pub fn verdict(good: bool) -> &'static str {
    if good { "pass" } else { "FAIL" }
}

/// Some have more connections, some slower calls.
async fn equal_tenants(time: Duration) -> Result<bool> {
    let target = Target::start(10, &[]).await?;
    let backlog = |n: usize| Backlog { connections: 16 * (1 + n % 3), ms: [10, 20, 40][n / 3 % 3] };
    let tenants: Vec<_> =
        target.tenants.iter().cloned().enumerate().map(|(n, it)| (it, backlog(n))).collect();
    let parts = load::backlogged(&tenants, time).await;
    target.stop().await;
    let jain = jain(&parts);
    let good = jain >= JAIN_MIN;
    println!("{:44} Jain index {jain:.4}  {}", "ten equal tenants that want more", verdict(good));
    Ok(good)
}

/// 1 if all have the same, 1/n if one has all.
fn jain(parts: &[f64]) -> f64 {
    let (sum, squares) = parts.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    sum * sum / (parts.len() as f64 * squares)
}

async fn weighted_tenants(time: Duration) -> Result<bool> {
    let weights = [1, 2, 5];
    let settings = weights.map(|weight| format!("weight = {weight}"));
    let target = Target::start(weights.len(), &settings).await?;
    let backlog = Backlog { connections: 48, ms: 10 };
    let tenants: Vec<_> = target.tenants.iter().cloned().map(|it| (it, backlog)).collect();
    let parts = load::backlogged(&tenants, time).await;
    target.stop().await;
    let unit = parts.iter().sum::<f64>() / f64::from(weights.iter().sum::<u32>());
    let relative: Vec<_> = parts.iter().map(|part| part / unit).collect();
    let deviations =
        relative.iter().zip(weights).map(|(part, weight)| part / f64::from(weight) - 1.0);
    let good = deviations.clone().all(|deviation| deviation.abs() <= WEIGHT_DEVIATION_MAX);
    println!(
        "{:44} {relative:.3?}  {}",
        "three tenants that want more, weights 1:2:5",
        verdict(good)
    );
    Ok(good)
}
