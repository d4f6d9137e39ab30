//! Tells the command which commit it is built of.
//!
//! In this order: `WEFT_COMMIT`, which those who make packages set; the file `packaging/commit`,
//! into which `git archive` writes the commit; git, for release builds alone: a build for tests
//! would be linked anew after each commit.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=WEFT_COMMIT");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let archived = root.join("packaging/commit");
    println!("cargo::rerun-if-changed={}", archived.display());
    let commit = std::env::var("WEFT_COMMIT")
        .ok()
        .or_else(|| std::fs::read_to_string(archived).ok())
        .and_then(|text| valid(&text))
        .or_else(|| of_git(&root));
    if let Some(commit) = commit {
        println!("cargo::rustc-env=WEFT_COMMIT={commit}");
    }
}

/// The commit that git names, and its day.
fn of_git(root: &Path) -> Option<String> {
    if std::env::var("PROFILE").is_ok_and(|profile| profile != "release") {
        return None;
    }
    // The log of HEAD grows with each commit.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(root, &["rev-parse", "--git-path", name])?;
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    valid(&git(root, &["log", "-1", "--format=%h %cs"])?)
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// The text if it can be a commit: it is none before `git archive` has filled it in.
fn valid(text: &str) -> Option<String> {
    let text = text.trim();
    let is_commit = text.starts_with(|first: char| first.is_ascii_hexdigit())
        && text.len() <= 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == ' ' || c == '-');
    is_commit.then(|| text.to_owned())
}
