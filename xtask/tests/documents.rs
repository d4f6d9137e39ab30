//! Checks what the pages name: links, files, modules, packages, tests and commands of cargo and of
//! the scripts. Commands of `weft` are checked by `weft-cli`, which has the command line.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{Metadata, MetadataCommand};
use weft_pages::{Page, Piece, pages, root, shell};

/// Folders of the repository: a word that begins with one of them is a path.
const FOLDERS: &[&str] = &[
    "bench/",
    "crates/",
    "docs/",
    "examples/",
    "fuzz/",
    "matrix/",
    "packaging/",
    "suites/",
    "xtask/",
];
/// A word that ends with one of these and has a slash is a path.
const ENDINGS: &[&str] = &[".rs", ".md", ".py", ".sh"];

fn metadata() -> Metadata {
    let manifest = root().join("Cargo.toml");
    MetadataCommand::new().manifest_path(manifest).no_deps().exec().expect("cargo metadata works")
}

/// Reports each fault with its page and line.
fn report(what: &str, faults: &[(PathBuf, usize, String)]) {
    let lines: Vec<String> = faults
        .iter()
        .map(|(path, line, fault)| format!("{}:{line}: {fault}", path.display()))
        .collect();
    assert!(lines.is_empty(), "{what}:\n  {}", lines.join("\n  "));
}

/// The faults that `find` sees in each piece of each page.
fn faults(
    pieces: impl Fn(&Page) -> Vec<Piece>,
    mut find: impl FnMut(&Page, &str) -> Vec<String>,
) -> (usize, Vec<(PathBuf, usize, String)>) {
    let (mut looked, mut faults) = (0, Vec::new());
    for page in pages() {
        for Piece { line, text } in pieces(&page) {
            looked += 1;
            let found = find(&page, &text);
            faults.extend(found.into_iter().map(|fault| (page.path.clone(), line, fault)));
        }
    }
    (looked, faults)
}

#[test]
fn every_link_leads_to_a_page_and_a_heading() {
    let all: BTreeMap<PathBuf, Page> =
        pages().into_iter().map(|page| (page.path.clone(), page)).collect();
    let (looked, faults) = faults(Page::links, |page, target| {
        if target.contains("://") || target.starts_with("mailto:") {
            return Vec::new();
        }
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = if file.is_empty() { page.path.clone() } else { beside(&page.path, file) };
        if !root().join(&path).exists() {
            return vec![format!("no {target}")];
        }
        if page.path.starts_with("docs") && path.starts_with("docs") && root().join(&path).is_dir()
        {
            return vec![format!("{target} is a folder, and no page of the book")];
        }
        let is_there = anchor.is_empty()
            || all.get(&path).is_none_or(|page| page.anchors().iter().any(|one| one == anchor));
        if is_there { Vec::new() } else { vec![format!("no heading {target}")] }
    });
    assert!(looked > 200, "only {looked} links were found");
    report("links that lead nowhere", &faults);
}

/// mdBook copies it to the root of the book, where links from a folder would lead nowhere.
#[test]
fn the_first_page_of_the_book_lies_at_its_root() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).expect("the file");
    let first = summary.lines().find_map(|line| line.split_once("](")?.1.strip_suffix(')'));
    assert!(!first.expect("a page").contains('/'), "{first:?}");
}

/// `file` as seen from the folder of `page`, without `..`.
fn beside(page: &Path, file: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(file) {
        match part.to_str() {
            Some("..") => drop(path.pop()),
            Some(".") => {}
            _ => path.push(part),
        }
    }
    path
}

