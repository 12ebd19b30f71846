//! Watches the files of a configuration for changes.
//!
//! Only their contents count, not links or timestamps: editors replace files, and Kubernetes swaps
//! a symbolic link far above them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::{Config, ConfigError, Sources};

pub struct ConfigWatch {
    sources: Arc<Sources>,
    /// Contents when the configuration was last loaded.
    loaded: Vec<FileContents>,
    /// Contents at the last poll.
    polled: Vec<FileContents>,
}

/// Contents of a file, or why it cannot be read.
type FileContents = Result<Vec<u8>, io::ErrorKind>;

impl ConfigWatch {
    /// Reads the files for the first time. Must be called before the configuration is loaded, so
    /// that no change in between is missed.
    pub fn new(sources: Sources) -> Self {
        let read = |path: PathBuf| std::fs::read(path).map_err(|error| error.kind());
        let loaded: Vec<_> = sources.files().into_iter().map(read).collect();
        Self { sources: Arc::new(sources), polled: loaded.clone(), loaded }
    }

    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Returns whether the contents differ from those loaded and have not changed since the last
    /// poll: a file that is being written is left alone.
    pub(crate) async fn poll(&mut self) -> bool {
        let mut polled = vec![];
        for path in self.sources.files() {
            polled.push(tokio::fs::read(path).await.map_err(|error| error.kind()));
        }
        let before = std::mem::replace(&mut self.polled, polled);
        self.polled == before && self.polled != self.loaded
    }

    /// Loads and checks the configuration. The same contents are not reported as changed again.
    pub(crate) async fn read(&mut self) -> Result<Config, ConfigError> {
        self.loaded.clone_from(&self.polled);
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
    async fn a_change_counts_once_after_two_equal_polls() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("trunkline.toml");
        std::fs::write(&file, "").unwrap();
        let mut watch = watch(dir.path());
        assert!(!watch.poll().await);
        // Half of it, then all of it.
        std::fs::write(&file, "drain_del").unwrap();
        assert!(!watch.poll().await);
        std::fs::write(&file, "drain_delay = \"1s\"").unwrap();
        assert!(!watch.poll().await);
        assert!(watch.poll().await);
        assert_eq!(watch.read().await.unwrap().drain_delay.as_secs(), 1);
        assert!(!watch.poll().await);
        // Written again with the same contents.
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
        // A file that stays away is a mistake, and is reported once.
        std::fs::remove_file(&file).unwrap();
        assert!(!watch.poll().await);
        assert!(watch.poll().await);
        assert!(watch.read().await.is_err());
        assert!(!watch.poll().await);
    }
}
