//! The wheel: the package for Python as `pip` installs it, without cargo.
//!
//! maturin builds it and looks at the symbols of the module: the name of the wheel says on which
//! Linux it loads (`manylinux`). `pip` fetches maturin where it is not installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::Context;

use super::{Build, ran};

/// The release of maturin, as `pyproject.toml` has it.
const MATURIN: &str = "maturin>=1.9.4,<2";

/// Makes the wheel. It is for each Python from 3.11 on.
pub fn make(build: &Build, output: &Path) -> anyhow::Result<PathBuf> {
    let folder = output.join("wheel");
    let _ = fs::remove_dir_all(&folder);
    let mut command = Command::new(maturin(output)?);
    command.current_dir(build.sources.join("crates/surfaces/python"));
    command.args(["build", "--locked", "--profile", &build.profile]);
    // A module that loads only here, or needs a library that others do not have, is refused.
    command.args(["--compatibility", "pypi", "--auditwheel", "check"]).arg("--out").arg(&folder);
    ran(&mut command)?;
    let made = fs::read_dir(&folder)?.next().context("maturin made nothing")??;
    let wheel = output.join(made.file_name());
    fs::rename(made.path(), &wheel)?;
    Ok(wheel)
}

/// Installs the wheel in a fresh environment without cargo, and runs the tests of the package.
pub fn try_it(build: &Build, output: &Path) -> anyhow::Result<PathBuf> {
    let wheel = make(build, output)?;
    let bin = environment(&output.join("wheel-tried"))?;
    let with_tests = format!("{}[test]", wheel.display());
    ran(by_pip(&bin).args(["--force-reinstall", &with_tests]))?;
    let profile = if build.profile == "dev" { "debug" } else { &build.profile };
    let mut command = Command::new(bin.join("python"));
    command.args(["-m", "pytest", "-rs", "-c", "/dev/null", "-p", "no:cacheprovider"]);
    command.arg(build.sources.join("crates/surfaces/python/tests")).current_dir(&bin);
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    command.env("WEFT_BIN", build.target.join(profile).join("weft"));
    ran(&mut command)?;
    Ok(wheel)
}

/// maturin: that of the `PATH`, else one of an own environment.
fn maturin(output: &Path) -> anyhow::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).map(|folder| folder.join("maturin"));
    if let Some(found) = places.find(|file| file.is_file()) {
        return Ok(found);
    }
    let bin = environment(&output.join("maturin"))?;
    ran(by_pip(&bin).arg(MATURIN))?;
    Ok(bin.join("maturin"))
}

/// A virtual environment of Python; the folder of its programs.
fn environment(folder: &Path) -> anyhow::Result<PathBuf> {
    ran(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    Ok(folder.join("bin"))
}

/// The command that installs what is named behind it.
fn by_pip(bin: &Path) -> Command {
    let mut command = Command::new(bin.join("python"));
    command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    command
}
