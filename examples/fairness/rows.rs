//! The rows, and what is expected of them.

use std::time::Duration;

use anyhow::Result;

use crate::load::{self, Backlog, Quiet};
use crate::target::{Server, Target};

/// Tenants of a gateway, the one that is not quiet included.
const TENANTS: usize = 100;
/// Connections of a tenant that floods, each with a call: as many hundred times its part of the slots.
const FLOOD_CONNECTIONS: usize = 256;
/// What a flood's calls and those of a hanging tenant take, in milliseconds.
const FLOOD_MS: u64 = load::QUIET_MS;
const SLOW_MS: u64 = 10 * FLOOD_MS;
const HANG_MS: u64 = 30_000;
/// Connections of a tenant that hangs or cancels.
const HANG_CONNECTIONS: usize = 64;

/// By how much the quiet tenants' p99 may rise, absolutely or as a part of what it was; and by how much where slots are
/// hung up, absolutely.
const RISE_MAX: Duration = Duration::from_millis(2);
const RISE_MAX_PART: f64 = 1.2;
const JAIN_MIN: f64 = 0.99;
const WEIGHT_DEVIATION_MAX: f64 = 0.02;

/// What the one that is not quiet does.
#[derive(Clone, Copy)]
enum Nuisance {
    None,
    Flood(usize, u64),
    Cancel,
}

/// Measures and prints all rows. Tells whether all criteria are met.
pub async fn all(time: Duration) -> Result<bool> {
    println!("{:44} {:>6} {:>9} {:>9} {:>8}", "quiet tenants", "calls", "p50", "p99", "refused");
    let alone = quiet_beside(Nuisance::None, Server::Std, time).await?;
    let mut good = print_quiet("alone", &alone, None, false);
    let hang = Nuisance::Flood(HANG_CONNECTIONS, HANG_MS);
    for (name, nuisance, is_hung) in [
        ("beside a flood", Nuisance::Flood(FLOOD_CONNECTIONS, FLOOD_MS), false),
        (
            "beside a flood of ten times slower calls",
            Nuisance::Flood(FLOOD_CONNECTIONS, SLOW_MS),
            false,
        ),
        ("beside one that hangs all it gets, 30 s", hang, true),
    ] {
        let quiet = quiet_beside(nuisance, Server::Std, time).await?;
        good &= print_quiet(name, &quiet, Some(&alone), is_hung);
    }
    let alone = quiet_beside(Nuisance::None, Server::Fake, time).await?;
    good &= print_quiet("alone, on a server that ignores cancels", &alone, None, false);
    let quiet = quiet_beside(Nuisance::Cancel, Server::Fake, time).await?;
    good &= print_quiet("beside one that cancels all it calls there", &quiet, Some(&alone), true);
    println!();
    good &= equal_tenants(time).await?;
    good &= weighted_tenants(time).await?;
    Ok(good)
}

async fn quiet_beside(nuisance: Nuisance, server: Server, time: Duration) -> Result<Quiet> {
    let target = Target::start(TENANTS, &[]).await?;
    let (loud, quiet) = (&target.tenants[0], &target.tenants[1..]);
    let nuisances = match nuisance {
        Nuisance::None => None,
        Nuisance::Flood(connections, ms) => Some(load::flood(loud, connections, ms).0),
        Nuisance::Cancel => Some(load::cancel(loud, HANG_CONNECTIONS)),
    };
    let quiet = load::quiet(quiet, server, time).await;
    drop(nuisances);
    target.stop().await;
    Ok(quiet)
}

fn print_quiet(name: &str, quiet: &Quiet, alone: Option<&Quiet>, is_hung: bool) -> bool {
    let p99 = quiet.quantile(0.99);
    let limit = alone.map_or(Duration::MAX, |alone| {
        let alone = alone.quantile(0.99);
        let part = if is_hung { alone } else { alone.mul_f64(RISE_MAX_PART) };
        part.max(alone + RISE_MAX)
    });
    let good = quiet.refused == 0 && quiet.calls() > 0 && p99 <= limit;
    println!(
        "{name:44} {:>6} {:>9.2?} {:>9.2?} {:>8}  {}",
        quiet.calls(),
        quiet.quantile(0.5),
        p99,
        quiet.refused,
        verdict(good)
    );
    good
}

fn verdict(good: bool) -> &'static str {
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
    let target = Target::start(weights.len(), &weights).await?;
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
