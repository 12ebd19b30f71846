//! Checks the rules of the house that no compiler checks.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A longer file is more than one thing, and so is a fuller folder.
const FILE_LINES_MAX: usize = 400;
const FOLDER_FILES_MAX: usize = 20;
/// Tables are excepted.
const LINE_COLUMNS_MAX: usize = 100;
/// Words that stand for a noun that the reader does not know yet.
const VAGUE: &[&str] =
    &["What", "Who", "Whoever", "Whose", "Which", "Where", "Those", "It", "They", "That", "Same"];

/// The modules that each module may use. Dependencies point downwards only.
const MAY_USE: &[(&str, &[&str])] = &[
    (
        "cli",
        &[
            "app",
            "backend",
            "calls",
            "common",
            "config",
            "pins",
            "std_server",
            "store",
            "telemetry",
            "tenants",
        ],
    ),
    (
        "app",
        &[
            "backend",
            "calls",
            "cluster",
            "common",
            "config",
            "events",
            "gateway",
            "http",
            "otel",
            "pins",
            "protocol",
            "registry",
            "store",
            "telemetry",
            "tenants",
            "trunk",
        ],
    ),
    (
        "http",
        &[
            "backend",
            "calls",
            "cluster",
            "common",
            "config",
            "events",
            "gateway",
            "oauth",
            "pins",
            "protocol",
            "registry",
            "store",
            "telemetry",
            "tenants",
            "toolsets",
            "trunk",
        ],
    ),
    (
        "calls",
        &[
            "backend",
            "cluster",
            "common",
            "config",
            "events",
            "gateway",
            "protocol",
            "registry",
            "store",
            "telemetry",
            "tenants",
        ],
    ),
    (
        "gateway",
        &[
            "backend",
            "common",
            "config",
            "events",
            "protocol",
            "registry",
            "telemetry",
            "tenants",
            "toolsets",
        ],
    ),
    ("trunk", &["backend", "common", "events", "gateway", "registry"]),
    ("registry", &["backend", "common", "config", "events", "tenants"]),
    (
        "backend",
        &["common", "config", "events", "oauth", "pins", "protocol", "telemetry", "tenants"],
    ),
    ("tenants", &["common", "config", "events", "oauth", "store", "telemetry"]),
    ("cluster", &["common", "config", "store"]),
    ("store", &["common", "config", "pins"]),
    ("otel", &["common", "config", "events", "protocol", "telemetry"]),
    ("std_server", &["protocol"]),
    ("events", &["common", "protocol"]),
    ("pins", &["common"]),
    ("toolsets", &["common", "config", "protocol"]),
    ("oauth", &["common", "config"]),
    ("config", &["common"]),
    ("common", &[]),
    ("protocol", &[]),
    ("telemetry", &[]),
];

#[test]
fn dependencies_point_downwards() {
    for (file, text) in sources("src") {
        let module = module_of(&file);
        if module == "lib" || module == "main" {
            continue;
        }
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == module) else {
            panic!("{}: the module `{module}` has no place in MAY_USE", file.display());
        };
        assert!(
            !text.contains("crate::{"),
            "{}: name one module per `use crate::`",
            file.display()
        );
        for used in text.split("crate::").skip(1).map(leading_name) {
            assert!(
                used == module || allowed.contains(&used) || !is_module(used),
                "{}: `{module}` may not use `{used}`",
                file.display()
            );
        }
    }
}

#[test]
fn files_are_short() {
    for (file, text) in all_sources() {
        let lines = text.lines().count();
        assert!(lines <= FILE_LINES_MAX, "{} has {lines} lines", file.display());
    }
    for (file, max) in [("README.md", 150), ("docs/internals/architecture.md", 120)] {
        let lines = fs::read_to_string(root().join(file)).unwrap().lines().count();
        assert!(lines <= max, "{file} has {lines} lines, over {max}");
    }
}

#[test]
fn folders_are_small() {
    let mut counts = BTreeMap::new();
    for (file, _) in sources("src") {
        *counts.entry(file.parent().unwrap().to_owned()).or_insert(0) += 1;
    }
    for (folder, count) in counts {
        assert!(count <= FOLDER_FILES_MAX, "{} has {count} files", folder.display());
        let twin = folder.with_extension("rs");
        assert!(!twin.exists(), "{}: a module with a folder is its mod.rs", twin.display());
    }
}

#[test]
fn lines_are_short() {
    let code = all_sources().into_iter();
    for (file, text) in code.chain(documents()) {
        let is_prose = file.extension().is_some_and(|extension| extension == "md");
        for (number, line) in text.lines().enumerate() {
            let is_table = is_prose && line.trim_start().starts_with('|');
            let columns = line.chars().count();
            assert!(
                columns <= LINE_COLUMNS_MAX || is_table,
                "{}:{} has {columns} columns",
                file.display(),
                number + 1
            );
        }
    }
}

