//! Where the preload library is, and how it is named to the dynamic linker.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use super::has_separator;
use crate::configuration::variable;

/// The library's file.
pub const FILE: &str = "libweft_preload.so";

/// Finds the library: `WEFT_PRELOAD`, or near this program.
///
/// # Errors
/// When it is nowhere; the message says where it was looked for.
pub fn find() -> anyhow::Result<PathBuf> {
    let library = match variable("WEFT_PRELOAD") {
        Some(path) => {
            let path = std::path::absolute(&path)?;
            ensure!(
                path.is_file(),
                "WEFT_PRELOAD names {}, which is not a file; unset it or name {FILE}",
                path.display()
            );
            path
        }
        None => {
            let program = std::env::current_exe().context("this program's own file is unknown")?;
            find_near(&program)?
        }
    };
    ensure!(
        !has_separator(library.as_os_str()),
        "the path {} has a space or colon, which LD_PRELOAD takes as an end; move weft, or point \
         WEFT_PRELOAD to a copy elsewhere",
        library.display()
    );
    Ok(library)
}

fn find_near(program: &Path) -> anyhow::Result<PathBuf> {
    let candidates = candidates(program);
    if let Some(path) = candidates.iter().find(|path| path.is_file()) {
        return Ok(path.clone());
    }
    let places: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
    bail!(
        "the preload library is missing; looked for {}; build it with `cargo build --release -p \
         weft-preload`, or point WEFT_PRELOAD to it",
        places.join(", ")
    )
}

/// Beside the program, where a package puts it, and where cargo does for tests and examples.
fn candidates(program: &Path) -> Vec<PathBuf> {
    let Some(directory) = program.parent() else { return Vec::new() };
    let mut candidates = vec![directory.join(FILE)];
    if let Some(above) = directory.parent() {
        candidates.push(above.join("lib/weft").join(FILE));
        candidates.push(above.join(FILE));
    }
    candidates
}

/// The value of `LD_PRELOAD`: the library first, then what was there, the library not twice.
pub fn list(library: &Path, existing: Option<&OsStr>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    let existing = existing.unwrap_or_default();
    let is_separator = |byte: &u8| byte.is_ascii_whitespace() || *byte == b':';
    for entry in existing.as_encoded_bytes().split(is_separator) {
        use std::os::unix::ffi::OsStrExt;
        let entry = OsStr::from_bytes(entry);
        if !entry.is_empty() && entry != library.as_os_str() {
            list.push(":");
            list.push(entry);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_list_is_kept_behind_the_library() {
        let library = Path::new("/x/libweft_preload.so");
        assert_eq!(list(library, None), "/x/libweft_preload.so");
        assert_eq!(
            list(library, Some(OsStr::new("/a.so /x/libweft_preload.so::b.so"))),
            "/x/libweft_preload.so:/a.so:b.so"
        );
    }

    #[test]
    fn a_missing_library_is_told_with_the_places() {
        let error = find_near(Path::new("/nowhere/bin/weft")).expect_err("missing").to_string();
        for place in ["/nowhere/bin/libweft_preload.so", "/nowhere/lib/weft/libweft_preload.so"] {
            assert!(error.contains(place), "{error}");
        }
    }

    #[test]
    fn the_library_is_found_beside_the_program_and_in_a_package() {
        let root = tempfile::tempdir().expect("a directory");
        let program = root.path().join("bin/weft");
        for place in ["lib/weft", "bin"] {
            let directory = root.path().join(place);
            std::fs::create_dir_all(&directory).expect("made");
            std::fs::write(directory.join(FILE), "").expect("written");
            assert_eq!(find_near(&program).expect("found"), directory.join(FILE));
        }
    }
}
