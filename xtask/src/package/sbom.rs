//! Lists of the Rust packages inside of each program and library, by cargo-cyclonedx.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

use super::archives::archived;
use super::staged::{PACKAGES, visited};
use super::{Build, ran};
use crate::cargo::cargo;

/// The end of the name of a list.
const END: &str = ".cdx.json";

/// Makes the lists below `output/sbom`, each named after its package. cargo-cyclonedx writes beside
/// the manifests of all packages, so it works on a copy of the sources.
pub fn make(build: &Build, output: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let folder = output.join("sbom");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let sources = folder.join("sources");
    fs::create_dir_all(&sources)?;
    archived(&build.sources, &sources)?;
    let mut command = cargo(&["cyclonedx", "--quiet", "--format=json", "--no-build-deps"]);
    // Without a time of making the lists of one commit are the same.
    command.current_dir(&sources).env("SOURCE_DATE_EPOCH", "0").env_remove("CARGO_TARGET_DIR");
    ran(&mut command)?;
    let mut made = Vec::new();
    for file in visited(&sources)? {
        let name = file.file_name().unwrap_or_default();
        let package = name.to_string_lossy().strip_suffix(END).map(str::to_owned);
        if package.is_some_and(|package| PACKAGES.iter().any(|(name, _)| *name == package)) {
            made.push(folder.join(name));
            fs::rename(sources.join(&file), folder.join(name))?;
        }
    }
    fs::remove_dir_all(&sources)?;
    let wanted = PACKAGES.len();
    ensure!(made.len() == wanted, "cargo-cyclonedx made {} lists of {wanted}", made.len());
    Ok(made)
}

/// The lists, if cargo-cyclonedx is installed.
pub fn make_if_possible(build: &Build, output: &Path) -> anyhow::Result<Vec<PathBuf>> {
    match Command::new("cargo-cyclonedx").arg("--version").output() {
        Ok(_) => make(build, output),
        Err(_) => {
            eprintln!("xtask: the packages have no lists of what is inside: no cargo-cyclonedx");
            Ok(Vec::new())
        }
    }
}

/// The package of the distribution that a list belongs to.
pub fn part_of(list: &Path) -> Option<&'static str> {
    let name = list.file_name()?.to_string_lossy();
    let package = name.strip_suffix(END)?;
    PACKAGES.iter().find(|(name, _)| *name == package).map(|(_, part)| *part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_lies_beside_the_program_that_it_is_about() {
        assert_eq!(part_of(Path::new("a/weft-c.cdx.json")), Some("libweft"));
        assert_eq!(part_of(Path::new("weft-cli.cdx.json")), Some("weft"));
        assert_eq!(part_of(Path::new("weft-wire.cdx.json")), None);
    }
}
