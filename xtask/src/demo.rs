//! `cargo demo`: builds what `weft demo` needs and runs it.

use std::process::ExitCode;

use anyhow::{Context, ensure};

use crate::cargo::{cargo, target};

/// The profile of the demonstration.
const PROFILE: &str = "demo";

/// Builds, then runs `weft demo` with `arguments`.
pub fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    eprintln!(
        "building weft and its preload library: the first time two minutes on two cores, and the \
         downloads"
    );
    // The packages that the programs of the demonstration run, and nothing else. Release builds
    // optimise the whole program, which takes longer than all that is shown here.
    let built = cargo(&["build", "--profile", PROFILE, "--no-default-features"])
        .args(["-p", "weft-cli", "-p", "weft-preload"])
        .status()
        .context("cargo cannot be run")?;
    ensure!(built.success(), "weft does not build; the errors are above");
    let program = target().join(PROFILE).join("weft");
    let status = std::process::Command::new(&program)
        .arg("demo")
        .args(arguments)
        .status()
        .with_context(|| format!("{} cannot be run", program.display()))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
