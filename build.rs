//! Compresses the files of the live pages, which become part of the program, and names the commit.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

const PAGE: &str = "src/http/pages/web";

fn main() {
    println!("cargo:rerun-if-changed={PAGE}");
    println!("cargo:rerun-if-changed=build.rs");
    name_commit();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets it"));
    let mut files = vec![];
    list(Path::new(PAGE), &mut files);
    files.sort();
    let (mut hasher, mut list) = (DefaultHasher::new(), String::new());
    for (number, path) in files.iter().enumerate() {
        let Some(content_type) = content_type(path) else { continue };
        let text = fs::read(path).expect("a file of the page can be read");
        text.hash(&mut hasher);
        let mut gzip = GzEncoder::new(vec![], Compression::best());
        gzip.write_all(&text).expect("memory can be written");
        let compressed = out.join(format!("{number}.gz"));
        let gzip = gzip.finish().expect("memory can be written");
        fs::write(&compressed, gzip).expect("OUT_DIR can be written");
        let name = path.strip_prefix(PAGE).expect("it is in there").display();
        list += &format!(
            "Asset {{ name: \"{name}\", content_type: \"{content_type}\", \
             gzip: include_bytes!({compressed:?}) }},\n"
        );
    }
    let source = format!(
        "const ETAG: &str = \"\\\"{:016x}\\\"\";\nstatic ASSETS: &[Asset] = &[\n{list}];\n",
        hasher.finish()
    );
    fs::write(out.join("live_page.rs"), source).expect("OUT_DIR can be written");
}

/// Takes the commit from the environment, and in release builds else from git. Other builds are not
/// told: each commit would compile the program again.
fn name_commit() {
    println!("cargo:rerun-if-env-changed=TRUNKLINE_COMMIT");
    let told = env::var("TRUNKLINE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = told.or_else(|| is_release.then(commit_of_git).flatten());
    let version = env::var("CARGO_PKG_VERSION").expect("Cargo sets it");
    let version = match &commit {
        Some(commit) => format!("{version} ({commit})"),
        None => version,
    };
    // Not `TRUNKLINE_…`: Cargo passes them on to what it runs, which would read them as settings.
    println!("cargo:rustc-env=BUILD_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo:rustc-env=BUILD_VERSION={version}");
}

/// Returns the commit of this checkout. A source archive inside another repository has none.
fn commit_of_git() -> Option<String> {
    let top = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != env::current_dir().ok()?.canonicalize().ok()? {
        return None;
    }
    println!("cargo:rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|it| it.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder of the page is there") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() { list(&path, files) } else { files.push(path) }
    }
}

/// Returns `None` for files that no page loads, such as licences.
fn content_type(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()? {
        "html" => Some("text/html; charset=utf-8"),
        "js" => Some("text/javascript; charset=utf-8"),
        "css" => Some("text/css; charset=utf-8"),
        "svg" => Some("image/svg+xml"),
        _ => None,
    }
}
