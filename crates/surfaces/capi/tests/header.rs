//! The header is what cbindgen writes, and the library has its functions and its layout.
//!
//! `WEFT_WRITE=1 cargo test -p weft-c --test header` writes the files that are compared. A change
//! of `abi/symbols.txt` or `abi/layout.txt` that is more than new lines breaks programs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compares a checked-in file with what it should be, or writes it.
fn compare(path: &str, wanted: &str) {
    let place = own(path);
    if std::env::var_os("WEFT_WRITE").is_some() {
        std::fs::write(&place, wanted).expect("the file is writable");
    }
    let text = std::fs::read_to_string(&place).unwrap_or_default();
    let differs = text.lines().zip(wanted.lines()).find(|(one, other)| one != other);
    assert!(
        text == wanted,
        "{path} differs, first at {differs:?}; look whether programs that are compiled stay right, \
         and write it by WEFT_WRITE=1 cargo test -p weft-c --test header"
    );
}

fn header() -> String {
    let root = own("");
    let configuration = cbindgen::Config::from_file(own("cbindgen.toml")).expect("it can be read");
    let made = cbindgen::Builder::new().with_crate(root).with_config(configuration).generate();
    let mut bytes = Vec::new();
    made.expect("the sources are well formed").write(&mut bytes);
    String::from_utf8(bytes).expect("text")
}

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(own("include/weft.h")).expect("the header");
    let is_code = |line: &&str| !line.starts_with([' ', '#', '/', '*']);
    let names = header.lines().filter(is_code).filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        Some(before.rsplit([' ', '*']).next()?.to_owned())
    });
    names.filter(|name| name.starts_with("weft_")).collect()
}

#[test]
fn the_header_is_what_cbindgen_writes() {
    compare("include/weft.h", &header());
}

#[test]
fn the_versions_of_header_and_library_are_one() {
    let text = std::fs::read_to_string(own("include/weft.h")).expect("the header");
    for (name, value) in [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ] {
        let line = format!("#define WEFT_VERSION_{name} {value}\n");
        assert!(text.contains(&line), "cbindgen.toml lacks {line}");
    }
}

#[test]
fn the_symbols_are_those_that_programs_know() {
    let functions = declared();
    let text: String = functions.iter().fold(String::new(), |text, name| text + name + "\n");
    compare("abi/symbols.txt", &text);
}

/// The structures and their members, as the header has them: a program in C prints their places.
fn layout_program(header: &str) -> String {
    let mut program =
        "#include <stddef.h>\n#include <stdio.h>\n#include \"weft.h\"\nint main(void) {\n"
            .to_owned();
    let mut members: Option<Vec<String>> = None;
    for line in header.lines() {
        let code = line.trim();
        if line.starts_with("typedef struct weft_") && line.ends_with('{') {
            members = Some(Vec::new());
        } else if let Some(name) = line.strip_prefix("} ").and_then(|line| line.strip_suffix(';')) {
            for member in members.take().unwrap_or_default() {
                let _ = writeln!(
                    program,
                    "    printf(\"{name}.{member} %zu %zu\\n\", offsetof({name}, {member}), \
                     sizeof((({name} *)0)->{member}));"
                );
            }
            let _ = writeln!(program, "    printf(\"{name} %zu\\n\", sizeof({name}));");
        } else if let Some(members) = &mut members
            && !code.starts_with(['/', '*'])
            && let Some(declaration) = code.strip_suffix(';')
        {
            let name = declaration.split('[').next().unwrap_or_default();
            members.extend(name.rsplit([' ', '*']).next().map(str::to_owned));
        } else if let Some((name, _)) = code.split_once(" = ")
            && name.starts_with("WEFT_")
        {
            let _ = writeln!(program, "    printf(\"{name} %d\\n\", (int){name});");
        }
    }
    program + "    return 0;\n}\n"
}

#[test]
fn structures_and_numbers_are_where_programs_have_them() {
    let header = std::fs::read_to_string(own("include/weft.h")).expect("the header");
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("layout.c");
    std::fs::write(&source, layout_program(&header)).expect("it is ours");
    let binary = directory.path().join("layout");
    let compiled = Command::new("gcc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
        .arg(own("include"))
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .output();
    let Ok(compiled) = compiled else {
        eprintln!("skipped: gcc is not installed");
        return;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&binary).output().expect("it starts");
    let text = String::from_utf8(printed.stdout).expect("text");
    assert!(text.contains("weft_event.data ") && text.contains("WEFT_ERROR_KEY -8"), "{text}");
    compare("abi/layout.txt", &text);
}

#[test]
fn each_function_says_which_threads_may_call_it() {
    let header = std::fs::read_to_string(own("include/weft.h")).expect("the header");
    let functions = declared();
    let mut without = Vec::new();
    for name in &functions {
        let at = header.rfind(&format!("{name}(")).expect("it is declared");
        let comment = header[..at].rfind("/**").map_or("", |start| &header[start..at]);
        if !comment.contains("Any thread") && !comment.contains("One thread at a time") {
            without.push(name);
        }
    }
    assert!(functions.len() > 40 && without.is_empty(), "{without:?} of {}", functions.len());
}
