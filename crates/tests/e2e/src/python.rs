//! The package for Python, made of what cargo built.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Skip, program};

/// The sources of the package.
#[must_use]
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../surfaces/python")
}

/// Makes the package `weft` in `directory`, which a program has in its `PYTHONPATH` then.
///
/// # Panics
/// When the module was not built.
pub fn package(directory: &Path) {
    let module = program::weft().with_file_name("lib_weft.so");
    assert!(module.is_file(), "no {}: cargo build -p weft-python", module.display());
    let package = directory.join("weft");
    std::fs::create_dir_all(&package).expect("our own directory");
    let files = std::fs::read_dir(sources().join("weft")).expect("the sources").flatten();
    for file in files.filter(|file| file.path().is_file()) {
        symlink(file.path(), package.join(file.file_name())).expect("our own directory");
    }
    symlink(module, package.join("_weft.abi3.so")).expect("our own directory");
}

/// Whether Python has a module.
///
/// # Errors
/// [`Skip`] when it has not, or there is no Python.
///
/// # Panics
/// When Python cannot be run.
pub fn has(module: &str) -> Result<(), Skip> {
    let mut command = Command::new(program::python()?);
    command.args(["-c", &format!("import {module}")]).stdin(Stdio::null()).stderr(Stdio::null());
    let is_there = command.status().expect("it was found").success();
    if is_there { Ok(()) } else { Err(Skip(format!("Python has no module {module}"))) }
}
