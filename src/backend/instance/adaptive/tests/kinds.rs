//! The limit, and the work done, with each kind of server.

use rand::{RngExt, rngs::StdRng};

use super::simulation::{CONCURRENT, Load, MAX, Outcome, Server, Simulation, Work, exponential};

const SEEDS: u64 = 2;
const CALLERS: Load = Load::Callers(100);

fn equal(_: &mut StdRng) -> (&'static str, f64) {
    ("equal", 0.25)
}

fn varied(random: &mut StdRng) -> (&'static str, f64) {
    ("varied", exponential(random, 0.25))
}

/// 1 ms to 3 s, as many of each order of magnitude.
fn sleeps(random: &mut StdRng) -> (&'static str, f64) {
    ("sleep", 0.001 * 3000_f64.powf(random.random()))
}

/// Like `sleeps`, with one tool for each order of magnitude.
fn sleeps_of_many(random: &mut StdRng) -> (&'static str, f64) {
    const TOOLS: [(&str, f64); 6] =
        [("a", 0.001), ("b", 0.005), ("c", 0.025), ("d", 0.12), ("e", 0.6), ("f", 3.0)];
    TOOLS[random.random_range(0..TOOLS.len())]
}

/// One tool in ten calls, and now and then much of it at once.
fn fast_and_slow(random: &mut StdRng) -> (&'static str, f64) {
    if random.random_ratio(1, 10) { ("slow", 2.0) } else { ("fast", 0.005) }
}

/// Hardly ever slow, and then very much so.
fn seldom_slow(random: &mut StdRng) -> (&'static str, f64) {
    ("query", if random.random_ratio(1, 100) { 10.0 } else { 0.05 })
}

/// Runs a server for long, and what comes out after that.
fn steady(server: Server, load: Load, work: Work, seed: u64) -> (Outcome, f64) {
    let time = if matches!(server, Server::Workers(usize::MAX)) { 600.0 } else { 1800.0 };
    let mut simulation = Simulation::new(server, load, work, seed);
    let first = simulation.run(time);
    let outcome = simulation.run(time);
    let ideal = Simulation::new(server, load, work, seed).ideal().run(time);
    let part = outcome.work / ideal.work;
    println!(
        "{server:?} {load:?} {seed}: {:.1}% of {:.1}/s, {:.1} in flight, limit {:.1}: {:?} {:?}",
        100.0 * part,
        ideal.per_second,
        outcome.in_flight,
        outcome.limit,
        first.limits,
        outcome.limits,
    );
    (outcome, part)
}

/// A server that runs so many at once ends near one more, and loses nothing by it. A single run may
/// be trying more for a while, so the limit is that of all runs.
fn assert_found(server: Server, at_once: f64) {
    let mut limits = vec![];
    for work in [equal, varied] {
        for seed in 0..SEEDS {
            let (outcome, part) = steady(server, CALLERS, work, seed);
            assert!(part > 0.95, "{part}");
            limits.push(outcome.limit);
        }
    }
    let (limit, expected) = (limits.iter().sum::<f64>() / limits.len() as f64, at_once + 1.0);
    assert!((limit - expected).abs() <= 0.3 * expected, "{limits:?}");
}

/// A server that runs all at once is used fully.
fn assert_left_alone(load: Load, work: Work) {
    for seed in 0..SEEDS {
        let (outcome, part) = steady(CONCURRENT, load, work, seed);
        assert!(part > 0.95, "{part}");
        assert!(outcome.limit > 0.95 * f64::from(MAX), "{}", outcome.limit);
    }
}

#[test]
fn a_serial_server_is_found_out() {
    assert_found(Server::Workers(1), 1.0);
}

#[test]
fn a_server_with_a_few_workers_is_found_out() {
    for workers in [2, 4, 8] {
        assert_found(Server::Workers(workers), workers as f64);
    }
}

#[test]
fn a_server_that_needs_its_processor_is_found_out() {
    for cores in [1, 2, 4, 8] {
        assert_found(Server::Cores(cores.into()), cores.into());
    }
}

/// With one or two calls in a second, of all lengths, it takes hours.
#[test]
fn a_serial_server_with_calls_of_all_lengths_is_found_out_at_last() {
    for seed in 0..SEEDS {
        let mut simulation = Simulation::new(Server::Workers(1), CALLERS, sleeps_of_many, seed);
        println!("{:?}", simulation.run(12.0 * 3600.0).limits);
        let outcome = simulation.run(3600.0);
        assert!(outcome.limit < 4.0, "{:?}", outcome.limits);
    }
}

#[test]
fn a_concurrent_server_is_used_fully_whatever_its_calls_take() {
    for work in [equal, varied, sleeps, sleeps_of_many, fast_and_slow, seldom_slow] {
        assert_left_alone(CALLERS, work);
    }
}

#[test]
fn a_light_load_is_left_alone() {
    for (server, per_second) in [(Server::Workers(1), 2.0), (CONCURRENT, 4.0), (CONCURRENT, 40.0)] {
        for seed in 0..SEEDS {
            let (outcome, _) = steady(server, Load::PerSecond(per_second), varied, seed);
            let part = outcome.of_those_who_came;
            assert!(part > 0.99, "{part}");
        }
    }
}

#[test]
fn a_server_that_becomes_another_is_found_out() {
    for work in [equal, varied] {
        for seed in 0..SEEDS {
            let mut simulation = Simulation::new(Server::Workers(1), CALLERS, work, seed);
            for (server, limit) in [
                (Server::Workers(1), 2),
                (CONCURRENT, MAX),
                (Server::Workers(1), 2),
                (Server::Cores(4.0), 5),
            ] {
                simulation.server = server;
                let outcome = simulation.run(1800.0);
                println!("{server:?} {seed}: {:?}", outcome.limits);
                // Half an hour; in the second half of it, most of the time near what it should be.
                let near = limit / 2..=2 * limit;
                let there = outcome.limits[10..].iter().filter(|it| near.contains(it)).count();
                assert!(there >= 6, "{:?}", outcome.limits);
            }
        }
    }
}

#[test]
fn a_server_that_becomes_slower_or_quicker_is_used_fully() {
    let slower: Work = |_| ("equal", 1.0);
    for seed in 0..SEEDS {
        let mut simulation = Simulation::new(CONCURRENT, CALLERS, equal, seed);
        for n in 0..20 {
            simulation.work = if n % 2 == 0 { equal } else { slower };
            let outcome = simulation.run(200.0);
            assert!(outcome.limit > 0.9 * f64::from(MAX), "{n}: {:?}", outcome.limits);
        }
    }
}
