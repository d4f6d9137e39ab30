//! Writes the headers, the manual pages and the test programs of OpenSHMEM into a directory, for
//! packages.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use weft_shmem_api::programs::{self, Naming};

fn main() -> io::Result<()> {
    let Some(directory) = env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: files DIRECTORY");
        std::process::exit(2);
    };
    for header in weft_shmem_api::headers::all() {
        write(&directory.join("include").join(header.path), &header.text)?;
    }
    for page in weft_shmem_api::manual::all() {
        write(&directory.join("share/man/man3").join(page.file), &page.text)?;
    }
    for (name, naming) in
        [("typed.c", Naming::Typed), ("twin.c", Naming::Twin), ("generic.c", Naming::Generic)]
    {
        write(&directory.join("share/weft/shmem").join(name), &programs::text(naming))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::create_dir_all(path.parent().expect("the path has a file name"))?;
    fs::write(path, text)
}
