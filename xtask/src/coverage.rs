//! `cargo xtask coverage`: which section of which source is implemented, and where.
//!
//! A citation is `SOURCE#SECTION` in a comment of a Rust or Python file, such as
//! `EXTOLL-THESIS#3.2.2`; `//= SOURCE#SECTION` with `//#` and the statement below it stands above
//! the code that implements one. RFCs are cited as everywhere: `RFC 7143 section 11.12`.
//! `docs/coverage.txt` lists the sections that state something, and why no code cites some of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};

use crate::cargo::root;
use crate::page::{self, Want};

/// The sources, and what they are.
const SOURCES: [(&str, &str); 4] = [
    (
        "EXTOLL-THESIS",
        "S. Neuwirth, *Accelerating Network Communication and I/O in Scientific High Performance \
         Computing Environments*, dissertation, Heidelberg 2018",
    ),
    ("RED-SEA-D2.3", "RED-SEA, *D2.3 RoCE and IPoverBXI Evaluation Report*, 2022"),
    (
        "ANGARA-ETH",
        "Y. Goncharuk and others, *Evaluation of the Angara Interconnect Prototype TCP/IP Software \
         Stack*",
    ),
    (
        "NUMA-RDMA",
        "Y. Ren and others, *Design and performance evaluation of NUMA-aware RDMA-based end-to-end \
         data transfer systems*, as slides; its sections are named by subject",
    ),
];

/// A line of the list of sections.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Section {
    name: String,
    title: String,
    note: String,
}

/// The files that cite a section.
type Citations = BTreeMap<String, BTreeSet<String>>;

/// The task.
pub fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let want = Want::of(arguments)?;
    let list = fs::read_to_string(root().join("docs/coverage.txt"))?;
    let sections = list
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| section(line).with_context(|| format!("docs/coverage.txt: {line}")))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut citations = Citations::new();
    for folder in ["crates", "bench"] {
        visit(&root().join(folder), &mut citations)?;
    }
    page::whole(&root().join("docs/coverage.md"), &text(&sections, &citations)?, want, "coverage")?;
    Ok(ExitCode::SUCCESS)
}

fn section(line: &str) -> anyhow::Result<Section> {
    let mut parts = line.split('|').map(|part| part.trim().to_owned());
    let mut next = || parts.next().context("it needs three columns");
    Ok(Section { name: next()?, title: next()?, note: next()? })
}

fn visit(folder: &Path, citations: &mut Citations) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            visit(&path, citations)?;
        } else if path.extension().is_some_and(|one| one == "rs" || one == "py") {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let shown = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            for cited in cited(&text) {
                citations.entry(cited).or_default().insert(shown.clone());
            }
        }
    }
    Ok(())
}

/// The sections and RFCs that the comments of a file cite.
fn cited(text: &str) -> BTreeSet<String> {
    // Comments as running text: a citation may go on in the next line.
    let comments: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_once("//").or_else(|| line.split_once('#')))
        .map(|(_, comment)| comment.trim_start_matches(['/', '!', '=', '#']).trim())
        .collect();
    let comments = comments.join(" ");
    let mut found = BTreeSet::new();
    for (source, _) in SOURCES {
        for (at, _) in comments.match_indices(&format!("{source}#")) {
            let rest = &comments[at + source.len() + 1..];
            let end = rest.find(|one: char| !one.is_ascii_alphanumeric() && !".-".contains(one));
            let section = rest[..end.unwrap_or(rest.len())].trim_end_matches(['.', '-']);
            found.insert(format!("{source}#{section}"));
        }
    }
    for (at, _) in comments.match_indices("RFC ") {
        // `RFC 1112, 2236, 3376` names three.
        for word in comments[at + 4..].split([' ', ')']) {
            let number: String = word.chars().take_while(char::is_ascii_digit).collect();
            if number.is_empty() {
                break;
            }
            found.insert(format!("RFC {number}"));
            if !word.ends_with(',') {
                break;
            }
        }
    }
    found
}

