//! Decides where the store's file is. Its path must not depend on the directory that a command
//! happens to run in: a command elsewhere would work on another store than the gateway.

use std::path::{Path, PathBuf};

use reqwest::Url;

use super::error::Place;
use super::tree::{Node, Table};
use super::{Secret, Sources, StoreConfig};

/// The directory that a relative path of the store's file starts at.
pub(super) enum Base {
    /// The directory of the configuration file, or for a variable the working directory.
    Dir(PathBuf),
    State(StateDir),
}

/// The user's directory for the default file where no configuration file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateDir {
    At(PathBuf),
    /// The user has no home directory.
    Unknown,
}

/// Returns the base for the setting that is in force. `file` is the configuration file.
pub(super) fn base(settings: &mut Table, file: Option<&Path>, sources: &Sources) -> Base {
    let store = settings.get_mut("store").and_then(Node::table_mut);
    let place = store.and_then(|store| store.get("url")).map(|url| &url.place);
    match (place, file) {
        (Some(Place::Variable(_)), _) => Base::Dir(sources.working_dir.clone()),
        (_, Some(file)) => Base::Dir(file.parent().unwrap_or(Path::new("/")).to_owned()),
        (_, None) => Base::State(state_dir(sources)),
    }
}

/// Returns `$XDG_STATE_HOME/trunkline`, or `~/.local/state/trunkline`.
fn state_dir(sources: &Sources) -> StateDir {
    let variable = |wanted: &str| {
        let (_, value) = sources.env.iter().find(|(name, _)| name == wanted)?;
        // A relative path would depend on the working directory again.
        Some(Path::new(value)).filter(|path| path.is_absolute())
    };
    let state = variable("XDG_STATE_HOME").map(Path::to_owned);
    match state.or_else(|| Some(variable("HOME")?.join(".local/state"))) {
        Some(state) => StateDir::At(state.join("trunkline")),
        None => StateDir::Unknown,
    }
}

/// Makes the path of the store's file absolute.
pub(super) fn place(store: StoreConfig, base: Base, sources: &Sources) -> StoreConfig {
    let Some(path) = relative_path(store.url.expose()) else { return store };
    let (dir, state_dir) = match base {
        Base::Dir(dir) => (Some(dir), None),
        Base::State(StateDir::At(dir)) => (Some(dir.clone()), Some(StateDir::At(dir))),
        Base::State(StateDir::Unknown) => (None, Some(StateDir::Unknown)),
    };
    let earlier = url_below(&sources.working_dir, path);
    let url = dir.and_then(|dir| url_below(&dir, path)).unwrap_or_else(|| store.url.clone());
    let earlier_url = earlier.filter(|earlier| *earlier != url);
    StoreConfig { url, earlier_url, state_dir }
}

/// Returns the path of a `sqlite:` URL that is relative, as it is written there.
fn relative_path(url: &str) -> Option<&str> {
    let path = url.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    // An empty path and `:memory:` are refused when the store is opened.
    (!path.is_empty() && path != ":memory:" && !path.starts_with('/')).then_some(path)
}

fn url_below(dir: &Path, path: &str) -> Option<Secret> {
    let dir = Url::from_directory_path(std::path::absolute(dir).ok()?).ok()?;
    Some(Secret::new(format!("sqlite://{}{path}", dir.path())))
}
