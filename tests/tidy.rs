//! Rules of the house that no compiler checks.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// A file longer than this is more than one thing.
const FILE_LINES_MAX: usize = 400;

/// The modules that each module may use. Dependencies point downwards only.
const MAY_USE: &[(&str, &[&str])] = &[
    (
        "cli",
        &[
            "app",
            "backend",
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
            "cluster",
            "common",
            "config",
            "gateway",
            "http",
            "pins",
            "protocol",
            "registry",
            "store",
            "telemetry",
            "tenants",
        ],
    ),
    (
        "http",
        &[
            "backend", "cluster", "common", "config", "gateway", "pins", "protocol", "registry",
            "store", "tenants",
        ],
    ),
    (
        "gateway",
        &["backend", "common", "config", "protocol", "registry", "store", "telemetry", "tenants"],
    ),
    ("registry", &["backend", "common", "config", "tenants"]),
    ("backend", &["common", "config", "pins", "protocol", "telemetry", "tenants"]),
    ("tenants", &["common", "config", "store", "telemetry"]),
    ("cluster", &["common", "config", "store"]),
    ("store", &["common", "config", "pins"]),
    ("std_server", &["protocol"]),
    ("pins", &["common"]),
    ("config", &["common"]),
    ("common", &["config"]),
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
    for (file, text) in
        ["src", "tests", "examples", "benches", "fuzz/fuzz_targets"].into_iter().flat_map(sources)
    {
        let lines = text.lines().count();
        assert!(
            lines <= FILE_LINES_MAX,
            "{} has {lines} lines, over {FILE_LINES_MAX}",
            file.display()
        );
    }
}

#[test]
fn two_places_are_unsafe() {
    let is_unsafe = |text: &str| text.contains("unsafe {") || text.contains("unsafe fn ");
    let files = sources("src").into_iter().filter(|(_, text)| is_unsafe(text));
    let mut files: Vec<_> = files.map(|(file, _)| file).collect();
    files.sort();
    let expected = ["src/backend/stdio/sandbox/confinement.rs", "src/common/time_slice.rs"];
    assert_eq!(files, expected.map(|file| root().join(file)));
}

#[test]
fn nothing_is_put_off() {
    // Spelled in two pieces, so that this file does not find itself.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("unimple", "mented!")];
    for (file, text) in
        ["src", "tests", "examples", "benches", "fuzz/fuzz_targets"].into_iter().flat_map(sources)
    {
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

fn sources(dir: &str) -> Vec<(PathBuf, String)> {
    let mut found = vec![];
    let mut dirs = vec![root().join(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
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
