//! Checks that the modules of a crate import each other in one direction.
//!
//! A module is a file or a folder directly under `src`. Files of one folder may import each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The crates whose modules form no circle.
const CRATES: &[&str] = &[
    "surfaces/preload",
    "services/socket",
    "services/ether",
    "core/netdev",
    "core/channel",
    "core/message",
];

type Imports = BTreeMap<String, BTreeSet<String>>;

/// The text without comments.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// The names directly behind `crate::`, of single paths and of groups in braces.
fn names(code: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let first = |path: &str| path.trim().chars().take_while(|c| is_name(*c)).collect::<String>();
    let mut found = BTreeSet::new();
    for path in code.split("crate::").skip(1) {
        let Some(group) = path.strip_prefix('{') else {
            found.insert(first(path));
            continue;
        };
        let mut depth = 0;
        let mut part = String::new();
        for c in group.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    found.insert(first(&part));
                    part.clear();
                }
                _ if depth == 0 => part.push(c),
                _ => {}
            }
        }
        found.insert(first(&part));
    }
    found
}

fn read(path: &Path, into: &mut BTreeSet<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder of the workspace") {
            read(&entry.expect("an entry").path(), into);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        into.extend(names(&code(&fs::read_to_string(path).expect("a source file"))));
    }
}

fn imports(source: &Path) -> Imports {
    let mut all = Imports::new();
    for entry in fs::read_dir(source).expect("the source of a crate") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        read(&path, all.entry(name).or_default());
    }
    let modules: BTreeSet<String> = all.keys().cloned().collect();
    for (module, imported) in &mut all {
        imported.retain(|name| name != module && modules.contains(name));
    }
    all
}

/// Takes away modules that import nothing that is left, until none is found; what stays imports
/// itself in a circle, or imports such modules.
fn circle(mut left: Imports) -> Imports {
    loop {
        let free: Vec<String> = left
            .iter()
            .filter(|(_, imported)| imported.is_empty())
            .map(|(module, _)| module.clone())
            .collect();
        if free.is_empty() {
            return left;
        }
        for module in free {
            left.remove(&module);
            left.values_mut().for_each(|imported| {
                imported.remove(&module);
            });
        }
    }
}

#[test]
fn modules_import_each_other_in_one_direction() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    for name in CRATES {
        let found = circle(imports(&crates.join(name).join("src")));
        assert!(found.is_empty(), "the modules of {name} import each other in a circle: {found:?}");
    }
}

#[test]
fn circles_and_groups_are_found() {
    let text = "use crate::{a::{b, c}, d}; // crate::comment\nfn f() { crate::e::g() }";
    let expected = ["a", "d", "e"].map(str::to_owned);
    assert_eq!(names(&code(text)), BTreeSet::from(expected));
    let import = |name: &str, of: &[&str]| {
        (name.to_owned(), of.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>())
    };
    let chain = Imports::from([import("a", &["b"]), import("b", &[])]);
    assert!(circle(chain).is_empty());
    let round = Imports::from([import("a", &["b"]), import("b", &["a"]), import("c", &[])]);
    assert_eq!(circle(round).len(), 2);
}
