//! `weft fi`: where the provider of libfabric is, for programs that load it.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};

use crate::arguments::FiCommand;
use crate::configuration::variable;
use crate::output::show_line;

/// The provider's file: libfabric takes only those that end so.
pub const FILE: &str = "libweft-fi.so";
/// The same as cargo names it.
pub const BUILT: &str = "libweft_fi.so";

/// `weft fi path` and `weft fi env`.
pub fn fi(command: &FiCommand) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("this program's own file is unknown")?;
    let library = find(&program)?;
    let directory = library.parent().context("a file is in a directory")?;
    match command {
        FiCommand::Path => show_line!("{}", directory.display()),
        FiCommand::Env => {
            let before = variable("FI_PROVIDER_PATH");
            show_line!("export FI_PROVIDER_PATH={}", quoted(&joined(directory, before.as_deref())));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The directory before those that the program has already, once.
fn joined(directory: &Path, before: Option<&str>) -> String {
    let own = directory.display().to_string();
    let others = before.into_iter().flat_map(|before| before.split(':'));
    let others = others.filter(|other| !other.is_empty() && *other != own);
    std::iter::once(own.as_str()).chain(others).collect::<Vec<_>>().join(":")
}

/// A word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Finds the provider: `WEFT_FI`, which names it, or near this program.
pub fn find(program: &Path) -> anyhow::Result<PathBuf> {
    if let Some(path) = variable("WEFT_FI") {
        let path = std::path::absolute(&path)?;
        let is_provider = path.file_name().is_some_and(|name| name == FILE) && path.is_file();
        ensure!(
            is_provider,
            "WEFT_FI names {}, which is not a file {FILE}; unset it or name one",
            path.display()
        );
        return Ok(path);
    }
    let directory = program.parent().unwrap_or(Path::new("/"));
    // Cargo's name, beside the program or, for tests and examples, one directory up.
    for place in [directory, directory.parent().unwrap_or(directory)] {
        let built = place.join(BUILT);
        if built.is_file() {
            return named(&built);
        }
    }
    let installed = directory.with_file_name("lib").join("weft").join(FILE);
    if installed.is_file() {
        return Ok(installed.canonicalize().unwrap_or(installed));
    }
    bail!(
        "{FILE} is missing; looked for {} beside {} and for {}; install the package weft-shmem, \
         build it with `cargo build --release -p weft-fi`, or point WEFT_FI to it",
        BUILT,
        program.display(),
        installed.display()
    )
}

/// A link beside a library that was built, with the name that libfabric takes.
fn named(built: &Path) -> anyhow::Result<PathBuf> {
    let link = built.with_file_name(FILE);
    if std::fs::read_link(&link).is_ok_and(|to| to == Path::new(BUILT)) {
        return Ok(link);
    }
    // Made under another name, so that a program that looks meanwhile finds all or nothing.
    let fresh = built.with_file_name(format!(".{FILE}.{}", std::process::id()));
    let made = symlink(BUILT, &fresh).and_then(|()| std::fs::rename(&fresh, &link));
    made.with_context(|| {
        format!("the link {} cannot be made; run `weft install`, which installs it", link.display())
    })?;
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_added_once_and_quoted() {
        let joined = |before| joined(Path::new("/opt/weft"), before);
        assert_eq!(joined(None), "/opt/weft");
        assert_eq!(joined(Some("/a:/opt/weft::/b")), "/opt/weft:/a:/b");
        assert_eq!(quoted("/it's"), r"'/it'\''s'");
    }

    #[test]
    fn a_built_library_gets_a_link_that_follows_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("weft");
        let missing = find(&program).expect_err("there is none").to_string();
        assert!(missing.contains("cargo build") && missing.contains("weft-shmem"), "{missing}");
        std::fs::write(directory.path().join(BUILT), "library").expect("our own directory");
        for _ in 0..2 {
            let found = find(&program).expect("it is there");
            assert_eq!(found, directory.path().join(FILE));
            assert_eq!(std::fs::read(&found).expect("a link"), b"library");
        }
    }
}
