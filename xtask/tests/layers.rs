//! Checks the layers of the workspace, its unsafe crates and the form of its files.
//!
//! A crate imports lower layers only. Transports and services never import each other. Only
//! surfaces import an async runtime. Only listed crates import libc or contain `unsafe`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// The folders below `crates`, in the order of the layers. The folder of a package says its layer;
/// what lies elsewhere (`examples`, `xtask`) is for tests.
const FOLDERS: &[&str] = &["base", "core", "transports", "services", "surfaces", "tests"];

/// Allowed imports inside one layer: (importing crate, imported crate).
const SIBLINGS: &[(&str, &str)] = &[
    ("weft-cli", "weftd"),
    ("weft-cli", "weft-block-server"),
    ("weft-cli", "weft-scenario"),
    ("weft-cli", "weft-swarm"),
    ("weft-cli", "weft-kv-server"),
    ("weft-cli", "weft-copy"),
    // It serves what a source tells, and knows neither.
    ("weft-cli", "weft-web"),
    ("weftd", "weft-web"),
    // Services import it, and it needs the traits alone.
    ("weft-message", "weft-fabric"),
    ("weft-session", "weft-fabric"),
    ("weft-session", "weft-message"),
    // Both transports ask it, and it needs the names of the fabric and a way to its daemon.
    ("weft-broker", "weft-fabric"),
    ("weft-broker", "weft-channel"),
    // It joins the two.
    ("weft-layers", "weft-transport-shm"),
    ("weft-layers", "weft-transport-ofi"),
    // It opens endpoints of each.
    ("weft-open", "weft-layers"),
    ("weft-open", "weft-transport-shm"),
    ("weft-open", "weft-transport-ofi"),
    // It needs the trait of the store alone.
    ("weft-redis", "weft-kv"),
    // It asks for the network namespace of a socket.
    ("weft-unread", "weft-channel"),
    // Its packets take routes.
    ("weft-network", "weft-routing"),
    // It registers memory with the library.
    ("weft-libfabric", "weft-memory"),
    // Files are read into its segments and written from them.
    ("weft-file-io", "weft-memory"),
];

/// Crates that may contain `unsafe`. `weft-channel` needs it for the socket calls that the preload
/// library makes inside its hooks; all of them are in its `sys.rs`. `weft-pmi` borrows the
/// descriptor that a launcher named in a variable. `weft-unread` sets options of sockets that
/// rustix does not know, all in its `sys.rs`.
const UNSAFE: &[&str] = &[
    "weft-channel",
    "weft-file-io",
    "weft-sync",
    "weft-memory",
    "weft-netdev",
    "weft-transport-shm",
    "weft-libfabric",
    "weft-pmi",
    "weft-unread",
    "weft-preload",
    "weft-pgas",
    "weft-shmem",
    "weft-fi",
    "weft-c",
    "weft-python",
];

/// Crates that may import libc. The tests of other crates may too, for example to fork.
const LIBC: &[&str] = UNSAFE;

const LAYER_OF_TRANSPORTS: u8 = 2;
const LAYER_OF_SERVICES: u8 = 3;
const LAYER_OF_SURFACES: u8 = 4;
const LAYER_OF_TESTS: u8 = 5;
const LINES_MAX: usize = 1_200;
const COLUMNS_MAX: usize = 100;

/// A dependency of a package of the workspace.
#[derive(Clone, Debug)]
struct Edge {
    from: String,
    to: String,
    is_for_tests: bool,
}

/// The layer of each package of the workspace.
type Layers = BTreeMap<String, u8>;

fn layer_of(manifest: &Path) -> Option<u8> {
    let Ok(below) = manifest.strip_prefix(root().join("crates")) else {
        return Some(LAYER_OF_TESTS);
    };
    let folder = below.iter().next()?.to_str()?;
    (0..).zip(FOLDERS).find(|(_, name)| **name == folder).map(|(layer, _)| layer)
}

fn layers() -> Layers {
    let of = |package: &cargo_metadata::Package| {
        Some((package.name.to_string(), layer_of(package.manifest_path.as_std_path())?))
    };
    metadata().packages.iter().filter_map(of).collect()
}

/// Why an import is not allowed; `None` when it is allowed.
fn violation(edge: &Edge, layers: &Layers) -> Option<String> {
    let (from, to) = (edge.from.as_str(), edge.to.as_str());
    let own = *layers.get(from)?;
    if to == "tokio" && own < LAYER_OF_SURFACES {
        return Some(format!("{from} imports tokio, which only surfaces may"));
    }
    if to == "libc" && own < LAYER_OF_TESTS && !edge.is_for_tests && !LIBC.contains(&from) {
        return Some(format!("{from} imports libc, which only {} may", LIBC.join(", ")));
    }
    let other = *layers.get(to)?;
    if edge.is_for_tests {
        let is_above = other >= LAYER_OF_SURFACES && own < LAYER_OF_SURFACES;
        return is_above.then(|| format!("the tests of {from} import the surface {to}"));
    }
    if (own, other) == (LAYER_OF_SERVICES, LAYER_OF_TRANSPORTS) {
        return Some(format!(
            "the service {from} imports the transport {to}; a surface joins them"
        ));
    }
    if other >= own && !SIBLINGS.contains(&(from, to)) {
        return Some(format!("{from} of layer {own} imports {to} of layer {other}"));
    }
    None
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata works")
}