/// The words of a page that name files of the repository.
fn named_files(text: &str) -> Vec<String> {
    let words = text.split([' ', ',', ';', '(', ')', '"', '\'', '=']).map(|word| {
        let word = word.trim_end_matches([':', '.']).split("::").next().unwrap_or_default();
        word.split('#').next().unwrap_or_default()
    });
    words
        .filter(|word| {
            let is_path = FOLDERS.iter().any(|folder| word.starts_with(folder))
                || (word.contains('/') && ENDINGS.iter().any(|ending| word.ends_with(ending)));
            is_path
                && !word.starts_with(['/', '~', '$', '<', '.'])
                && !word.contains("://")
                && !word.contains(['*', '{', '<', '…', '@', '$', '['])
                // Placeholders are in capitals: NAME, LAYER.
                && !word.split(['/', '-', '.', '_']).any(is_placeholder)
        })
        .map(str::to_owned)
        .collect()
}

fn is_placeholder(word: &str) -> bool {
    word.len() > 1 && word.chars().all(|one| one.is_ascii_uppercase()) && !KEPT.contains(&word)
}

/// Words in capitals that are names of files.
const KEPT: &[&str] = &[
    "README",
    "CONTRIBUTING",
    "CHANGELOG",
    "SECURITY",
    "SPECIFICATION",
    "LICENSE",
    "SUMMARY",
    "MIT",
];

#[test]
fn every_file_that_is_named_exists() {
    let files = files();
    let pieces = |page: &Page| [page.code(), page.typed()].concat();
    let (looked, faults) = faults(pieces, |page, text| {
        let missing = named_files(text).into_iter().filter(|word| {
            // A path may begin at the root, at the page, or inside of the crate that is spoken of.
            let inside = format!("/{word}");
            !root().join(word).exists()
                && !root().join(beside(&page.path, word)).exists()
                && !files.iter().any(|file| file.ends_with(&inside))
        });
        missing.map(|word| format!("no {word}")).collect()
    });
    assert!(looked > 1_000, "only {looked} words were looked at");
    report("files that are not there", &faults);
}

/// The paths of all files of the packages.
fn files() -> Vec<String> {
    fn visit(folder: &Path, files: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("a readable folder").flatten() {
            match entry.path() {
                path if path.is_dir() => visit(&path, files),
                path => files.push(path.display().to_string()),
            }
        }
    }
    let mut files = Vec::new();
    ["crates", "xtask", "examples", "fuzz"]
        .iter()
        .for_each(|name| visit(&root().join(name), &mut files));
    files
}

/// The folder and the sources of each package, as one text.
fn sources() -> BTreeMap<String, (PathBuf, String)> {
    let mut found = BTreeMap::new();
    for package in &metadata().packages {
        let folder = package.manifest_path.parent().expect("a folder").as_std_path().to_owned();
        let mut text = String::new();
        read(&folder, &mut text);
        found.insert(package.name.to_string(), (folder, text));
    }
    found
}

fn read(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a readable folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            read(&path, text);
        } else if path
            .extension()
            .is_some_and(|one| ["rs", "py", "sh", "c"].iter().any(|it| one == *it))
        {
            // A module is named by its file, too.
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let parent = path.parent().and_then(Path::file_name).unwrap_or_default();
            let name = if stem == "mod" { parent.to_string_lossy().into_owned() } else { stem };
            text.push_str(&format!("\nmod {name};\n"));
            text.push_str(&fs::read_to_string(&path).expect("text"));
        }
    }
}

/// Whether `name` stands in `text` by itself, and not as a part of another name.
fn has_word(text: &str, name: &str) -> bool {
    let is_part = |one: Option<char>| one.is_some_and(|one| one.is_alphanumeric() || one == '_');
    text.match_indices(name).any(|(at, _)| {
        !is_part(text[..at].chars().next_back()) && !is_part(text[at + name.len()..].chars().next())
    })
}

#[test]
fn every_module_and_test_that_is_named_exists() {
    let sources = sources();
    let mut named = 0;
    let (_, faults) = faults(Page::code, |_, text| {
        let Some((package, rest)) = text.split_once(": ") else { return Vec::new() };
        let is_package = package.starts_with("weft-") || ["weftd", "xtask"].contains(&package);
        if !is_package || package.contains(' ') {
            return Vec::new();
        }
        let Some((_, source)) = sources.get(package) else {
            return vec![format!("no package {package}")];
        };
        named += 1;
        let names = rest.split([':', ',', ' ', '/', '.', '#']).filter(|name| {
            let is_name = name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_');
            is_name && name.len() > 2 && !["tests", "src", "rs", "new"].contains(name)
        });
        names
            .filter(|name| !has_word(source, name))
            .map(|name| format!("nothing in {package} is called {name}"))
            .collect()
    });
    assert!(named > 100, "only {named} were found");
    report("names of nothing", &faults);
}