fn text(sections: &[Section], citations: &Citations) -> anyhow::Result<String> {
    let known: BTreeSet<&String> = sections.iter().map(|section| &section.name).collect();
    let whole = |name: &String| name.split_once('#').is_some_and(|(_, it)| it == "3");
    let unknown: Vec<&String> =
        citations.keys().filter(|name| !known.contains(name) && !whole(name)).collect();
    ensure!(unknown.is_empty(), "docs/coverage.txt does not list {unknown:?}");
    let mut text = "\
# What of the sources is there

`cargo xtask coverage` makes this page of the citations in the code and of the list of sections in
[coverage.txt](coverage.txt); a test fails when it is out of date. A section is *there* when code
cites it: a comment says `SOURCE#SECTION` where the section is implemented, or tested. It does not
say that every sentence of the section is. Sections that tell of the field, of other work or of a
test set-up are left out.
"
    .to_owned();
    for (source, what) in SOURCES {
        let of: Vec<&Section> = sections
            .iter()
            .filter(|section| section.name.split('#').next() == Some(source))
            .collect();
        let there = of.iter().filter(|section| citations.contains_key(&section.name)).count();
        let _ = write!(
            text,
            "\n## {source}\n\n{what}.\n\n{there} of {} sections are there.\n\n",
            of.len()
        );
        text.push_str("| section | what it states | where |\n|---|---|---|\n");
        for section in of {
            let place = place(section, citations)?;
            let number = section.name.split('#').nth(1).unwrap_or_default();
            let _ = writeln!(text, "| {number} | {} | {place} |", section.title);
        }
    }
    text.push_str("\n## RFCs\n\n| RFC | title | where |\n|---|---|---|\n");
    for section in sections.iter().filter(|section| section.name.starts_with("RFC ")) {
        let number = section.name.trim_start_matches("RFC ");
        let _ = writeln!(text, "| {number} | {} | {} |", section.title, place(section, citations)?);
    }
    Ok(text)
}

/// Where a section is implemented, or why nowhere.
fn place(section: &Section, citations: &Citations) -> anyhow::Result<String> {
    let Section { name, note, .. } = section;
    match citations.get(name) {
        Some(files) => {
            ensure!(note.is_empty(), "{name} is cited, and docs/coverage.txt says {note:?}");
            let shown = files.iter().map(|file| format!("[{}](../{file})", short(file)));
            Ok(shown.collect::<Vec<_>>().join(", "))
        }
        None if note.is_empty() => Ok("**no code cites it yet**".to_owned()),
        None => {
            let is_known = note.starts_with("not built: ") || note.starts_with("not here: ");
            ensure!(
                is_known,
                "{name}: {note:?} begins with neither `not built: ` nor `not here: `"
            );
            Ok(format!(
                "*{}*{}",
                &note[..note.find(':').unwrap_or(0)],
                &note[note.find(':').unwrap_or(0)..]
            ))
        }
    }
}

/// A file without the folders that all crates have.
fn short(file: &str) -> String {
    let parts: Vec<&str> = file.split('/').filter(|part| *part != "src").collect();
    match parts.as_slice() {
        ["crates", _, rest @ ..] => rest.join("/"),
        all => all.join("/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_are_found_in_comments_over_lines() {
        let text = "//! See (EXTOLL-THESIS#3.2.2), IGMP (RFC\n//! 1112, 2236) and RFC 7143\n\
                    let x = 1; // NUMA-RDMA#back-end.\n";
        let expected =
            ["EXTOLL-THESIS#3.2.2", "NUMA-RDMA#back-end", "RFC 1112", "RFC 2236", "RFC 7143"];
        assert_eq!(cited(text).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_section_that_is_cited_and_said_to_be_missing_is_a_fault() {
        let section = section("ANGARA-ETH#2 | it | not built: x").expect("three columns");
        let none = Citations::new();
        assert_eq!(place(&section, &none).expect("a note"), "*not built*: x");
        let some = Citations::from([(section.name.clone(), BTreeSet::from(["a.rs".to_owned()]))]);
        assert!(place(&section, &some).is_err());
        let unknown = Citations::from([("ANGARA-ETH#9".to_owned(), BTreeSet::new())]);
        assert!(text(&[section], &unknown).is_err());
    }
}
