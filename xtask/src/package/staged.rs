//! A build, installed below a directory that stands for `/`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::parts::{PARTS, part_of};
use super::{Build, ran, said, sbom};
use crate::cargo::cargo;

/// What the packages are made of.
pub struct Staged {
    /// The directory that stands for `/`.
    pub root: PathBuf,
    /// The files of each part, below it.
    pub files: BTreeMap<&'static str, Vec<PathBuf>>,
    /// The oldest C library that has all functions that the programs call.
    pub glibc: String,
}

/// The packages of the workspace that make what is installed, and the part in which that is.
pub const PACKAGES: [(&str, &str); 5] = [
    ("weft-cli", "weft"),
    ("weft-preload", "weft"),
    ("weft-shmem", "weft-shmem"),
    ("weft-fi", "weft-shmem"),
    ("weft-c", "libweft"),
];

/// Builds and installs below `root`, with the lists of what is inside (`sbom`).
pub fn stage(build: &Build, root: &Path, lists: &[PathBuf]) -> anyhow::Result<Staged> {
    let packages = PACKAGES.map(|(name, _)| format!("-p{name}"));
    let mut command = cargo(&["build", "--profile", &build.profile]);
    command.args(packages).args(["--lib", "--bins"]).current_dir(&build.sources);
    ran(command.env("CARGO_TARGET_DIR", &build.target).env("WEFT_COMMIT", &build.commit))?;
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| root.display().to_string())?;
    }
    let folder = if build.profile == "dev" { "debug" } else { &build.profile };
    let weft = build.target.join(folder).join("weft");
    ran(Command::new(&weft).args(["install", "--root"]).arg(root).arg("/usr"))?;
    for (file, place) in [
        ("weft-daemon.service", "usr/lib/systemd/system/weft-daemon.service"),
        ("weft-daemon.tmpfiles", "usr/lib/tmpfiles.d/weft.conf"),
    ] {
        copy(&build.sources.join("packaging").join(file), &root.join(place))?;
    }
    let documents = root.join("usr/share/doc");
    copy(&build.sources.join("CHANGELOG.md"), &documents.join("weft/changelog"))?;
    fs::write(documents.join("weft/third-party"), third_party(build)?)?;
    for list in lists {
        let part = sbom::part_of(list).context("no list of a part")?;
        copy(list, &documents.join(part).join(list.file_name().context("a file has a name")?))?;
    }
    let licence = licence(build)?;
    let mut glibc = BTreeSet::new();
    for file in visited(root)? {
        let path = root.join(&file);
        let is_page = file.starts_with("usr/share/man") && !path.is_symlink();
        if is_page {
            ran(Command::new("gzip").args(["-9", "--no-name"]).arg(&path))?;
            continue;
        }
        let kind = kind_of(&path)?;
        if kind != Kind::Other {
            // Nobody needs the symbols of debuggers to run it.
            ran(Command::new("strip").arg("--strip-debug").arg(&path))?;
        }
        if kind == Kind::Program {
            glibc.extend(glibc_of(&path)?);
        }
    }
    let mut files = BTreeMap::new();
    for file in visited(root)? {
        files.entry(part_of(&file).name).or_insert_with(Vec::new).push(file);
    }
    for part in &PARTS {
        // A package without files is not made.
        let Some(files) = files.get_mut(part.name) else { continue };
        let file = Path::new("usr/share/doc").join(part.name).join("copyright");
        let place = root.join(&file);
        fs::create_dir_all(place.parent().context("a file is in a directory")?)?;
        fs::write(place, &licence)?;
        files.push(file);
    }
    let (major, minor) = glibc.last().context("no program needs the C library")?;
    Ok(Staged { root: root.to_owned(), files, glibc: format!("{major}.{minor}") })
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to.parent().context("a file is in a directory")?)?;
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(())
}

