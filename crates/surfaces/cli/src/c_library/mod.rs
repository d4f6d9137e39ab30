//! The library for C programs, its header and what pkg-config says of it, as they are installed.

pub mod manual;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The library, as programs ask for it when they start.
pub const SHARED: &str = "libweft.so.0";
/// The same for the linker, as cargo names it.
pub const FOR_LINKER: &str = "libweft.so";
/// The library for programs that have it inside.
pub const STATIC: &str = "libweft.a";
/// The header: cbindgen wrote it, and a test of `weft-c` compares it.
pub const HEADER: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../capi/include/weft.h"));

/// The shared and the static library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Libraries {
    pub shared: PathBuf,
    pub fixed: PathBuf,
}

impl Libraries {
    /// Finds them beside a program, one directory up, or where `weft install` puts them.
    pub fn find(program: &Path) -> anyhow::Result<Self> {
        let directory = program.parent().context("a file is in a directory")?;
        let above = directory.parent().unwrap_or(directory);
        let places = [directory.to_owned(), above.join("lib"), above.to_owned()];
        for place in &places {
            let libraries = Self { shared: place.join(FOR_LINKER), fixed: place.join(STATIC) };
            if libraries.shared.is_file() && libraries.fixed.is_file() {
                return Ok(libraries);
            }
        }
        let shown: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        bail!(
            "{FOR_LINKER} and {STATIC} are missing; looked in {}; build them with `cargo build \
             --release -p weft-c`",
            shown.join(", ")
        )
    }
}

/// The file by which pkg-config tells the flags.
pub fn package(prefix: &Path) -> String {
    // A dollar begins a variable there, and the flags are read as by a shell.
    let prefix = prefix.to_string_lossy().replace('$', "$$");
    format!(
        "prefix={prefix}\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\n\
         Name: weft\n\
         Description: Messages, remote memory and events over the fabric of weft\n\
         Version: {}\n\
         Cflags: -I\"${{includedir}}\"\n\
         Libs: -L\"${{libdir}}\" -Wl,-rpath,\"${{libdir}}\" -lweft\n\
         Libs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl\n",
        env!("CARGO_PKG_VERSION"),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn both_libraries_are_found_together() {
        let root = tempfile::tempdir().expect("a directory");
        let (program, lib) = (root.path().join("bin/weft"), root.path().join("lib"));
        fs::create_dir_all(&lib).expect("made");
        fs::write(lib.join(FOR_LINKER), "").expect("written");
        let error = Libraries::find(&program).expect_err("one is missing").to_string();
        assert!(error.contains("-p weft-c"), "{error}");
        fs::write(lib.join(STATIC), "").expect("written");
        assert_eq!(Libraries::find(&program).expect("both").shared, lib.join(FOR_LINKER));
    }

    #[test]
    fn pkg_config_names_the_library() {
        let text = package(Path::new("/a b/$c"));
        assert!(text.starts_with("prefix=/a b/$$c\n") && text.contains(" -lweft\n"), "{text}");
        assert!(HEADER.contains("int weft_open("));
    }
}
