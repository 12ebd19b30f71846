//! A small disk, to be filled.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use tempfile::TempDir;

/// Files grow by this much at least.
const PAGE: [u8; 4096] = [0; 4096];

/// A file system in memory. It goes when it is dropped.
pub struct Tmpfs {
    dir: TempDir,
}

impl Tmpfs {
    /// Mounts one with such options. Returns the reason if that is not possible here.
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
        let file = OpenOptions::new().create(true).append(true).open(self.filler(0));
        full(file.and_then(|mut file| {
            loop {
                file.write_all(&PAGE)?;
            }
        }))
    }

    /// Makes as many files as there can be.
    pub fn fill_with_files(&self) -> Result<()> {
        full((1..).try_for_each(|n| File::create(self.filler(n)).map(drop)))
    }

    fn filler(&self, n: u32) -> PathBuf {
        self.path().join(format!("filler-{n}"))
    }

    /// Makes room again.
    pub fn empty(&self) -> Result<()> {
        for entry in std::fs::read_dir(self.path())? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("filler-") {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
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

/// Returns other errors than that of a full disk.
fn full(outcome: std::io::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::StorageFull => Ok(()),
        outcome => Ok(outcome?),
    }
}
