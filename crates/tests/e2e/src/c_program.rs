//! Programs in C and C++ that are compiled with the library for C as it is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::{Node, Skip, program};

/// The library, its header and the flags for them, below one directory.
#[derive(Debug)]
pub struct Installed {
    prefix: PathBuf,
    by_weft: bool,
}

/// How a program is linked with the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linked {
    /// It loads the library when it starts.
    Shared,
    /// It has the library inside.
    Static,
}

impl Installed {
    /// Has `weft install` copy all of weft below the directory of a node. That takes seconds where
    /// nothing was stripped.
    ///
    /// # Errors
    /// [`Skip`] without pkg-config.
    ///
    /// # Panics
    /// When weft cannot be installed.
    pub fn by_weft(node: &Node) -> Result<Self, Skip> {
        program::find("pkg-config")?;
        let prefix = node.directory().join("usr");
        let mut install = node.weft(["install"]);
        let installed = install.arg(&prefix).output().expect("weft starts");
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
        Ok(Self { prefix, by_weft: true })
    }

    /// Links what was built below the directory of a node.
    ///
    /// # Panics
    /// When it was not built.
    #[must_use]
    pub fn links(node: &Node) -> Self {
        let prefix = node.directory().join("usr");
        let header =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../surfaces/capi/include/weft.h");
        let built = |name| program::weft().with_file_name(name);
        for (place, target) in [
            ("include/weft.h", header),
            ("lib/libweft.so", built("libweft.so")),
            ("lib/libweft.so.0", built("libweft.so")),
            ("lib/libweft.a", built("libweft.a")),
        ] {
            assert!(target.is_file(), "no {}: cargo build -p weft-c", target.display());
            let place = prefix.join(place);
            let folder = place.parent().expect("a file is in a folder");
            std::fs::create_dir_all(folder).expect("our own directory");
            std::os::unix::fs::symlink(target, place).expect("our own directory");
        }
        Self { prefix, by_weft: false }
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> PathBuf {
        self.prefix.join("include/weft.h")
    }

    /// The shared library.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.prefix.join("lib/libweft.so.0")
    }

    /// Compiles a program, all warnings being errors.
    ///
    /// # Errors
    /// [`Skip`] when there is no compiler for it.
    ///
    /// # Panics
    /// When it does not compile.
    pub fn compiled(&self, source: &Path, linked: Linked) -> Result<PathBuf, Skip> {
        let is_c = source.extension().is_some_and(|extension| extension == "c");
        let (compiler, standard) = if is_c { ("gcc", "-std=gnu11") } else { ("g++", "-std=c++17") };
        let binary = self.prefix.join(source.file_stem().expect("a source file"));
        let mut command = Command::new(program::find(compiler)?);
        command.args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
        command.arg("-o").arg(&binary).arg(source);
        match linked {
            Linked::Shared => command.args(self.flags(&["--cflags", "--libs"])),
            Linked::Static => command
                .args(self.flags(&["--cflags"]))
                .arg(self.prefix.join("lib/libweft.a"))
                .args(self.flags(&["--libs-only-l", "--static"]).iter().filter(|f| *f != "-lweft")),
        };
        let compiled = command.output().expect("the compiler starts");
        let errors = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{}: {errors}", source.display());
        Ok(binary)
    }

    /// The flags as pkg-config prints them for an installed library.
    fn flags(&self, wanted: &[&str]) -> Vec<String> {
        let prefix = self.prefix.display();
        if !self.by_weft {
            return match wanted {
                ["--cflags", "--libs"] => vec![
                    format!("-I{prefix}/include"),
                    format!("-L{prefix}/lib"),
                    format!("-Wl,-rpath,{prefix}/lib"),
                    "-lweft".to_owned(),
                ],
                ["--cflags"] => vec![format!("-I{prefix}/include")],
                _ => ["gcc_s", "util", "rt", "pthread", "m", "dl"].map(|l| format!("-l{l}")).into(),
            };
        }
        let mut asked = Command::new("pkg-config");
        asked.args(wanted).arg("weft").env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig"));
        let Output { status, stdout, stderr } = asked.output().expect("pkg-config starts");
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        String::from_utf8_lossy(&stdout).split_whitespace().map(str::to_owned).collect()
    }
}

/// The source of an example in C or C++.
#[must_use]
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/c").join(name)
}
