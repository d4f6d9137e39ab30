//! Finds the programs that the tests run: weft, third-party programs, and the scripts of this
//! crate.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::Skip;

/// The `weft` to test. Without `WEFT_BIN` it is built without optimisation.
///
/// # Panics
/// When `WEFT_BIN` is not a file, or weft does not build.
pub fn weft() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        if let Some(path) = std::env::var_os("WEFT_BIN") {
            let path = PathBuf::from(path);
            assert!(path.is_file(), "WEFT_BIN names {}, which is not a file", path.display());
            return std::path::absolute(&path).expect("a path");
        }
        // The path of this program is TARGET/PROFILE/deps/NAME.
        let own = std::env::current_exe().expect("the test's own file");
        let target = own.ancestors().nth(3).expect("cargo runs tests in its target directory");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--workspace", "--quiet", "--lib", "--bins", "--examples"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_TARGET_DIR", target)
            .status();
        assert!(built.is_ok_and(|status| status.success()), "weft does not build");
        target.join("debug/weft")
    })
}

/// An example that is built beside [`weft`].
///
/// # Errors
/// [`Skip`] when it is not there: `WEFT_BIN` names a build without it.
pub fn example(name: &str) -> Result<PathBuf, Skip> {
    let path = weft().with_file_name("examples").join(name);
    let how = format!("cargo build -p weft-examples --example {name}");
    if path.is_file() { Ok(path) } else { Err(Skip(format!("no {}: {how}", path.display()))) }
}

/// Names shared by programs with different options: the option that prints what the program is, and
/// a text in the output of the variant that the tests use.
const KINDS: [(&str, &str, &str); 4] = [
    ("arping", "--help", "Thomas Habets"),
    ("nc", "-h", "OpenBSD netcat"),
    ("ping", "-V", "iputils"),
    ("udhcpc", "--help", "BusyBox"),
];

/// Finds a third-party program by name. Where several programs share a name, it must be the variant
/// that the tests use.
///
/// # Errors
/// [`Skip`] when the program is not installed or is another variant.
pub fn find(name: &str) -> Result<PathBuf, Skip> {
    let path = std::env::var_os("PATH")
        .and_then(|path| {
            std::env::split_paths(&path)
                .map(|directory| directory.join(name))
                .find(|path| path.is_file())
        })
        .ok_or_else(|| Skip(format!("{name} is not installed")))?;
    if let Some((_, option, words)) = KINDS.iter().find(|(one, ..)| *one == name) {
        let asked = Command::new(&path).arg(option).stdin(Stdio::null()).output();
        let is_known = asked.is_ok_and(|output| {
            [output.stdout, output.stderr]
                .iter()
                .any(|text| String::from_utf8_lossy(text).contains(words))
        });
        if !is_known {
            let path = path.display();
            return Err(Skip(format!("{path} is another {name} than that of {words}")));
        }
    }
    Ok(path)
}

/// The Python interpreter itself, not a wrapper script.
///
/// # Errors
/// [`Skip`] when there is none.
pub fn python() -> Result<PathBuf, Skip> {
    static PLACE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let system = Path::new("/usr/bin/python3");
    let found = PLACE.get_or_init(|| {
        if system.is_file() {
            return Some(system.to_owned());
        }
        let mut command = Command::new("python3");
        command.args(["-c", "import sys; print(sys.executable)"]).stdin(Stdio::null());
        let printed = command.output().ok()?;
        Some(PathBuf::from(String::from_utf8(printed.stdout).ok()?.trim()))
            .filter(|path| path.is_file())
    });
    found.clone().ok_or_else(|| Skip("python3 is not installed".into()))
}

/// The path of a script in `programs/`.
#[must_use]
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name)
}

/// Compiles a C program of `programs/` into `directory` with `options`.
///
/// # Errors
/// [`Skip`] when there is no compiler or the compilation fails.
///
/// # Panics
/// When the compiler does not start.
pub fn compiled(name: &str, options: &[&str], directory: &Path) -> Result<PathBuf, Skip> {
    let binary = directory.join(Path::new(name).file_stem().expect("a source file"));
    let mut compiler = Command::new(find("gcc")?);
    compiler.args(options).arg("-o").arg(&binary).arg(script(name));
    let output = compiler.output().expect("gcc starts");
    if !output.status.success() {
        return Err(Skip(format!("gcc: {}", String::from_utf8_lossy(&output.stderr))));
    }
    Ok(binary)
}
