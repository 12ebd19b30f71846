//! Keeps `docs/reference/` current: pages made from the code must equal what the code says.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use clap::{Arg, Command};
use trunkline::telemetry::metrics::Metrics;

const REMAKE: &str = "UPDATE_REFERENCE=1 cargo test --test reference";

#[test]
fn pages_made_from_the_code_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference");
    let pages = [
        ("cli.md", cli()),
        ("configuration.md", trunkline::config::reference()),
        ("metrics.md", metrics()),
    ];
    for (name, text) in pages {
        let file = folder.join(name);
        if env::var_os("UPDATE_REFERENCE").is_some() {
            fs::write(&file, text).unwrap();
        } else {
            let current = fs::read_to_string(&file).unwrap_or_default();
            assert!(current == text, "{} is out of date: run `{REMAKE}`", file.display());
        }
    }
}

/// Begins a page: its title, who makes it, and a first paragraph.
fn page(title: &str, intro: &str) -> String {
    format!("# {title}\n\n<!-- Made from the code by `{REMAKE}`. -->\n\n{intro}\n")
}

fn metrics() -> String {
    let mut text = page(
        "Metrics",
        "`GET /metrics` has these in Prometheus' text format.\n\
         [Monitoring](../operate/monitoring.md) says which of them to watch. The buckets of\n\
         histograms reach from 0.1 ms to one hour.",
    );
    text += "\n| name | type | labels | help |\n|---|---|---|---|\n";
    for metric in Metrics::descriptions() {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, help) = (metric.name, metric.kind, metric.help);
        writeln!(text, "| `{name}` | {kind} | {} | {help} |", labels.join(", ")).unwrap();
    }
    text
}

fn cli() -> String {
    let mut text = page(
        "Command line",
        "Commands that read or change state work on the store that the configuration names, also\n\
         while a gateway runs, and say on standard error which store that is. Where there is no\n\
         store yet, they refuse, unless they have `--create`. Commands with `--url` ask a running\n\
         gateway. Every command exits with 2 when it is used wrongly, or the configuration is\n\
         wrong.",
    );
    let mut command = trunkline::cli::command();
    command.build();
    let serve = command.find_subcommand("serve").unwrap();
    text += "\n## Options of the configuration\n";
    text += &table(serve.get_arguments().filter(|argument| is_of_configuration(argument)));
    describe(&mut text, &mut command, "");
    text
}

/// Describes a command and all below it that people may use.
fn describe(text: &mut String, command: &mut Command, parent: &str) {
    let name = format!("{parent}{}", command.get_name());
    if !command.has_subcommands() {
        let about = command.get_long_about().or(command.get_about()).unwrap().to_string();
        let usage = command.render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ");
        write!(text, "\n## {name}\n\n{}\n\n```text\n{usage}\n```\n", paragraphs(&about)).unwrap();
        if command.get_arguments().any(is_of_configuration) {
            *text += "\nTakes the [options of the configuration](#options-of-the-configuration).\n";
        }
        let is_own = |argument: &&Arg| !is_of_configuration(argument) && !is_left_out(argument);
        let options = command.get_arguments().filter(|argument| !argument.is_positional());
        *text += &table(command.get_positionals().chain(options).filter(is_own));
    }
    for below in command.get_subcommands_mut().filter(|below| !below.is_hide_set()) {
        if below.get_name() != "help" {
            describe(text, below, &format!("{name} "));
        }
    }
}

/// A table of arguments; nothing if there are none.
fn table<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let mut text = String::new();
    for argument in arguments {
        if text.is_empty() {
            text += "\n| argument | |\n|---|---|\n";
        }
        writeln!(text, "| `{}` | {} |", spelled(argument), explained(argument)).unwrap();
    }
    text
}

fn is_of_configuration(argument: &Arg) -> bool {
    ["config", "mcp_config"].contains(&argument.get_id().as_str())
}

fn is_left_out(argument: &Arg) -> bool {
    argument.is_hide_set() || ["help", "version"].contains(&argument.get_id().as_str())
}

/// `--rate <RATE>`, `<TENANT>` or `[JSON]`.
fn spelled(argument: &Arg) -> String {
    let value = argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string);
    let value = value.collect::<Vec<_>>().join(" ");
    match argument.get_long() {
        Some(long) if !argument.get_action().takes_values() => format!("--{long}"),
        Some(long) => format!("--{long} <{value}>"),
        None if argument.is_required_set() => format!("<{value}>"),
        None => format!("[{value}]"),
    }
}

/// The help text, the default, and the variable that can be set instead.
fn explained(argument: &Arg) -> String {
    let mut text = sentence(&argument.get_help().unwrap().to_string()).replace('|', "\\|");
    let takes_values = argument.get_action().takes_values();
    let defaults = argument.get_default_values().iter().filter(|_| takes_values);
    for default in defaults {
        write!(text, " Default: `{}`.", default.to_str().unwrap()).unwrap();
    }
    if let Some(variable) = argument.get_env() {
        write!(text, " Environment: `{}`.", variable.to_str().unwrap()).unwrap();
    }
    text
}

/// Ends a help text with a full stop; a default in brackets becomes a sentence of its own.
fn sentence(help: &str) -> String {
    match help.split_once(" [default: ") {
        Some((help, default)) => format!("{help}. Default: {}.", default.trim_end_matches(']')),
        None => help.trim_end_matches('.').to_owned() + ".",
    }
}

/// Ends each paragraph with a full stop, and breaks lines that are too long.
fn paragraphs(about: &str) -> String {
    let mut text = String::new();
    for paragraph in about.split("\n\n") {
        let mut len = 0;
        text += if text.is_empty() { "" } else { "\n\n" };
        for word in sentence(paragraph).split_whitespace() {
            len += word.len() + 1;
            if len > 100 {
                len = word.len() + 1;
                text += "\n";
            } else if len > word.len() + 1 {
                text += " ";
            }
            text += word;
        }
    }
    text
}
