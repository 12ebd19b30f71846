//! The files of a configuration, looked at again and again.
//!
//! What counts is what they say, wherever they are linked to and whenever they were written: editors put a new file in
//! the place of the old, and Kubernetes swaps a symbolic link far above it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::{Config, ConfigError, Sources};

/// The files that a configuration is from.
pub struct ConfigWatch {
    sources: Arc<Sources>,
    files: Vec<PathBuf>,
    /// What they said when they were last read in earnest.
    taken: Vec<FileContents>,
    /// What they said at the last look.
    seen: Vec<FileContents>,
}

/// What a file says, or why it says nothing.
type FileContents = Result<Vec<u8>, io::ErrorKind>;

impl ConfigWatch {
    /// Looks for the first time. To be made before the configuration is read: what changes between is noticed then.
    pub fn new(sources: Sources) -> Self {
        let files = sources.files();
        let read = |path: &PathBuf| std::fs::read(path).map_err(|error| error.kind());
        let taken: Vec<_> = files.iter().map(read).collect();
        Self { sources: Arc::new(sources), files, seen: taken.clone(), taken }
    }

    /// Where the configuration comes from.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Whether the files say something else than when they were last read, and said the same at the last look: one
    /// that is being written is left alone.
    pub(crate) async fn poll(&mut self) -> bool {
        let mut seen = Vec::with_capacity(self.files.len());
        for path in &self.files {
            seen.push(tokio::fs::read(path).await.map_err(|error| error.kind()));
        }
        let before = std::mem::replace(&mut self.seen, seen);
        self.seen == before && self.seen != self.taken
    }

    /// Reads and checks the configuration. What was seen last is not read again because of the files alone.
    pub(crate) async fn read(&mut self) -> Result<Config, ConfigError> {
        self.taken.clone_from(&self.seen);
        let sources = self.sources.clone();
        let reading = tokio::task::spawn_blocking(move || crate::config::load(&sources));
        reading.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn watch(dir: &Path) -> ConfigWatch {
        let file = dir.join("trunkline.toml");
        ConfigWatch::new(Sources {
            file: Some(file),
            mcp_file: None,
            listen: None,
            env: vec![],
            working_dir: dir.to_owned(),
            own_program: "trunkline".into(),
        })
    }

    #[tokio::test]
    async fn a_change_counts_when_it_is_seen_twice_and_once_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("trunkline.toml");
        std::fs::write(&file, "").unwrap();
        let mut watch = watch(dir.path());
        assert!(!watch.poll().await);
        // Half of it, and then all.
        std::fs::write(&file, "drain_del").unwrap();
        assert!(!watch.poll().await);
        std::fs::write(&file, "drain_delay = \"1s\"").unwrap();
        assert!(!watch.poll().await);
        assert!(watch.poll().await);
        assert_eq!(watch.read().await.unwrap().drain_delay.as_secs(), 1);
        assert!(!watch.poll().await);
        // Written again, and the same.
        std::fs::write(&file, "drain_delay = \"1s\"").unwrap();
        assert!(!watch.poll().await);
        assert!(!watch.poll().await);
    }

    #[tokio::test]
    async fn a_file_that_is_away_for_a_moment_is_not_missed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("trunkline.toml");
        std::fs::write(&file, "").unwrap();
        let mut watch = watch(dir.path());
        std::fs::remove_file(&file).unwrap();
        assert!(!watch.poll().await);
        std::fs::write(&file, "").unwrap();
        assert!(!watch.poll().await);
        assert!(!watch.poll().await);
        // Away for good is a mistake, said once.
        std::fs::remove_file(&file).unwrap();
        assert!(!watch.poll().await);
        assert!(watch.poll().await);
        assert!(watch.read().await.is_err());
        assert!(!watch.poll().await);
    }
}