/// The source files of each package: every Rust file below the directory of the package.
fn sources() -> BTreeMap<String, Vec<PathBuf>> {
    metadata()
        .packages
        .iter()
        .map(|package| {
            let directory = package.manifest_path.parent().expect("a manifest is in a directory");
            let mut files = Vec::new();
            rust_files(directory.as_std_path(), &mut files);
            (package.name.to_string(), files)
        })
        .collect()
}

fn rust_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a readable directory").flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "target" {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn edges() -> Vec<Edge> {
    let mut edges = Vec::new();
    for package in &metadata().packages {
        for dependency in &package.dependencies {
            edges.push(Edge {
                from: package.name.to_string(),
                to: dependency.name.clone(),
                is_for_tests: dependency.kind == DependencyKind::Development,
            });
        }
    }
    edges
}

fn report(what: &str, violations: Vec<String>) {
    assert!(violations.is_empty(), "{what}:\n  {}", violations.join("\n  "));
}

#[test]
fn every_package_lies_in_the_folder_of_a_layer() {
    let layers = layers();
    let without = sources().into_keys().filter(|name| !layers.contains_key(name)).collect();
    report(&format!("packages outside of crates/{}", FOLDERS.join(", crates/")), without);
    assert_eq!(layer_of(&root().join("crates/elsewhere/x/Cargo.toml")), None);
}

#[test]
fn every_import_goes_down() {
    let layers = layers();
    report(
        "imports against the layers",
        edges().iter().filter_map(|edge| violation(edge, &layers)).collect(),
    );
}

#[test]
fn unsafe_is_forbidden_outside_the_named_crates() {
    let mut violations = Vec::new();
    for (package, files) in sources() {
        if UNSAFE.contains(&package.as_str()) {
            continue;
        }
        for file in files {
            let is_root = file.ends_with("src/lib.rs") || file.ends_with("src/main.rs");
            let text = fs::read_to_string(&file).expect("a readable file");
            if is_root && !text.contains("#![forbid(unsafe_code)]") {
                violations.push(format!("{} does not forbid unsafe code", file.display()));
            }
        }
    }
    report("roots of crates that may not write unsafe", violations);
}

#[test]
fn files_open_with_their_purpose_and_keep_to_their_size() {
    let mut violations = Vec::new();
    for file in sources().into_values().flatten() {
        let text = fs::read_to_string(&file).expect("a readable file");
        let shown = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
        if !text.starts_with("//!") {
            violations.push(format!("{shown} does not open with //!"));
        }
        let lines = text.lines().count();
        if lines > LINES_MAX {
            violations.push(format!("{shown} has {lines} lines, more than {LINES_MAX}"));
        }
        for (number, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                violations.push(format!("{shown}:{} has {columns} columns", number + 1));
            }
        }
    }
    report("files against the rules of form", violations);
}

/// The only file of `weft-fabric` that may name types of the operating system: its traits are
/// extensions, for transports that run on a host.
const HOST_TRAITS: &str = "host.rs";

/// Whether a line of a core trait names the operating system.
fn names_the_system(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or("");
    let modules =
        ["std::os", "std::io", "std::fs", "std::net", "std::process", "libc::", "rustix::"];
    let types = ["BorrowedFd", "OwnedFd", "RawFd", "IoSlice", "NonNull<"];
    modules.iter().chain(&types).any(|name| code.contains(name))
}

#[test]
fn the_core_traits_name_no_operating_system() {
    let mut violations = Vec::new();
    let mut has_host_traits = false;
    let source = root().join("crates/core/fabric/src");
    for file in sources().remove("weft-fabric").expect("the package is there") {
        if !file.starts_with(&source) {
            continue;
        }
        let text = fs::read_to_string(&file).expect("a readable file");
        let mut lines = (1..).zip(text.lines()).filter(|(_, line)| names_the_system(line));
        if file.ends_with(HOST_TRAITS) {
            has_host_traits = lines.next().is_some();
            continue;
        }
        violations
            .extend(lines.map(|(number, line)| format!("{}:{number}: {line}", file.display())));
    }
    report("core traits that name the operating system", violations);
    assert!(has_host_traits, "{HOST_TRAITS} names no descriptor, or is not looked at");
}

fn edge(from: &str, to: &str, is_for_tests: bool) -> Edge {
    Edge { from: from.into(), to: to.into(), is_for_tests }
}

#[test]
fn planted_imports_against_the_layers_are_found() {
    let layers = layers();
    for (from, to) in [
        ("weft-fabric", "weft-memory"),
        ("weft-sync", "weft-wire"),
        ("weft-memory", "weft-transport-shm"),
        ("weft-socket", "weft-transport-sim"),
        ("weft-transport-shm", "weft-socket"),
        ("weft-transport-shm", "weft-transport-sim"),
        ("weft-socket", "tokio"),
        ("weft-cli", "libc"),
        ("weftd", "weft-cli"),
    ] {
        assert!(violation(&edge(from, to, false), &layers).is_some(), "{from} may not import {to}");
    }
    assert!(violation(&edge("weft-socket", "weftd", true), &layers).is_some());
}

#[test]
fn imports_downwards_are_allowed() {
    let layers = layers();
    for (from, to) in [
        ("weft-socket", "weft-fabric"),
        ("weft-transport-shm", "weft-memory"),
        ("weft-preload", "weft-transport-shm"),
        ("weft-cli", "weftd"),
        ("weftd", "tokio"),
        ("weft-sync", "libc"),
        ("weft-socket", "thiserror"),
    ] {
        assert!(violation(&edge(from, to, false), &layers).is_none(), "{from} may import {to}");
    }
    assert!(violation(&edge("weft-socket", "weft-transport-sim", true), &layers).is_none());
}
