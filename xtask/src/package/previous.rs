//! Packages of a release before this one, to try what happens between two.
//!
//! No release is published yet. Until there is one, its place is taken by the commit that is
//! checked out with a lower version, and with a lower version of the control protocol: the hardest
//! case.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::{Build, WORKSPACE, archives, deb, staged};

/// The version of the packages.
pub const VERSION: &str = "0.0.9";
/// Where the version of the control protocol is.
const CONTROL: &str = "crates/base/wire/src/control.rs";

/// Makes its packages of Debian below `output/previous`.
pub fn make(profile: &str, output: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let place = output.join("previous");
    let sources = place.join("sources");
    if sources.exists() {
        fs::remove_dir_all(&sources)?;
    }
    fs::create_dir_all(&sources)?;
    archives::archived(&crate::cargo::root(), &sources)?;
    let manifest = sources.join("Cargo.toml");
    let own = format!("\nversion = \"{WORKSPACE}\"\n");
    replace(&manifest, &own, &format!("\nversion = \"{VERSION}\"\n"))?;
    let lock = fs::read_to_string(sources.join("Cargo.lock"))?;
    fs::write(sources.join("Cargo.lock"), with_version(&lock))?;
    let control = fs::read_to_string(sources.join(CONTROL))?;
    let version = control_version(&control)?;
    let line = |version: u16| format!("\npub const VERSION: u16 = {version};\n");
    replace(&sources.join(CONTROL), &line(version), &line(version - 1))?;
    let build = Build {
        // Libraries for C have the same names in each build, so that this one would overwrite those
        // of the release that is tried.
        target: place.join("target"),
        profile: profile.to_owned(),
        version: VERSION.to_owned(),
        commit: String::new(),
        sources,
    };
    let staged = staged::stage(&build, &place.join("root"), &[])?;
    deb::make(&build, &staged, &place)
}

/// The version of the control protocol in its source.
fn control_version(text: &str) -> anyhow::Result<u16> {
    let rest = text.split("\npub const VERSION: u16 = ").nth(1);
    let number = rest.and_then(|rest| rest.split(';').next());
    Ok(number.with_context(|| format!("{CONTROL} has no version"))?.parse()?)
}

/// The lock file with the version of the packages of the workspace, which have no source.
fn with_version(lock: &str) -> String {
    let package = |text: &str| match text.contains("\nsource = ") {
        true => text.to_owned(),
        false => text.replace(
            &format!("\nversion = \"{WORKSPACE}\""),
            &format!("\nversion = \"{VERSION}\""),
        ),
    };
    lock.split("[[package]]").map(package).collect::<Vec<_>>().join("[[package]]")
}

fn replace(file: &Path, before: &str, after: &str) -> anyhow::Result<()> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    ensure!(text.matches(before).count() == 1, "{} has not one {before:?}", file.display());
    Ok(fs::write(file, text.replace(before, after))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_the_workspace_alone_get_the_version() {
        let lock = format!(
            "[[package]]\nname = \"a\"\nversion = \"{WORKSPACE}\"\nsource = \"registry\"\n\n\
             [[package]]\nname = \"weft-b\"\nversion = \"{WORKSPACE}\"\n"
        );
        let other = with_version(&lock);
        assert!(other.contains(&format!("\"a\"\nversion = \"{WORKSPACE}\"")), "{other}");
        assert!(other.ends_with(&format!("\"weft-b\"\nversion = \"{VERSION}\"\n")), "{other}");
    }

    #[test]
    fn the_version_of_the_control_protocol_is_found() {
        let text = fs::read_to_string(crate::cargo::root().join(CONTROL)).expect("it is there");
        assert!(control_version(&text).expect("it has one") > 1);
    }
}
