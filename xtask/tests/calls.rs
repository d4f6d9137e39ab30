//! Checks that the table of calls in the documentation names existing tests.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_owned()
}

/// The cases of the semantics suite: the functions with a decorator.
fn cases() -> Vec<String> {
    let mut names = Vec::new();
    let directory = root().join("crates/tests/e2e/programs");
    for entry in fs::read_dir(directory).expect("the programs are there") {
        let path = entry.expect("it can be listed").path();
        if path.extension().is_none_or(|extension| extension != "py") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if !line.starts_with('@') {
                continue;
            }
            let defined = lines.next().unwrap_or_default();
            let name = defined.split([' ', '(', ':']).nth(1).unwrap_or_default();
            names.push(name.to_owned());
        }
    }
    names
}

#[test]
fn every_row_of_the_table_names_existing_cases() {
    let cases = cases();
    assert!(cases.len() > 100, "only {} cases were found", cases.len());
    let table = fs::read_to_string(root().join("docs/calls.md")).expect("the table");
    let mut wrong = Vec::new();
    let mut rows = 0;
    for line in table.lines().filter(|line| line.starts_with("| ")) {
        let columns: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        if ["calls", "flags", "options"].contains(&columns[0].trim()) {
            continue;
        }
        rows += 1;
        let named: Vec<&str> =
            columns.get(2).map_or("", |names| names).split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            wrong.push(format!("no test: {line}"));
        }
        for name in named {
            // A test function of a suite in Rust: `suite::function`.
            let exists = match name.rsplit_once("::") {
                None => cases.iter().any(|case| case == name),
                Some((suite, function)) => {
                    let suite = suite.trim_start_matches("weft-e2e: ");
                    let file = root().join(format!("crates/tests/e2e/tests/{suite}.rs"));
                    let text = fs::read_to_string(file).unwrap_or_default();
                    text.contains(&format!("fn {function}("))
                }
            };
            if !exists {
                wrong.push(format!("there is no test {name}"));
            }
        }
    }
    assert!(rows > 30, "only {rows} rows were found");
    assert!(wrong.is_empty(), "docs/calls.md:\n{}", wrong.join("\n"));
}
