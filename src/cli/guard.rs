//! `trunkline guard`: not for people; see [`crate::backend::stdio::guard`].

use std::ffi::OsString;
use std::process::ExitCode;

use crate::backend::stdio::guard;

/// With its arguments as the gateway writes them: its own process id, how the server is confined, `--`, the program and what
/// is for that. They are not looked for among all that people may say: a guard is started with every server, and that
/// would take half of its time.
pub(super) fn run(args: &[OsString]) -> ExitCode {
    let [gateway, profile, _, program, args @ ..] = args else { return misused() };
    let (Some(gateway), Some(profile)) = (gateway.to_str(), profile.to_str()) else {
        return misused();
    };
    let Ok(gateway) = gateway.parse() else { return misused() };
    guard::run(gateway, profile, program, args)
}

fn misused() -> ExitCode {
    eprintln!("error: `trunkline guard` is started by the gateway itself");
    ExitCode::from(2)
}
