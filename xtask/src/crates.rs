//! `cargo xtask crates`: the drawing and the table of the crates, made from each `Cargo.toml`.
//!
//! A crate lies in `crates/LAYER/NAME`. An arrow is an import that does not follow from others.
//! The manifests of this repository have one form, which this file reads by lines; a test compares
//! the result with what cargo says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context, ensure};

use crate::cargo::root;
use crate::page::{self, Want};

/// The folders below `crates`, with what the drawing says of them.
const LAYERS: [(&str, &str); 5] = [
    ("surfaces", "4 surfaces: threads, clocks, descriptors"),
    ("services", "3 services: state machines without I/O"),
    ("transports", "2 transports, and the suite that they pass"),
    ("core", "1 core"),
    ("base", "0 base"),
];

/// What the drawing and the table have of a crate.
#[derive(Debug)]
struct Crate {
    layer: String,
    description: String,
    imports: BTreeSet<String>,
}

type Crates = BTreeMap<String, Crate>;

/// The task.
pub fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    if arguments == ["--list"] {
        for (name, one) in read()? {
            one.imports.iter().for_each(|import| println!("{name} {import}"));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let want = Want::of(arguments)?;
    let crates = read()?;
    page::part(&root().join("docs/architecture.md"), "crates", &drawing(&crates), want, "crates")?;
    page::part(&root().join("CONTRIBUTING.md"), "crates", &table(&crates), want, "crates")?;
    Ok(ExitCode::SUCCESS)
}

fn read() -> anyhow::Result<Crates> {
    let mut crates = Crates::new();
    for layer in fs::read_dir(root().join("crates"))? {
        let layer = layer?;
        for folder in fs::read_dir(layer.path())? {
            let manifest = folder?.path().join("Cargo.toml");
            let Ok(text) = fs::read_to_string(&manifest) else { continue };
            let layer = layer.file_name().to_string_lossy().into_owned();
            let (name, one) =
                parse(&text, layer).with_context(|| manifest.display().to_string())?;
            crates.insert(name, one);
        }
    }
    ensure!(crates.len() > 40, "only {} crates were found", crates.len());
    let names: BTreeSet<String> = crates.keys().cloned().collect();
    crates.values_mut().for_each(|one| one.imports.retain(|name| names.contains(name)));
    Ok(crates)
}

/// The name of a crate, and the rest.
fn parse(manifest: &str, layer: String) -> anyhow::Result<(String, Crate)> {
    let (mut name, mut description, mut section) = (String::new(), String::new(), "");
    let mut imports = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = key.trim().split('.').next().unwrap_or_default();
        let value = value.trim().trim_matches('"');
        match (section, key) {
            ("package", "name") => name = value.to_owned(),
            ("package", "description") => description = value.to_owned(),
            ("dependencies" | "build-dependencies", _) => drop(imports.insert(key.to_owned())),
            _ => {}
        }
    }
    ensure!(!name.is_empty() && !description.is_empty(), "a name and a description are missing");
    Ok((name, Crate { layer, description, imports }))
}

/// What each crate reaches by imports, of whatever length the way is.
fn reached(crates: &Crates) -> BTreeMap<&str, BTreeSet<&str>> {
    fn visit<'a>(
        crates: &'a Crates,
        name: &'a str,
        all: &mut BTreeMap<&'a str, BTreeSet<&'a str>>,
    ) {
        if all.contains_key(name) {
            return;
        }
        let mut own = BTreeSet::new();
        for next in crates.get(name).into_iter().flat_map(|one| &one.imports) {
            visit(crates, next, all);
            own.extend(all.get(next.as_str()).into_iter().flatten().copied());
            own.insert(next.as_str());
        }
        all.insert(name, own);
    }
    let mut all = BTreeMap::new();
    crates.keys().for_each(|name| visit(crates, name, &mut all));
    all
}

/// The drawing, in mermaid.
fn drawing(crates: &Crates) -> String {
    let id = |name: &str| name.trim_start_matches("weft-").replace('-', "_");
    let mut text = "```mermaid\nflowchart TB\n".to_owned();
    for (number, (layer, title)) in LAYERS.iter().enumerate() {
        let _ = writeln!(text, "    subgraph L{}[\"{title}\"]", 4 - number);
        for (name, _) in crates.iter().filter(|(_, one)| one.layer == *layer) {
            let _ = writeln!(text, "        {}[\"{name}\"]", id(name));
        }
        text.push_str("    end\n");
    }
    let reached = reached(crates);
    let is_drawn = |name: &str| LAYERS.iter().any(|(layer, _)| crates[name].layer == *layer);
    for (name, one) in crates.iter().filter(|(name, _)| is_drawn(name)) {
        for import in &one.imports {
            let mut others = one.imports.iter().filter(|other| *other != import);
            if !others.any(|other| reached[other.as_str()].contains(import.as_str())) {
                let _ = writeln!(text, "    {} --> {}", id(name), id(import));
            }
        }
    }
    text + "```"
}

/// The table, from the base up.
fn table(crates: &Crates) -> String {
    let mut text = "| layer | crate | what it is |\n|---|---|---|\n".to_owned();
    let layers = LAYERS.iter().rev().map(|(name, _)| *name).chain(["tests"]);
    for (number, layer) in layers.enumerate() {
        let mut first = format!("{number} `{layer}`");
        for (name, one) in crates.iter().filter(|(_, one)| one.layer == layer) {
            let _ = writeln!(text, "| {first} | `{name}` | {} |", one.description);
            first.clear();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_that_follows_from_others_is_left_out() {
        let one = |name: &str, imports: &[&str]| {
            let imports: String =
                imports.iter().map(|import| format!("{import}.workspace = true\n")).collect();
            let text = format!(
                "[package]\nname = \"{name}\"\ndescription = \"it\"\n[dependencies]\n{imports}\
                 [dev-dependencies]\nweft-c = {{ path = \".\" }}\n"
            );
            parse(&text, "base".to_owned()).expect("a manifest")
        };
        let crates = Crates::from([
            one("weft-a", &["weft-b", "weft-c"]),
            one("weft-b", &["weft-c"]),
            one("weft-c", &[]),
        ]);
        assert!(crates["weft-b"].imports.contains("weft-c"));
        let drawing = drawing(&crates);
        assert!(drawing.contains("a --> b\n") && drawing.contains("b --> c\n"), "{drawing}");
        assert!(!drawing.contains("a --> c"), "{drawing}");
    }
}
