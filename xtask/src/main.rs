//! Layer 5: the tasks `cargo demo`, `cargo verify` and `cargo xtask package`, which cargo alone
//! cannot express.
//!
//! `cargo demo` builds the command and its preload library and runs `weft demo`. `cargo verify`
//! runs every check and prints a table. May not depend on other crates of the workspace: it must
//! run when they do not build.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "stages are timed for people")]

mod cargo;
mod compiles;
mod coverage;
mod crates;
mod demo;
mod end_to_end;
mod formats;
mod log;
mod package;
mod page;
mod processors;
mod programs;
mod shards;
mod stages;
mod test_programs;
mod verify;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo demo [ARGUMENTS OF weft demo]
       cargo verify [--only NAME]... [--long] [--list]
       cargo xtask package [--profile NAME] [deb|rpm|tar|oci|source|sbom]...
       cargo xtask package [--profile NAME] roots|previous|try
       cargo xtask crates|coverage|formats [--check]

cargo demo     builds weft and its preload library, then compares it with kernel TCP
cargo verify   runs the whole test suite; --only runs the named stages, --list lists them, --long
               also runs every case in every way, and the cases marked as long
cargo xtask package   makes packages of a release build below target/package, of the kinds that are
               named, else of all: Debian's, Red Hat's, all files, an image for containers, the
               sources with all that they need, lists of what is inside (by cargo-cyclonedx);
               roots makes clean roots once, and previous packages of a release before; try uses
               the packages in the roots, after an upgrade from those of previous if there are some
cargo xtask crates    makes the drawing and the table of the crates from each Cargo.toml
cargo xtask coverage  makes docs/coverage.md from the citations in the code
cargo xtask formats   makes the tables of docs/book/formats.md from the code; with --check each of
                      the three says whether its pages are out of date";

fn main() -> ExitCode {
    if let Some(ended) = compiles::as_wrapper() {
        return ended;
    }
    // `cargo verify -- --only x` passes the dashes on; they are ignored here.
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--").collect();
    let result = match arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("demo", rest)) => demo::run(rest),
        Some(("verify", rest)) => verify::run(rest),
        Some(("package", rest)) => package::run(rest),
        Some(("crates", rest)) => crates::run(rest),
        Some(("coverage", rest)) => coverage::run(rest),
        Some(("formats", rest)) => formats::run(rest),
        Some(("--help" | "-h" | "help", _)) => {
            println!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        Some((other, _)) => {
            eprintln!("xtask: {other} is not a task\n{HELP}");
            Ok(ExitCode::from(2))
        }
        None => {
            eprintln!("{HELP}");
            Ok(ExitCode::from(2))
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