/// The subcommands of cargo that pages may name.
const CARGO: &[&str] = &[
    "add", "bench", "build", "check", "clippy", "demo", "doc", "fetch", "fmt", "fuzz", "install",
    "metadata", "run", "test", "tree", "update", "vendor", "verify", "xtask", "deny",
];

/// Why a command of cargo cannot be typed.
fn wrong_with_cargo(words: &[String], packages: &Metadata) -> Option<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| *word != "…").collect();
    let name = *words.get(1)?;
    if name.starts_with(['-', '+']) || is_placeholder(name) {
        return None;
    }
    if !CARGO.contains(&name) {
        return Some(format!("cargo has no {name}"));
    }
    let values = |option: &'static str| {
        words.windows(2).filter(move |pair| pair[0] == option).map(|pair| pair[1])
    };
    let find = |name: &str| packages.packages.iter().find(|package| package.name.as_str() == name);
    for package in values("-p").chain(values("--package")) {
        if find(package).is_none() && !is_placeholder(package) && !package.contains('$') {
            return Some(format!("no package {package}"));
        }
    }
    let of = values("-p").next().and_then(find);
    for (option, kind) in [("--test", "test"), ("--example", "example"), ("--bench", "bench")] {
        for target in values(option).filter(|target| !is_placeholder(target)) {
            let has = of.is_none_or(|package| {
                package.targets.iter().any(|one| {
                    one.name == target && one.kind.iter().any(|it| it.to_string() == kind)
                })
            });
            if !has {
                return Some(format!("no {kind} {target}"));
            }
        }
    }
    let task =
        |name: &str| fs::read_to_string(root().join(format!("xtask/src/{name}.rs"))).expect("text");
    for stage in values("--only").filter(|stage| name == "verify" && !is_placeholder(stage)) {
        if !task("stages").contains(&format!("\"{stage}\"")) {
            return Some(format!("no stage {stage}"));
        }
    }
    let first = words.get(2).filter(|_| name == "xtask")?;
    let is_task = is_placeholder(first) || task("main").contains(&format!("Some((\"{first}\""));
    (!is_task).then(|| format!("no task {first}"))
}

/// Why a script of this repository cannot be called so.
fn wrong_with_script(words: &[String]) -> Option<String> {
    let at = words.iter().position(|word| {
        word.ends_with(".py") && FOLDERS.iter().any(|folder| word.starts_with(folder))
    })?;
    let path = root().join(&words[at]);
    let Ok(mut text) = fs::read_to_string(&path) else {
        return Some(format!("no {}", words[at]));
    };
    // Options that scripts share are in files beside them.
    for entry in fs::read_dir(path.parent()?).ok()?.flatten() {
        if entry.path().extension().is_some_and(|one| one == "py") {
            text.push_str(&fs::read_to_string(entry.path()).unwrap_or_default());
        }
    }
    let options = words[at + 1..].iter().take_while(|word| *word != "--");
    let options = options
        .filter_map(|word| word.strip_prefix("--").map(|_| word.split('=').next().unwrap_or(word)));
    let mut unknown = options.filter(|option| !text.contains(&format!("\"{option}\"")));
    unknown.next().map(|option| format!("{} has no {option}", words[at]))
}

