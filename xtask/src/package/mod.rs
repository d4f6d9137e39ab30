//! `cargo xtask package`: packages of a build, below `target/package`.
//!
//! `weft install` writes the files of all packages below a directory that stands for `/`
//! ([`staged`]). [`parts`] says which package a file belongs to. Debian's and Red Hat's own tools
//! make the packages.

mod archives;
mod deb;
mod image;
mod parts;
mod previous;
mod rpm;
mod sbom;
mod staged;
mod tried;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use anyhow::{Context, bail, ensure};

use crate::cargo::{root, target};

/// The kinds of packages.
const KINDS: [&str; 6] = ["deb", "rpm", "tar", "oci", "source", "sbom"];
/// Those that are made of the sources alone.
const OF_SOURCES: [&str; 2] = ["source", "sbom"];

/// What is built, and what it is called.
#[derive(Default)]
struct Build {
    /// The sources.
    sources: PathBuf,
    /// Cargo's target directory.
    target: PathBuf,
    /// The profile of cargo.
    profile: String,
    /// The version of the packages.
    version: String,
    /// The commit and its day. Empty if it is not known.
    commit: String,
}

impl Build {
    /// The sources of this workspace.
    fn of_here(profile: String) -> anyhow::Result<Self> {
        let (version, commit) = version_and_commit();
        Ok(Self { sources: root(), target: target(), profile, version, commit })
    }
}

/// Makes the packages of the kinds that are named, or all.
pub fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let mut profile = "release".to_owned();
    let mut words = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--profile" => profile = arguments.next().context("--profile needs a name")?.clone(),
            word => words.push(word),
        }
    }
    let output = target().join("package");
    fs::create_dir_all(&output)?;
    match words[..] {
        ["--help" | "-h"] => {
            println!("{}", crate::HELP);
            Ok(ExitCode::SUCCESS)
        }
        ["previous"] => told(previous::make(&profile, &output)?),
        ["wheel"] => told(vec![wheel::make(&Build::of_here(profile)?, &output)?]),
        ["wheel", "try"] => told(vec![wheel::try_it(&Build::of_here(profile)?, &output)?]),
        ["roots"] => tried::prepare(&output),
        ["try"] => tried::run(&Build::of_here(profile)?, &output),
        _ => told(make(&words, &Build::of_here(profile)?, &output)?),
    }
}

/// Tells the files that were made.
fn told(made: Vec<PathBuf>) -> anyhow::Result<ExitCode> {
    for file in made {
        let bytes = fs::metadata(&file)?.len();
        println!("{} ({:.1} MB)", file.display(), bytes as f64 / 1e6);
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the packages of some kinds; of all if none is named.
fn make(kinds: &[&str], build: &Build, output: &Path) -> anyhow::Result<Vec<PathBuf>> {
    for kind in kinds {
        ensure!(KINDS.contains(kind), "{kind} is no kind; there are {}", KINDS.join(", "));
    }
    let kinds = if kinds.is_empty() { &KINDS } else { kinds };
    let of_build = kinds.iter().any(|kind| !OF_SOURCES.contains(kind));
    let lists = match kinds.contains(&"sbom") {
        true => sbom::make(build, output)?,
        false if of_build => sbom::make_if_possible(build, output)?,
        false => Vec::new(),
    };
    let mut made = Vec::new();
    if of_build {
        let staged = staged::stage(build, &output.join("root"), &lists)?;
        for kind in kinds {
            made.extend(match *kind {
                "deb" => deb::make(build, &staged, output)?,
                "rpm" => rpm::make(build, &staged, output)?,
                "tar" => vec![archives::tar(build, &staged, output)?],
                "oci" => vec![image::make(build, &staged, output)?],
                _ => continue,
            });
        }
    }
    if kinds.contains(&"source") {
        made.push(archives::source(build, output)?);
    }
    if kinds.contains(&"sbom") {
        made.extend(lists);
    }
    Ok(made)
}

/// The version of this workspace.
const WORKSPACE: &str = env!("CARGO_PKG_VERSION");

/// The version of packages, and the commit. Packages of a commit that no tag names come before
/// those of the release that it leads to, and after those of the commits before it.
fn version_and_commit() -> (String, String) {
    let commit = git(&["log", "-1", "--format=%h %cs"]).unwrap_or_default();
    let tag = format!("v{WORKSPACE}");
    let is_released =
        git(&["tag", "--points-at", "HEAD"]).is_some_and(|tags| tags.lines().any(|it| it == tag));
    match (is_released, git(&["rev-list", "--count", "HEAD"]), commit.split(' ').next()) {
        (false, Some(count), Some(short)) if !short.is_empty() => {
            (format!("{WORKSPACE}~{count}.g{short}"), commit)
        }
        _ => (WORKSPACE.to_owned(), commit),
    }
}

/// What git says, if this is a clone.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(root()).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// The machine as Debian calls it.
fn machine() -> &'static str {
    match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Runs a command to its good end.
fn ran(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = match command.status() {
        Ok(status) => status,
        Err(error) => bail!("{program} cannot be run: {error}; install it"),
    };
    ensure!(status.success(), "{program} ended with {status}");
    Ok(())
}

/// What a command says that runs to its good end.
fn said(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => bail!("{program} cannot be run: {error}; install it"),
    };
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} ended with {}: {told}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
