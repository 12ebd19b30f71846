//! The servers of the rows, as tables of the configuration.

use std::path::{Path, PathBuf};

use crate::target::FAKE;

/// Returns the bundled server with default settings, and these.
pub fn bundled(settings: &str) -> String {
    format!("[servers.std]\ncommand = \"trunkline\"\nargs = [\"std\"]\n{settings}\n")
}

/// Returns the server `fake`, with tools for all that a server can do wrong, with these options and
/// settings.
pub fn fake(dir: &Path, options: &[&str], settings: &str) -> String {
    let log = format!("log={}", fake_log(dir).display());
    let options = options.iter().map(|option| format!(", {option:?}")).collect::<String>();
    format!(
        "[servers.fake]\ncommand = \"python3\"\n\
         args = [\"-I\", \"-S\", \"-X\", \"utf8\", {FAKE:?}, {log:?}{options}]\n{settings}\n"
    )
}

/// Returns the file that has all lines that the server was sent.
pub fn fake_log(dir: &Path) -> PathBuf {
    dir.join("fake.log")
}
