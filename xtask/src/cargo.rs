//! Calls of cargo, and the layout of the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The target directory of the workspace.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from) {
        Some(path) if path.is_absolute() => path,
        Some(path) => root().join(path),
        None => root().join("target"),
    }
}

/// The weft that end-to-end cases run. A full run tests what ships; any other run the build that
/// the test programs are part of.
pub fn weft(long: bool) -> PathBuf {
    target().join(if long { "release" } else { "debug" }).join("weft")
}

/// A call of the same cargo that runs this program, at the root of the workspace and without the
/// package variables that cargo set for this program.
pub fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    // Builds of a clean clone take a sixth longer with the state for later ones.
    command.env("CARGO_INCREMENTAL", "0");
    // A panic names its line without them, and tables of lines are a tenth of the build.
    command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// The folder of the crate NAME of the workspace: `crates/NAME`, or `crates/LAYER/NAME`. `None` if
/// there is none.
pub fn folder(name: &str) -> Option<PathBuf> {
    let crates = root().join("crates");
    let layers = std::fs::read_dir(&crates).into_iter().flatten().flatten();
    let places = layers.map(|layer| layer.path()).chain([crates.clone()]);
    places.map(|place| place.join(name)).find(|folder| folder.join("Cargo.toml").is_file())
}
