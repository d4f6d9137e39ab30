//! Checks that what tasks make of the sources is what the pages have.

use std::collections::BTreeSet;
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand};
use weft_pages::root;

fn xtask(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).args(arguments).output();
    let output = output.expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_pages_show_the_crates_as_they_are() {
    xtask(&["crates", "--check"]);
}

#[test]
fn the_page_about_the_sources_is_not_out_of_date() {
    xtask(&["coverage", "--check"]);
}

#[test]
fn the_page_about_formats_is_not_out_of_date() {
    xtask(&["formats", "--check"]);
}

#[test]
fn the_imports_are_those_that_cargo_sees() {
    let manifest = root().join("Cargo.toml");
    let metadata =
        MetadataCommand::new().manifest_path(manifest).no_deps().exec().expect("cargo metadata");
    let below = root().join("crates");
    let own: BTreeSet<&str> = metadata
        .packages
        .iter()
        .filter(|package| package.manifest_path.as_std_path().starts_with(&below))
        .map(|package| package.name.as_str())
        .collect();
    let mut expected = BTreeSet::new();
    for package in metadata.packages.iter().filter(|one| own.contains(one.name.as_str())) {
        let imports = package.dependencies.iter().filter(|import| {
            import.kind != DependencyKind::Development && own.contains(import.name.as_str())
        });
        expected.extend(imports.map(|import| format!("{} {}", package.name, import.name)));
    }
    let listed: BTreeSet<String> =
        xtask(&["crates", "--list"]).lines().map(str::to_owned).collect();
    assert_eq!(listed, expected);
}
