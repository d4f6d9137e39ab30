//! The worked examples of the book, as a reader types them.
//!
//! Each page of `docs/book` that has blocks of `console` is a case. A fresh machine is made of
//! namespaces: its own network and `/run`, an empty home. One shell gets the commands of the page
//! in their order. A block whose fence has a name behind the language (`c ring.c`) is a file there.
//! Each command has to succeed, and to print the lines that the page shows, in their order; numbers
//! and units may differ, but not 0 from others; `...` stands for anything, and there may be further
//! lines.
//! `<!-- needs: curl -->` in a page names programs without which its case is skipped.
//!
//! The first page is followed once more, with the package in place of a build, in a clean root that
//! has neither Rust nor a compiler.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use weft_e2e::{Case, Node, Outcome, Skip, program, python, suite};
use weft_pages::{Block, Page, typed};

/// A busy machine does not reach it.
const LIMIT: Duration = Duration::from_secs(150);
const FOLDER: &str = "docs/book";
/// The page that installs weft itself. All others find it installed.
const FIRST: &str = "five-minutes";
/// Where `cargo xtask package` puts packages and clean roots.
const PACKAGES: &str = "target/package";
/// The page whose programs import the package for Python, as if it were installed.
const PYTHON: &str = "python";
/// Begins a line between the outputs of two commands.
const MARK: &str = "@@";
/// Gives the case a `/run` of its own, where the daemon's socket is.
const MACHINE: &str = "mount -t tmpfs tmpfs /run && ip link set lo up && exec \"$@\"";

fn main() -> ExitCode {
    let folder = fs::read_dir(weft_pages::root().join(FOLDER)).expect("the book is there");
    let names = folder.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_suffix(".md").map(str::to_owned)
    });
    let mut names: Vec<String> = names.filter(|name| !commands(&page(name)).is_empty()).collect();
    names.sort();
    let mut cases = vec![
        Case::new("what_is_compared_loosely", loosely),
        Case::new("the_book_is_made_without_a_warning", made),
    ];
    let clean = Case::new("five_minutes_in_a_clean_root", in_a_clean_root);
    cases.push(clean.long("packages and roots have to be made"));
    cases.extend(names.into_iter().map(|name| Case::new(name.clone(), move || follow(&name))));
    suite::main(cases)
}

fn page(name: &str) -> Page {
    Page::read(&format!("{FOLDER}/{name}.md"))
}

/// The commands of a page with the lines of output that it shows for each.
fn commands(page: &Page) -> Vec<(String, Vec<String>)> {
    commands_of(page.blocks().into_iter().filter(|block| block.language == "console"))
}

/// The commands of blocks.
fn commands_of(blocks: impl Iterator<Item = Block>) -> Vec<(String, Vec<String>)> {
    blocks.flat_map(|block| typed(&block)).map(|(piece, output)| (piece.text, output)).collect()
}

fn follow(name: &str) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("the namespaces of a fresh machine need root".to_owned()));
    }
    let page = page(name);
    for tool in needs(&page.text).chain(["ip", "bash"]) {
        program::find(tool)?;
    }
    let node = Node::without_daemon();
    let home = node.directory().join("home");
    let work = home.join("work");
    fs::create_dir_all(work.join("target")).expect("a directory");
    let build = program::weft().parent().expect("a file is in a directory");
    symlink(build, work.join("target/release")).expect("a link");
    for block in page.blocks() {
        if let Some((_, file)) = block.language.split_once(' ') {
            fs::write(work.join(file), block.lines.join("\n") + "\n").expect("a file");
        }
    }
    let commands = commands(&page);
    fs::write(work.join("commands"), script(&commands)).expect("a file");

    let mut shell = Command::new(program::find("unshare")?);
    shell.args(["--mount", "--propagation", "private", "--net", "--"]);
    shell.args(["sh", "-c", MACHINE, "sh", "bash", "-m", "commands"]).current_dir(&work);
    let path = std::env::var("PATH").unwrap_or_default();
    let path = if name == FIRST { path } else { format!("{}:{path}", build.display()) };
    let kept = ["LANG", "TERM", "TMPDIR"].map(|name| (name, std::env::var_os(name)));
    let package = home.join("python");
    if name == PYTHON {
        python::package(&package);
    }
    shell
        .env_clear()
        .env("PYTHONPATH", package)
        .env("PATH", path)
        .env("HOME", &home)
        .env("USER", "root");
    shell.envs(kept.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let start = Instant::now();
    let ended = node.start(shell).wait(LIMIT);
    println!("{name}: {} commands in {:.1} s", commands.len(), start.elapsed().as_secs_f64());
    compare(&page.path, &commands, &ended.stdout);
    Ok(())
}