#[test]
fn doc_comments_say_the_noun() {
    for (file, text) in all_sources() {
        for (number, line) in text.lines().enumerate() {
            let Some(words) = ["/// ", "//! "].iter().find_map(|m| line.trim().strip_prefix(m))
            else {
                continue;
            };
            let begins_sentence = number == 0 || {
                let before = text.lines().nth(number - 1).unwrap_or_default().trim();
                !(before.starts_with("///") || before.starts_with("//!")) || before.len() <= 3
            };
            let first = words.split([' ', '.', ',']).next().unwrap_or_default();
            assert!(
                !(begins_sentence && VAGUE.contains(&first)),
                "{}:{}: a doc comment begins with `{first}`: name the thing, or say what it does",
                file.display(),
                number + 1
            );
        }
    }
}

#[test]
fn documents_name_files_that_exist() {
    for (file, text) in documents() {
        // Paths in backquotes, from the root: `src/gateway/mod.rs`.
        for path in text.split('`').skip(1).step_by(2) {
            let is_path = ["src/", "tests/", "docs/", "examples/", ".ci/", "migrations/"]
                .iter()
                .any(|folder| path.starts_with(folder));
            if is_path && !path.contains([' ', '*', '{', '<', '…']) {
                assert!(root().join(path).exists(), "{}: no file `{path}`", file.display());
            }
        }
        // Links to other files of the repository: [text](../guide/servers.md#part).
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains("://") && !path.contains(' ') {
                let target = file.parent().unwrap().join(path);
                assert!(target.exists(), "{}: no file behind ({link})", file.display());
            }
        }
    }
}

#[test]
fn the_threat_model_names_tests_that_exist() {
    let page = fs::read_to_string(root().join("docs/operate/threat-model.md")).unwrap();
    let named: Vec<_> = page.split('`').filter_map(|word| word.split_once("::")).collect();
    for (file, test) in &named {
        let text = fs::read_to_string(root().join(format!("tests/it/{file}.rs")));
        let text = text.unwrap_or_else(|_| panic!("there is no tests/it/{file}.rs"));
        assert!(text.contains(&format!("fn {test}()")), "tests/it/{file}.rs has no `{test}`");
    }
    assert!(named.len() > 40, "only {} tests are named", named.len());
    // Each claim of a table has its proof.
    for line in page.lines().filter(|line| line.starts_with("| ") && !line.contains("shown by")) {
        assert!(line.contains('`'), "no proof: {line}");
    }
}

#[test]
fn boards_and_rules_name_metrics_that_exist() {
    let reference = fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut named = BTreeSet::new();
    for (_, text) in files("grafana", "json").into_iter().chain(files("grafana", "yml")) {
        for word in text.split(|c| !is_name(c)) {
            if word.starts_with("trunkline_") || word.starts_with("process_") {
                named.insert(word.to_owned());
            }
        }
    }
    for name in &named {
        // A histogram has three series.
        let series = ["", "_bucket", "_sum", "_count"].map(|end| name.strip_suffix(end));
        let is_known = |name: &str| reference.contains(&format!("| `{name}` |"));
        assert!(series.into_iter().flatten().any(is_known), "there is no metric `{name}`");
    }
    assert!(named.len() > 30, "only {} metrics are named", named.len());
}

#[test]
fn three_places_are_unsafe() {
    let is_unsafe = |text: &str| text.contains("unsafe {") || text.contains("unsafe fn ");
    let files = sources("src").into_iter().filter(|(_, text)| is_unsafe(text));
    let mut files: Vec<_> = files.map(|(file, _)| file).collect();
    files.sort();
    let expected = [
        "src/backend/stdio/sandbox/confinement.rs",
        "src/common/allocator.rs",
        "src/common/time_slice.rs",
    ];
    assert_eq!(files, expected.map(|file| root().join(file)));
}

#[test]
fn nothing_is_put_off() {
    // Spelled in two pieces, so that this file does not find itself.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("unimple", "mented!")];
    for (file, text) in all_sources() {
        for mark in marks {
            assert!(!text.contains(mark), "{} says {mark}", file.display());
        }
    }
}

#[test]
fn no_request_names_a_program() {
    for (file, text) in sources("src/http") {
        for word in ["Program", "process::"] {
            assert!(!text.contains(word), "{} says {word}", file.display());
        }
    }
}

fn is_module(name: &str) -> bool {
    MAY_USE.iter().any(|(module, _)| *module == name)
}

fn leading_name(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    &text[..end]
}

/// Returns the top-level module of a file: `http` of `src/http/rest/call.rs`.
fn module_of(file: &Path) -> String {
    let inside = file.strip_prefix(root().join("src")).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

fn all_sources() -> Vec<(PathBuf, String)> {
    let folders = ["src", "tests", "examples", "benches", "fuzz/src", "fuzz/fuzz_targets"];
    folders.into_iter().flat_map(sources).collect()
}

fn documents() -> Vec<(PathBuf, String)> {
    let mut found = files("docs", "md");
    for name in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"] {
        let path = root().join(name);
        found.push((path.clone(), fs::read_to_string(path).unwrap()));
    }
    found
}

fn sources(dir: &str) -> Vec<(PathBuf, String)> {
    files(dir, "rs")
}

fn files(dir: &str, wanted: &str) -> Vec<(PathBuf, String)> {
    let mut found = vec![];
    let mut dirs = vec![root().join(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == wanted) {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
