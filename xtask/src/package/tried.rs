//! `cargo xtask package try`: the packages installed, used and removed in clean roots.
//!
//! `cargo xtask package roots` fetches the roots, once. `packaging/try/outside` does the rest, and
//! prints each step with its time.

use std::path::Path;
use std::process::{Command, ExitCode};

use super::{Build, make, ran};
use crate::cargo::root;

/// Makes the roots.
pub fn prepare(output: &Path) -> anyhow::Result<ExitCode> {
    ran(Command::new(root().join("packaging/try/roots")).arg(output.join("roots")))?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the packages, and tries them. Those of the release before, too, if they were made.
pub fn run(build: &Build, output: &Path) -> anyhow::Result<ExitCode> {
    make(&["deb", "rpm"], build, output)?;
    ran(Command::new(root().join("packaging/try/outside")).arg(output).arg(&build.version))?;
    Ok(ExitCode::SUCCESS)
}
