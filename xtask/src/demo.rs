//! `cargo demo`: builds what `weft demo` needs and runs it.

use std::process::ExitCode;

use anyhow::{Context, ensure};

use crate::cargo::{cargo, target};

/// Builds, then runs `weft demo` with `arguments`.
pub fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    eprintln!("building weft and its preload library (a minute or two the first time)");
    let built =
        cargo(&["build", "--release", "-p", "weft-cli", "-p", "weft-preload", "-p", "weft-shmem"])
            .status()
            .context("cargo cannot be run")?;
    ensure!(built.success(), "weft does not build; the errors are above");
    let program = target().join("release/weft");
    let status = std::process::Command::new(&program)
        .arg("demo")
        .args(arguments)
        .status()
        .with_context(|| format!("{} cannot be run", program.display()))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
