//! `weft install`: what programs and users need, below one directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap_complete::Shell;
use tempfile::TempPath;
use weft_shmem_api::{headers, manual as library_manual};

use super::places::{self, LIBRARY};
use crate::c_library::{self, Libraries};
use crate::fi;
use crate::manual;
use crate::output::show_line;
use crate::run::preload;

/// Names by which the command is called for one of its parts.
const LINKS: [&str; 3] = ["oshrun", "oshcc", "oshc++"];

/// `weft install`: copies programs and libraries below `prefix`, and writes the rest. All of it is
/// written before any of it takes its place, so that a failure leaves what was there before. With a
/// `root` the files lie below that until they are packed; `prefix` is where they are used.
pub fn install(prefix: &Path, root: Option<&Path>) -> anyhow::Result<ExitCode> {
    let prefix = std::path::absolute(prefix)?;
    let place = match root {
        Some(root) => std::path::absolute(root)?.join(prefix.strip_prefix("/").unwrap_or(&prefix)),
        None => prefix.clone(),
    };
    let program = std::env::current_exe().context("this program's own file is unknown")?;
    let preload = preload::find()?;
    let library = places::library()?;
    let mut staged = Staged::below(&place);
    staged.copy(&program, "bin/weft", 0o755)?;
    staged.copy(&preload, &format!("lib/weft/{}", preload::FILE), 0o644)?;
    staged.copy(&library, &format!("lib/{LIBRARY}"), 0o644)?;
    let c = Libraries::find(&program)?;
    staged.copy(&c.shared, &format!("lib/{}", c_library::SHARED), 0o644)?;
    staged.link(c_library::SHARED, &format!("lib/{}", c_library::FOR_LINKER))?;
    staged.copy(&c.fixed, &format!("lib/{}", c_library::STATIC), 0o644)?;
    staged.copy(&fi::find(&program)?, &format!("lib/weft/{}", fi::FILE), 0o644)?;
    for name in LINKS {
        staged.link("weft", &format!("bin/{name}"))?;
    }
    for header in headers::all() {
        staged.write(&format!("include/{}", header.path), header.text.as_bytes())?;
    }
    staged.write("include/weft.h", c_library::HEADER.as_bytes())?;
    staged.write("lib/pkgconfig/weft.pc", c_library::package(&prefix).as_bytes())?;
    staged.write("lib/pkgconfig/weft-shmem.pc", package(&prefix).as_bytes())?;
    for (file, text) in manual::all()? {
        staged.write(&format!("share/man/man1/{file}"), &text)?;
    }
    for page in library_manual::all() {
        staged.write(&format!("share/man/man3/{}", page.file), page.text.as_bytes())?;
    }
    for (file, text) in c_library::manual::pages() {
        staged.write(&format!("share/man/man3/{file}"), text.as_bytes())?;
    }
    for (shell, path) in [
        (Shell::Bash, "share/bash-completion/completions/weft"),
        (Shell::Zsh, "share/zsh/site-functions/_weft"),
        (Shell::Fish, "share/fish/vendor_completions.d/weft.fish"),
    ] {
        staged.write(path, manual::completion(shell).as_bytes())?;
    }
    staged.place()?;
    show_line!("{}", place.join("bin/weft").display());
    Ok(ExitCode::SUCCESS)
}

/// The file by which pkg-config tells the flags of OpenSHMEM.
fn package(prefix: &Path) -> String {
    // A dollar begins a variable there, and the flags are read as by a shell.
    let prefix = prefix.to_string_lossy().replace('$', "$$");
    format!(
        "prefix={prefix}\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\n\
         Name: weft-shmem\n\
         Description: OpenSHMEM over the fabric of weft\n\
         Version: {}\n\
         Cflags: -I\"${{includedir}}\"\n\
         Libs: -L\"${{libdir}}\" -Wl,-rpath,\"${{libdir}}\" -lweft_shmem\n",
        crate::release::VERSION,
    )
}

/// Files beside their places, which they take all together. Those that do not are removed.
struct Staged<'a> {
    prefix: &'a Path,
    files: Vec<(TempPath, PathBuf)>,
}

impl<'a> Staged<'a> {
    fn below(prefix: &'a Path) -> Self {
        Self { prefix, files: Vec::new() }
    }

    /// Makes a file beside the place `path`, by `make`.
    fn stage(
        &mut self,
        path: &str,
        make: impl FnMut(&Path) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        let place = self.prefix.join(path);
        ensure!(!place.is_dir(), "{} is a directory; remove it", place.display());
        let parent = place.parent().context("a file is in a directory")?;
        fs::create_dir_all(parent).with_context(|| cannot("made", parent))?;
        let made = tempfile::Builder::new().prefix(".weft-").make_in(parent, make);
        let made = made.with_context(|| cannot("written", &place))?;
        self.files.push((made.into_temp_path(), place));
        Ok(())
    }

    /// Copies a file. Programs that run from the former one keep it.
    fn copy(&mut self, from: &Path, path: &str, mode: u32) -> anyhow::Result<()> {
        self.stage(path, |made| {
            fs::copy(from, made)?;
            fs::set_permissions(made, fs::Permissions::from_mode(mode))
        })
    }

    fn write(&mut self, path: &str, bytes: &[u8]) -> anyhow::Result<()> {
        self.stage(path, |made| fs::write(made, bytes))
    }

    fn link(&mut self, to: &str, path: &str) -> anyhow::Result<()> {
        self.stage(path, |made| symlink(to, made))
    }

    /// Gives each file its place, where it replaces a former one.
    fn place(self) -> anyhow::Result<()> {
        for (made, place) in self.files {
            made.persist(&place).with_context(|| cannot("replaced", &place))?;
        }
        Ok(())
    }
}

fn cannot(what: &str, path: &Path) -> String {
    format!("{} cannot be {what}; name a directory that you may write", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_names_headers_and_library() {
        let text = package(Path::new("/opt/weft"));
        assert!(text.starts_with("prefix=/opt/weft\n"), "{text}");
        let libs = "\nLibs: -L\"${libdir}\" -Wl,-rpath,\"${libdir}\" -lweft_shmem\n";
        assert!(text.contains(libs), "{text}");
        assert!(package(Path::new("/a b/$c")).starts_with("prefix=/a b/$$c\n"));
    }

    #[test]
    fn all_files_take_their_places_or_none_does() {
        let root = tempfile::tempdir().expect("a directory");
        let (file, link) = (root.path().join("a/file"), root.path().join("a/link"));
        for text in ["old", "new"] {
            let mut staged = Staged::below(root.path());
            staged.write("a/file", text.as_bytes()).expect("written");
            staged.link("file", "a/link").expect("made");
            staged.place().expect("it is ours");
            assert_eq!(fs::read_to_string(&file).expect("there"), text);
            assert_eq!(fs::read_link(&link).expect("a link"), Path::new("file"));
        }
        let mut staged = Staged::below(root.path());
        staged.write("a/file", b"newer").expect("written");
        staged.copy(Path::new("/nonexistent"), "a/other", 0o644).expect_err("nothing to copy");
        drop(staged);
        assert_eq!(fs::read_to_string(&file).expect("there"), "new");
        assert_eq!(fs::read_dir(root.path().join("a")).expect("there").count(), 2);
    }
}
