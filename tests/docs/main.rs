//! Runs every snippet of README.md and `docs/guide/`, so that no page can be wrong unnoticed.
//!
//! - `sh` blocks of a page run in order in one shell, with `set -e`, in a directory of their own.
//!   `trunkline serve` runs in the background, on a free port; the next line waits for it.
//! - `toml` blocks must be a valid configuration, `json` blocks must be JSON.
//! - A block with `file=NAME` is also written to that file.
//! - A block with `output` must equal the output of the `sh` block before it; `…` is anything.
//! - A block with `skip="REASON"` is not checked, and is counted.

#![allow(clippy::unwrap_used)]

mod markdown;
mod session;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use futures_util::future::join_all;
use markdown::{Block, Mark, blocks};
use trunkline::config::{self, Sources};

#[tokio::test]
async fn every_snippet_works() {
    let pages = pages();
    let failures = join_all(pages.iter().map(|page| check(page))).await.concat();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

/// Returns README.md and the pages of the guide.
fn pages() -> Vec<PathBuf> {
    pages_of("guide").chain([root().join("README.md")]).collect()
}

/// Returns the pages of a folder, without their pictures.
fn pages_of(folder: &str) -> impl Iterator<Item = PathBuf> {
    let found = fs::read_dir(root().join("docs").join(folder)).unwrap();
    let found = found.map(|entry| entry.unwrap().path());
    found.filter(|path| path.extension().is_some_and(|extension| extension == "md"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns everything that is wrong with a page.
async fn check(page: &Path) -> Vec<String> {
    let name = page.file_name().unwrap().to_str().unwrap();
    let blocks = blocks(&fs::read_to_string(page).unwrap());
    let mut failures = vec![];
    for block in &blocks {
        if let Mark::Skip(reason) = &block.mark {
            println!("skipped {name}:{}: {reason}", block.line);
        }
        let outcome = check_block(block);
        failures.extend(outcome.err().map(|error| format!("{}: {error}", block.line)));
    }
    let skipped = blocks.iter().filter(|block| matches!(block.mark, Mark::Skip(_))).count();
    println!("{name}: {} blocks, {skipped} skipped", blocks.len());
    failures.extend(session::run(&blocks).await);
    failures.into_iter().map(|failure| format!("{name}:{failure}")).collect()
}

/// Checks what can be checked of a block without running anything.
fn check_block(block: &Block) -> Result<(), String> {
    match (&block.mark, block.language.as_str()) {
        (Mark::Skip(_) | Mark::Output, _) | (Mark::None, "sh") => Ok(()),
        (_, "toml") => check_toml(&block.text),
        (_, "json") => {
            let json = serde_json::from_str::<serde_json::Value>(&block.text);
            json.map(drop).map_err(|error| error.to_string())
        }
        (Mark::File(_), _) => Ok(()),
        (Mark::None, language) => {
            Err(format!("`{language}` is not checked: mark the block, or say why to skip it"))
        }
    }
}

/// Commands of these pages need Docker or a cluster; their configurations and JSON do not.
#[test]
fn configurations_of_the_other_pages_are_valid() {
    for page in pages_of("operate").chain(pages_of("reference")) {
        let blocks = blocks(&fs::read_to_string(&page).unwrap());
        for block in blocks.iter().filter(|block| ["toml", "json"].contains(&&*block.language)) {
            let at = format!("{}:{}", page.display(), block.line);
            check_block(block).unwrap_or_else(|error| panic!("{at}: {error}"));
        }
    }
}

/// Reads a configuration as `trunkline serve` does. Variables and files in it are made up.
fn check_toml(text: &str) -> Result<(), String> {
    const MADE_UP: &str = "0123456789abcdef0123456789abcdef";
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("secret"), MADE_UP).unwrap();
    let mut pieces = text.split("${");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    let mut env = vec![];
    for piece in pieces {
        let (name, rest) = piece.split_once('}').ok_or("`${` without `}`")?;
        match name.split_once(':') {
            Some(("file", _)) => {
                text += &format!("${{file:{}/secret}}{rest}", dir.path().display());
            }
            Some(_) => text += &format!("${{{name}}}{rest}"),
            None => {
                env.push((name.to_owned(), MADE_UP.to_owned()));
                text += &format!("${{{name}}}{rest}");
            }
        }
    }
    let file = dir.path().join("trunkline.toml");
    fs::write(&file, text).unwrap();
    let sources = Sources {
        file: Some(file),
        mcp_file: None,
        listen: None,
        env: env.into_iter().collect(),
        working_dir: dir.path().to_owned(),
        own_program: env!("CARGO_BIN_EXE_trunkline").into(),
    };
    config::load(&sources).map(drop).map_err(|error| error.to_string())
}

/// Returns whether a text is the expected one. `…` stands for anything; spaces do not count.
fn matches(expected: &str, actual: &str) -> bool {
    let squeezed = |text: &str| text.split_whitespace().collect::<String>();
    let (expected, actual) = (squeezed(expected), squeezed(actual));
    let mut pieces = expected.split('…');
    let Some(mut rest) = actual.strip_prefix(pieces.next().unwrap_or_default()) else {
        return false;
    };
    let mut pieces = pieces.peekable();
    if pieces.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return rest.ends_with(piece);
        }
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    true
}

#[test]
fn links_lead_somewhere() {
    let top = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root().join(name));
    let below = ["guide", "operate", "reference", "evidence"].into_iter().flat_map(pages_of);
    for page in top.into_iter().chain(below) {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            // The pages of the reference are made from the code: see `tests/reference.rs`.
            if link.contains("://") {
                continue;
            }
            let text = fs::read_to_string(&target).unwrap_or_default();
            let is_there =
                target.exists() && (anchor.is_empty() || anchors(&text).contains(anchor));
            assert!(is_there, "{}: `{link}` leads nowhere", page.display());
        }
    }
}

/// The anchors that GitHub gives to headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter_map(|line| line.strip_prefix('#'));
    let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    headings
        .map(|text| text.trim_start_matches('#').trim().to_lowercase())
        .map(|text| text.chars().filter(is_kept).collect::<String>().replace(' ', "-"))
        .collect()
}

#[test]
fn an_ellipsis_stands_for_anything() {
    for (expected, actual) in
        [("a b", "ab\n"), ("{\"id\": …}", "{\"id\":7}"), ("a…c…e", "abcde"), ("…", "x")]
    {
        assert!(matches(expected, actual), "{expected}");
    }
    for (expected, actual) in [("a", "ab"), ("a…c", "ab"), ("…b", "abc"), ("a…b…c", "acb")]
    {
        assert!(!matches(expected, actual), "{expected}");
    }
}
