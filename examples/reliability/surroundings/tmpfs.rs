//! A small disk, to be filled.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use tempfile::TempDir;

/// What a file grows by at least.
const PAGE: [u8; 4096] = [0; 4096];

/// A file system in memory. It goes when it is dropped.
pub struct Tmpfs {
    dir: TempDir,
}

impl Tmpfs {
    /// Mounts one of so many bytes and files. Returns the reason if that is not possible here.
    pub fn mount(options: &str) -> Result<Result<Self, String>> {
        let dir = tempfile::tempdir()?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "trunkline"]).arg(dir.path());
        Ok(match mount.output() {
            Ok(output) if output.status.success() => Ok(Self { dir }),
            Ok(output) => {
                let error = String::from_utf8_lossy(&output.stderr);
                Err(format!("no file system can be mounted here: {}", error.trim()))
            }
            Err(error) => Err(format!("`mount` cannot be run: {error}")),
        })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Fills it to the last page.
    pub fn fill(&self) -> Result<()> {
        let mut file: File =
            match OpenOptions::new().create(true).append(true).open(self.path().join("filler")) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => bail!(error),
            };
        loop {
            match file.write(&PAGE) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => bail!(error),
            }
        }
    }

    /// Makes room again.
    pub fn empty(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.path().join("filler"))?)
    }

    /// Lets nobody write to it (`ro`), or everybody again (`rw`).
    pub fn remount(&self, option: &str) -> Result<()> {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,{option}")]).arg(self.path());
        let status = mount.status()?;
        if !status.success() {
            bail!("the file system could not be mounted again");
        }
        Ok(())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // At once for everybody: the gateway may still have files there.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
