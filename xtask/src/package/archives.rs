//! Archives: the files of all packages, and the sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::staged::Staged;
use super::{Build, ran, said};
use crate::cargo::cargo;

/// All files as they lie below `/`.
pub fn tar(build: &Build, staged: &Staged, output: &Path) -> anyhow::Result<PathBuf> {
    let machine = std::env::consts::ARCH;
    let file = output.join(format!("weft-{}-{machine}-linux.tar.xz", build.version));
    ran(&mut packed(&staged.root, Path::new("."), &file))?;
    Ok(file)
}

/// The sources with those of all packages that they need: builds without a network.
pub fn source(build: &Build, output: &Path) -> anyhow::Result<PathBuf> {
    let name = format!("weft-{}", build.version);
    let folder = output.join("source").join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    archived(&build.sources, &folder)?;
    let vendored = said(cargo(&["vendor", "--locked", "vendor"]).current_dir(&folder))?;
    let configuration = folder.join(".cargo/config.toml");
    let text = fs::read_to_string(&configuration)?;
    fs::write(&configuration, format!("{text}\n{vendored}"))?;
    // A machine that has no package and no network finds all of them there.
    let home = output.join("source").join("home");
    let looked = ["metadata", "--offline", "--locked", "--format-version=1"];
    said(cargo(&looked).current_dir(&folder).env("CARGO_HOME", &home))?;
    let file = output.join(format!("{name}-source.tar.xz"));
    ran(&mut packed(&output.join("source"), Path::new(&name), &file))?;
    Ok(file)
}

/// The files of the commit that is checked out, below `folder`.
pub fn archived(sources: &Path, folder: &Path) -> anyhow::Result<()> {
    let archive = folder.with_extension("git.tar");
    let mut command = Command::new("git");
    command.current_dir(sources).args(["archive", "--format=tar", "HEAD", "-o"]).arg(&archive);
    ran(&mut command)?;
    ran(Command::new("tar").arg("-C").arg(folder).arg("-xf").arg(&archive))?;
    Ok(fs::remove_file(&archive)?)
}

/// The command that packs what is at a place.
fn packed(place: &Path, name: &Path, file: &Path) -> Command {
    let mut command = Command::new("tar");
    command.args(["--owner=0", "--group=0", "--sort=name", "-C"]).arg(place);
    command.args(["-I", "xz -T0 -3", "-cf"]).arg(file).arg(name);
    command
}
