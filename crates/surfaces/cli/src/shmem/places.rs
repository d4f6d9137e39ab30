//! Where the library and the headers of OpenSHMEM are.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use weft_shmem_api::headers;

use crate::configuration::variable;

/// The library's file.
pub const LIBRARY: &str = "libweft_shmem.so";
/// The header that tells whether headers are installed.
const HEADER: &str = "shmem.h";
/// Headers of a library that is not installed, beside it.
const HEADERS_BESIDE: &str = "weft-include";

/// Where to find library and headers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Places {
    /// The directory of the library.
    pub library: PathBuf,
    /// The directory of the headers.
    pub headers: PathBuf,
}

impl Places {
    /// Finds them: the library as [`library`] does. Writes the headers beside a library that is not
    /// installed.
    pub fn find() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program's own file is unknown")?;
        let library = library()?.parent().context("a file is in a directory")?.to_owned();
        let installed = library.join("../include");
        if installed.join(HEADER).is_file() {
            let headers = installed.canonicalize().unwrap_or(installed);
            return Ok(Self { library, headers });
        }
        ensure!(
            library != installed_beside(&program),
            "{HEADER} is not at {}; install the package weft-dev",
            installed.display()
        );
        let headers = library.join(HEADERS_BESIDE);
        write_headers(&headers).with_context(|| {
            format!("the headers cannot be written to {}; run `weft install`", headers.display())
        })?;
        Ok(Self { library, headers })
    }
}

/// Finds the library: `WEFT_SHMEM`, which names it, or near this program.
pub fn library() -> anyhow::Result<PathBuf> {
    let Some(path) = variable("WEFT_SHMEM") else {
        return find_near(&std::env::current_exe().context("this program's own file is unknown")?);
    };
    let path = std::path::absolute(&path)?;
    ensure!(
        path.is_file(),
        "WEFT_SHMEM names {}, which is not a file; unset it or name {LIBRARY}",
        path.display()
    );
    Ok(path)
}

/// Where `weft install` puts the library that belongs to a program.
fn installed_beside(program: &Path) -> PathBuf {
    program.parent().unwrap_or(Path::new("/")).with_file_name("lib")
}

/// Finds the library beside a program, or where `weft install` puts it.
fn find_near(program: &Path) -> anyhow::Result<PathBuf> {
    let directory = program.parent().unwrap_or(Path::new("/"));
    let places = [
        directory.join(LIBRARY),
        installed_beside(program).join(LIBRARY),
        // Where cargo puts it for tests and examples.
        directory.parent().unwrap_or(directory).join(LIBRARY),
    ];
    if let Some(library) = places.iter().find(|path| path.is_file()) {
        return Ok(library.clone());
    }
    let shown: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
    bail!(
        "{LIBRARY} is missing; looked for {}; install the package weft-shmem, build it with \
         `cargo build --release -p weft-shmem`, or point WEFT_SHMEM to it",
        shown.join(", ")
    )
}

/// Writes the headers into a directory, those alone that are not there or differ. A compiler that
/// runs meanwhile reads the former or the new file whole.
pub fn write_headers(directory: &Path) -> anyhow::Result<()> {
    for header in headers::all() {
        let path = directory.join(header.path);
        if fs::read(&path).is_ok_and(|bytes| bytes == header.text.as_bytes()) {
            continue;
        }
        let parent = path.parent().context("a header is in a directory")?;
        fs::create_dir_all(parent)?;
        let mut file = tempfile::Builder::new().permissions(readable()).tempfile_in(parent)?;
        std::io::Write::write_all(&mut file, header.text.as_bytes())?;
        file.persist(&path)?;
    }
    Ok(())
}

fn readable() -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    fs::Permissions::from_mode(0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_beside_the_program_and_where_it_is_installed() {
        let root = tempfile::tempdir().expect("a directory");
        let program = root.path().join("bin/weft");
        let error = find_near(&program).expect_err("nothing is there").to_string();
        assert!(error.contains("lib/libweft_shmem.so"), "{error}");
        for place in ["lib", "bin"] {
            let directory = root.path().join(place);
            fs::create_dir_all(&directory).expect("made");
            fs::write(directory.join(LIBRARY), "").expect("written");
            assert_eq!(find_near(&program).expect("found"), directory.join(LIBRARY));
        }
    }

    #[test]
    fn headers_are_written_once_and_again_when_they_differ() {
        let root = tempfile::tempdir().expect("a directory");
        write_headers(root.path()).expect("written");
        let path = root.path().join("mpp/shmem.h");
        let text = fs::read_to_string(&path).expect("there");
        fs::write(&path, "old").expect("written");
        write_headers(root.path()).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("there"), text);
        assert!(root.path().join(HEADER).is_file());
    }
}