/// All files below a folder, as they are called there.
pub fn visited(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    fn visit(top: &Path, folder: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
        for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => visit(top, &entry.path(), found)?,
                false => found.push(entry.path().strip_prefix(top)?.to_owned()),
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    visit(folder, folder, &mut found)?;
    found.sort();
    Ok(found)
}

/// The kinds of files.
#[derive(PartialEq, Eq)]
enum Kind {
    /// A program or a shared library.
    Program,
    /// A static library.
    Archive,
    /// Any other file, or a link.
    Other,
}

fn kind_of(path: &Path) -> anyhow::Result<Kind> {
    if path.is_symlink() {
        return Ok(Kind::Other);
    }
    let mut start = Vec::new();
    fs::File::open(path)?.take(8).read_to_end(&mut start)?;
    Ok(match start {
        _ if start.starts_with(b"\x7fELF") => Kind::Program,
        _ if start == b"!<arch>\n" => Kind::Archive,
        _ => Kind::Other,
    })
}

/// The versions of the C library's functions that a program calls.
fn glibc_of(program: &Path) -> anyhow::Result<Vec<(u32, u32)>> {
    Ok(glibc_in(&said(Command::new("objdump").arg("-T").arg(program))?))
}

fn glibc_in(symbols: &str) -> Vec<(u32, u32)> {
    let version = |word: &str| {
        let (major, minor) = word.trim_end_matches(')').split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    };
    let undefined = symbols.lines().filter(|line| line.contains("*UND*"));
    let words = undefined.flat_map(str::split_whitespace);
    words.filter_map(|word| version(word.split_once("GLIBC_")?.1)).collect()
}

/// The licences of weft.
fn licence(build: &Build) -> anyhow::Result<String> {
    let mut text = "weft is under the MIT licence or the Apache License 2.0, as you choose. The \
                    packages that are linked with it have licences of their own:\n\
                    /usr/share/doc/weft/third-party.\n"
        .to_owned();
    for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
        text.push('\n');
        text += &fs::read_to_string(build.sources.join(file)).with_context(|| file.to_owned())?;
    }
    Ok(text)
}

/// The packages that are linked with weft, their licences, and what these say.
fn third_party(build: &Build) -> anyhow::Result<String> {
    let mut command = cargo(&["tree", "--locked", "-enormal", "--prefix=none", "--no-dedupe"]);
    command.args(["--format", "{p}|{l}|{r}"]).args(PACKAGES.map(|(name, _)| format!("-p{name}")));
    let listed = said(command.current_dir(&build.sources))?;
    let (sources, vendored) = (registry()?, build.sources.join("vendor"));
    let mut text = String::from("Packages linked with weft, and the texts of their licences.\n");
    for line in listed.lines().collect::<BTreeSet<_>>() {
        let mut fields = line.split('|');
        let (Some(package), Some(licence), Some(from)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        // Those of the workspace have the path behind them.
        let Some((name, version)) = package.split_once(" v") else { continue };
        let version = version.trim_end_matches(" (proc-macro)");
        if version.contains(['(', ' ']) {
            continue;
        }
        ensure!(!licence.is_empty(), "{name} {version} names no licence");
        text += &format!("\n{}\n{name} {version}: {licence} {from}\n", "=".repeat(80));
        let places = sources.iter().map(|place| place.join(format!("{name}-{version}")));
        let Some(place) = places.chain([vendored.join(name)]).find(|place| place.is_dir()) else {
            continue;
        };
        for file in visited(&place)? {
            let upper = file.to_string_lossy().to_uppercase();
            let names = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE"];
            if !upper.contains('/') && names.iter().any(|name| upper.starts_with(name)) {
                text += &format!("\n--- {}\n", file.display());
                text += &String::from_utf8_lossy(&fs::read(place.join(file))?);
            }
        }
    }
    Ok(text)
}

/// Where cargo keeps the sources of packages.
fn registry() -> anyhow::Result<Vec<PathBuf>> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let place = home.context("neither CARGO_HOME nor HOME is set")?.join("registry/src");
    if !place.is_dir() {
        return Ok(Vec::new());
    }
    Ok(fs::read_dir(place)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_of_functions_that_are_called_are_read() {
        let text = "0000000000000000  DF *UND*\t0000000000000000 (GLIBC_2.2.5) free\n\
                    0000000000000000  DF *UND*\t0000000000000000  GLIBC_2.34  main\n\
                    0000000000001000 g DF .text\t0000000000000010 GLIBC_2.99  own\n\
                    0000000000000000  DF *UND*\t0000000000000000 (GCC_3.0)   _Unwind\n";
        assert_eq!(glibc_in(text), [(2, 2), (2, 34)]);
    }
}