/// Follows the first page with the package in place of a build.
fn in_a_clean_root() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("a clean root needs root".to_owned()));
    }
    let packages = weft_pages::root().join(PACKAGES);
    let root = packages.join("roots/deb");
    let Some(package) = newest(&packages, "weft_", ".deb").filter(|_| root.is_dir()) else {
        return Err(Skip("`cargo xtask package deb` and `... roots` make them".to_owned()));
    };
    let page = page(FIRST);
    let of_clone = |block: &Block| block.lines.iter().any(|line| line.contains("target/"));
    let is_package = |block: &Block| block.lines.iter().any(|line| line.contains("dpkg -i"));
    let blocks = page.blocks().into_iter().filter(|block| match &*block.language {
        "console" => !of_clone(block),
        _ => is_package(block),
    });
    let commands = commands_of(blocks);
    assert!(commands[0].0.contains("dpkg -i"), "{commands:?}");
    let node = Node::without_daemon();
    let inside = node.directory();
    let name = package.file_name().expect("a file has a name");
    fs::copy(&package, inside.join(name)).expect("a copy");
    let script = format!("cd /packages\n{}", script(&commands));
    fs::write(inside.join("commands"), script).expect("a file");

    let mut shell = Command::new(weft_pages::root().join("packaging/try/in-root"));
    shell.arg(&root).arg(inside).args(["bash", "-m", "/packages/commands"]);
    shell.env_clear().env("PATH", "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin");
    shell.env("HOME", "/root").env("USER", "root");
    let start = Instant::now();
    let ended = node.start(shell).wait(LIMIT);
    let seconds = start.elapsed().as_secs_f64();
    println!("{FIRST} in a clean root: {} commands in {seconds:.1} s", commands.len());
    compare(&page.path, &commands, &ended.stdout);
    Ok(())
}

/// The newest file of a folder whose name begins and ends so.
fn newest(folder: &Path, begin: &str, end: &str) -> Option<PathBuf> {
    let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let has = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(begin) && name.ends_with(end)
    };
    files.filter(has).max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok())
}

/// The programs that a page names in `<!-- needs: ... -->`.
fn needs(text: &str) -> impl Iterator<Item = &str> {
    let named = text.lines().filter_map(|line| line.strip_prefix("<!-- needs:"));
    named.flat_map(|line| line.trim_end_matches("-->").split_whitespace())
}

/// The script of a page: each command, and behind it a line with its number and status.
fn script(commands: &[(String, Vec<String>)]) -> String {
    let mut script = "exec 2>&1\nsudo() { \"$@\"; }\n".to_owned();
    for (number, (command, _)) in commands.iter().enumerate() {
        script.push_str(&format!("{command}\necho \"{MARK} {number} $?\"\n"));
    }
    script + "trap - EXIT; jobs -p | xargs -r kill 2>/dev/null; exit 0\n"
}

