//! `trunkline guard`: not for people; see [`crate::backend::stdio::guard`].

use std::ffi::OsString;
use std::process::ExitCode;

use crate::backend::stdio::guard;
use crate::telemetry::logging::print_line;

/// Runs a guard with the arguments that the gateway writes: the gateway's process id, the sandbox
/// profile, `--`, the program and its arguments. They bypass the command-line parser: every server
/// starts a guard, and parsing would take half of its time.
pub(super) fn run(args: &[OsString]) -> ExitCode {
    let [gateway, profile, _, program, args @ ..] = args else { return misused() };
    let (Some(gateway), Some(profile)) = (gateway.to_str(), profile.to_str()) else {
        return misused();
    };
    let Ok(gateway) = gateway.parse() else { return misused() };
    guard::run(gateway, profile, program, args)
}

fn misused() -> ExitCode {
    print_line("error: `trunkline guard` is started by the gateway itself");
    ExitCode::from(2)
}