#[test]
fn commands_of_cargo_and_of_scripts_can_be_typed() {
    let packages = metadata();
    let pieces = |page: &Page| [page.code(), page.typed()].concat();
    let mut commands = 0;
    let (_, faults) = faults(pieces, |_, text| {
        let mut faults = Vec::new();
        for words in shell::commands(text) {
            let is_cargo = |word: &String| word == "cargo";
            if let Some(at) = words.iter().position(is_cargo)
                && words[..at].iter().all(|word| word.contains('=') || word == "sudo")
            {
                commands += 1;
                faults.extend(wrong_with_cargo(&words[at..], &packages));
            }
            faults.extend(wrong_with_script(&words));
        }
        faults
    });
    assert!(commands > 40, "only {commands} commands were found");
    report("commands that cannot be typed", &faults);
}

#[test]
fn planted_faults_are_found() {
    let words = |line: &str| shell::commands(line).remove(0);
    let packages = metadata();
    for line in [
        "cargo biuld",
        "cargo build -p weft-nothing",
        "cargo test -p weft-e2e --test nothing",
        "cargo verify --only nothing",
        "cargo xtask nothing",
    ] {
        assert!(wrong_with_cargo(&words(line), &packages).is_some(), "{line}");
    }
    assert!(
        wrong_with_cargo(&words("cargo test -p weft-e2e --test lab -- x"), &packages).is_none()
    );
    assert!(wrong_with_script(&words("bench/compare.py --nothing")).is_some());
    assert!(wrong_with_script(&words("bench/compare.py --peers")).is_none());
    assert_eq!(named_files("see `crates/x/y.rs`, a/b.md and crates/LAYER/NAME").len(), 1);
    assert!(has_word("a fn send(", "send") && !has_word("fn resend_all(", "send"));
}

#[test]
fn each_word_of_the_glossary_has_one_meaning() {
    let page = Page::read("docs/glossary.md");
    let mut seen = std::collections::BTreeSet::new();
    let mut twice = Vec::new();
    let rows = page.text.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    for (head, _) in rows.filter(|(head, _)| !["word", "source"].contains(head)) {
        // What stands in brackets says of what it is.
        let words: String = head.split(['(', ')']).step_by(2).collect::<Vec<_>>().join(" ");
        for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            if !seen.insert(word.to_owned()) {
                twice.push(word.to_owned());
            }
        }
    }
    assert!(seen.len() > 200, "only {} words were found", seen.len());
    assert!(twice.is_empty(), "words with two entries: {twice:?}");
}

#[test]
fn the_book_has_every_page() {
    let summary = Page::read("docs/SUMMARY.md");
    let listed: Vec<PathBuf> =
        summary.links().iter().map(|link| beside(&summary.path, &link.text)).collect();
    let missing: Vec<String> = pages()
        .into_iter()
        .map(|page| page.path)
        .filter(|path| path.starts_with("docs") && *path != summary.path && !listed.contains(path))
        .map(|path| path.display().to_string())
        .collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not list {missing:?}");
}

#[test]
fn troubleshooting_has_every_reason_for_tcp() {
    let source = fs::read_to_string(root().join("crates/base/wire/src/stats.rs")).expect("text");
    let page = Page::read("docs/book/troubleshooting.md");
    let (_, names) = source.split_once("pub const fn name(self)").expect("the names of reasons");
    let (names, _) = names.split_once("\n    }").expect("the end of the function");
    let names: Vec<&str> = names.split('"').skip(1).step_by(2).collect();
    assert!(names.len() > 10, "only {names:?} were found");
    let missing: Vec<&&str> =
        names.iter().filter(|name| !page.text.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/book/troubleshooting.md does not name {missing:?}");
}

#[test]
fn each_promise_has_a_number_of_its_own() {
    let text = fs::read_to_string(root().join("SPECIFICATION.md")).expect("the file");
    let is_number = |word: &&str| {
        word.starts_with(|one: char| one.is_ascii_uppercase())
            && word.ends_with(|one: char| one.is_ascii_digit())
    };
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let mut numbers: Vec<_> = rows.filter(is_number).collect();
    assert!(numbers.len() > 150, "only {} promises were found", numbers.len());
    numbers.sort_unstable();
    let twice: Vec<_> = numbers.windows(2).filter(|two| two[0] == two[1]).collect();
    assert!(twice.is_empty(), "{twice:?}");
}
