//! `weft install`: what programs and users need, below one directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap_complete::Shell;
use weft_shmem_api::manual as library_manual;

use super::places::{LIBRARY, Places, write_headers};
use crate::manual;
use crate::output::show_line;
use crate::run::preload;

/// Names by which the command is called for one of its parts.
const LINKS: [&str; 3] = ["oshrun", "oshcc", "oshc++"];

/// `weft install`: copies programs and libraries below `prefix`, and writes the rest.
pub fn install(prefix: &Path) -> anyhow::Result<ExitCode> {
    let prefix = std::path::absolute(prefix)?;
    let below = |path: &str| prefix.join(path);
    let program = std::env::current_exe().context("this program's own file is unknown")?;
    let preload = preload::find()?;
    let library = Places::find()?.library.join(LIBRARY);
    copy(&program, &below("bin/weft"), 0o755)?;
    copy(&preload, &below("lib/weft").join(preload::FILE), 0o644)?;
    copy(&library, &below("lib").join(LIBRARY), 0o644)?;
    for name in LINKS {
        link(&below("bin").join(name))?;
    }
    let headers = below("include");
    write_headers(&headers).with_context(|| cannot("written", &headers))?;
    write(&below("lib/pkgconfig/weft-shmem.pc"), &package(&prefix))?;
    manual::pages(&below("share/man/man1"))?;
    for page in library_manual::all() {
        write(&below("share/man/man3").join(page.file), &page.text)?;
    }
    for (shell, path) in [
        (Shell::Bash, "share/bash-completion/completions/weft"),
        (Shell::Zsh, "share/zsh/site-functions/_weft"),
        (Shell::Fish, "share/fish/vendor_completions.d/weft.fish"),
    ] {
        write(&below(path), &manual::completion(shell))?;
    }
    show_line!("{}", below("bin/weft").display());
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
        env!("CARGO_PKG_VERSION"),
    )
}

/// Copies a file. Programs that run from the former one keep it.
fn copy(from: &Path, to: &Path, mode: u32) -> anyhow::Result<()> {
    if from == to {
        return Ok(());
    }
    make_room(to)?;
    fs::copy(from, to).with_context(|| cannot("written", to))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    make_room(path)?;
    fs::write(path, text).with_context(|| cannot("written", path))
}

fn link(path: &PathBuf) -> anyhow::Result<()> {
    make_room(path)?;
    symlink("weft", path).with_context(|| cannot("made", path))
}

/// Makes the directory of a file, and removes a former file.
fn make_room(path: &Path) -> anyhow::Result<()> {
    let parent = path.parent().context("a file is in a directory")?;
    fs::create_dir_all(parent).with_context(|| cannot("made", parent))?;
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| cannot("replaced", path)),
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
    fn a_former_file_is_replaced() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("a/oshrun");
        write(&path, "old").expect("written");
        link(&path).expect("made");
        link(&path).expect("made again");
        assert_eq!(fs::read_link(&path).expect("a link"), Path::new("weft"));
    }
}