fn compare(path: &Path, commands: &[(String, Vec<String>)], told: &str) {
    let lines: Vec<&str> = told.lines().collect();
    let mark = |number: usize| {
        let text = format!("{MARK} {number} ");
        lines.iter().position(|line| line.starts_with(&text))
    };
    let mut begin = 0;
    for (number, (command, expected)) in commands.iter().enumerate() {
        let place = format!("{}: {command}", path.display());
        let end = mark(number).unwrap_or_else(|| panic!("{place} did not end:\n{told}"));
        assert!(lines[end].ends_with(" 0"), "{place} failed:\n{told}");
        // What a program in the background prints comes later.
        let until = if command.ends_with('&') { lines.len() } else { end };
        let missing = first_missing(expected, &lines[begin..until]);
        assert!(missing.is_none(), "{place} did not print {missing:?}:\n{told}");
        begin = end + 1;
    }
}

/// The first of the expected lines that does not follow those before it.
fn first_missing<'a>(expected: &'a [String], printed: &[&str]) -> Option<&'a str> {
    let mut rest = printed.iter().map(|line| form(line));
    expected
        .iter()
        .map(String::as_str)
        .filter(|line| !line.trim().is_empty() && line.trim() != "...")
        .find(|line| {
            let (wanted, is_begin) = match line.trim_end().strip_suffix("...") {
                Some(begin) => (form(begin), true),
                None => (form(line), false),
            };
            !rest.any(|line| if is_begin { line.starts_with(&wanted) } else { line == wanted })
        })
}

/// A line without what may differ: numbers, units behind numbers, and the width of gaps.
fn form(line: &str) -> String {
    const UNITS: [&str; 15] = [
        "B", "kB", "MB", "GB", "B/s", "kB/s", "MB/s", "GB/s", "ns", "us", "ms", "s", "sec", "KiB",
        "MiB",
    ];
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let is_unit = UNITS.contains(&word.trim_end_matches([',', '.', ')']));
        if is_unit && words.last().is_some_and(|last| last.ends_with(['0', '1'])) {
            continue;
        }
        let mut formed = String::new();
        let (mut rest, is_number) = (word, |one: char| one.is_ascii_digit() || one == '.');
        while let Some(one) = rest.chars().next() {
            if one.is_ascii_digit() {
                let end = rest.find(|one| !is_number(one)).unwrap_or(rest.len());
                // Something is not nothing: a connection that moved is not one that stayed.
                let is_zero = rest[..end].chars().all(|one| one == '0' || one == '.');
                formed.push(if is_zero { '0' } else { '1' });
                rest = &rest[end..];
            } else {
                formed.push(one);
                rest = &rest[one.len_utf8()..];
            }
        }
        words.push(formed);
    }
    words.join(" ")
}

fn made() -> Outcome {
    let mdbook = program::find("mdbook")?;
    let node = Node::without_daemon();
    let mut command = Command::new(mdbook);
    command.arg("build").arg(weft_pages::root().join("docs"));
    command.arg("--dest-dir").arg(node.directory().join("book"));
    let ended = node.start(command).wait(LIMIT).success();
    let told = format!("{}{}", ended.stdout, ended.stderr);
    assert!(!told.contains("WARN") && !told.contains("ERROR"), "{told}");
    let page = node.directory().join("book/book/five-minutes.html");
    assert!(fs::read_to_string(page).is_ok_and(|text| text.contains("redis-benchmark")));
    Ok(())
}

fn loosely() -> Outcome {
    assert_eq!(form("fabric   1  81 B   64.5 MB"), form("fabric  22  3021 kB 7 MB"));
    assert_eq!(form("took 12.5 ms, all right"), form("took 3 s all right"));
    assert_ne!(form("tcp 1"), form("fabric 1"));
    assert_ne!(form("fabric  0    0 B"), form("fabric  1  64 MB"));
    let expected = ["a 1".to_owned(), "...".to_owned(), "c is...".to_owned()];
    assert_eq!(first_missing(&expected, &["a 7", "b", "c is here"]), None);
    assert_eq!(first_missing(&expected, &["c is here", "a 7"]), Some("c is..."));
    assert_eq!(first_missing(&expected, &[]), Some("a 1"));
    Ok(())
}
