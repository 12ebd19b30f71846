//! Structured logs on standard error: text for a person at a terminal, JSON for a machine.

use std::env;
use std::io::{IsTerminal, stderr};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::prelude::*;

/// Starts logging for this process: what `RUST_LOG` says, by default `info` and above.
pub fn init() {
    let directives = env::var("RUST_LOG").unwrap_or_default();
    let registry = tracing_subscriber::registry().with(filter(&directives));
    if stderr().is_terminal() {
        registry.with(layer().with_writer(stderr).with_target(false)).init();
    } else {
        registry.with(layer().with_writer(stderr).json().flatten_event(true)).init();
    }
}

/// Reads levels and `target=level` pairs, separated by commas. Reports and ignores invalid ones.
fn filter(directives: &str) -> Targets {
    let is_valid = |directive: &&str| {
        let parsed = directive.parse::<Targets>();
        parsed.inspect_err(|error| eprintln!("ignoring `{directive}` in RUST_LOG: {error}")).is_ok()
    };
    let valid: Vec<&str> = directives
        .split(',')
        .map(str::trim)
        .filter(|directive| !directive.is_empty())
        .filter(is_valid)
        .collect();
    let parsed = valid.join(",").parse().ok().filter(|_| !valid.is_empty());
    parsed.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::filter;

    #[test]
    fn invalid_directives_are_ignored_and_info_is_the_default() {
        for directives in ["", " , ", "[span]=nonsense", "trunkline=loud"] {
            assert!(filter(directives).would_enable("trunkline", &Level::INFO), "{directives}");
            assert!(!filter(directives).would_enable("trunkline", &Level::DEBUG), "{directives}");
        }
        let some = filter("warn, trunkline::backend=debug,x=loud");
        assert!(some.would_enable("trunkline::backend::pool", &Level::DEBUG));
        assert!(!some.would_enable("trunkline::http", &Level::INFO));
    }
}
