//! Layer 5: the Markdown pages of this repository as tests see them.
//!
//! A page has fenced blocks, text with links, and words set in code. Tests ask whether a link leads
//! somewhere, whether a file that is named exists, and whether a command can be typed. `shell`
//! splits lines of a shell into commands. It runs nothing.
//!
//! May not depend on other crates: tests of the command line, of `xtask` and of the book use it.
#![forbid(unsafe_code)]

pub mod shell;

use std::fs;
use std::path::{Path, PathBuf};

/// The directory of the repository.
///
/// # Panics
/// Never: this crate lies three folders below it.
#[must_use]
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(3).expect("crates/tests/pages").to_owned()
}

/// Folders that have no pages of this repository.
const NOT_READ: &[&str] = &["target", "node_modules", "corpus"];

/// A page: its path from the root of the repository, and its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// From the root of the repository.
    pub path: PathBuf,
    /// The whole text.
    pub text: String,
}

/// A fenced block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// The word behind the fence: `console`, `toml`, or nothing.
    pub language: String,
    /// The line of the page on which the first line of the block stands, from 1.
    pub line: usize,
    /// The lines between the fences.
    pub lines: Vec<String>,
}

/// A piece of a page with the line on which it stands, from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The line.
    pub line: usize,
    /// The text: the target of a link, or what is set in code.
    pub text: String,
}

/// All pages of the repository.
///
/// # Panics
/// When a file cannot be read.
#[must_use]
pub fn pages() -> Vec<Page> {
    let mut paths = Vec::new();
    find(&root(), &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a page is text");
        let path = path.strip_prefix(root()).expect("it lies below").to_owned();
        Page { path, text }
    };
    paths.into_iter().map(read).collect()
}

fn find(directory: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a readable directory").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && !NOT_READ.contains(&&*name) {
            find(&path, paths);
        } else if name.ends_with(".md") && path.is_file() {
            paths.push(path);
        }
    }
}

impl Page {
    /// The page at `path` below the root.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn read(path: &str) -> Self {
        let text = fs::read_to_string(root().join(path));
        Self { path: path.into(), text: text.unwrap_or_else(|why| panic!("{path}: {why}")) }
    }

    /// Each line with its number and whether it lies between fences. Fences are neither.
    fn lines(&self) -> impl Iterator<Item = (usize, &str, Option<&str>)> {
        let mut language: Option<&str> = None;
        (1..).zip(self.text.lines()).filter_map(move |(number, line)| {
            let Some(word) = line.trim_start().strip_prefix("```") else {
                return Some((number, line, language));
            };
            language = if language.is_some() { None } else { Some(word.trim()) };
            None
        })
    }

    /// The fenced blocks in their order.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        for (line, text, language) in self.lines() {
            let Some(language) = language else { continue };
            match blocks.last_mut() {
                Some(last) if last.line + last.lines.len() == line => {
                    last.lines.push(text.to_owned());
                }
                _ => blocks.push(Block {
                    language: language.to_owned(),
                    line,
                    lines: vec![text.to_owned()],
                }),
            }
        }
        blocks
    }

    /// The paragraphs outside of blocks, each with the number of its first line. A row of a table
    /// and an entry of a list are paragraphs, too.
    fn paragraphs(&self) -> Vec<Piece> {
        let mut found: Vec<Piece> = Vec::new();
        let mut follows = 0;
        for (line, text, language) in self.lines() {
            let text = text.trim();
            if language.is_some() || text.is_empty() {
                continue;
            }
            let begins = ["|", "- ", "* ", "#", "<!--"].iter().any(|sign| text.starts_with(sign));
            match found.last_mut() {
                Some(last) if follows == line && !begins && !last.text.starts_with('#') => {
                    last.text.push(' ');
                    last.text.push_str(text);
                }
                _ => found.push(Piece { line, text: text.to_owned() }),
            }
            follows = line + 1;
        }
        found
    }

    /// What the text sets in code, outside of blocks.
    #[must_use]
    pub fn code(&self) -> Vec<Piece> {
        let mut found = Vec::new();
        for Piece { line, text } in self.paragraphs() {
            let inside = text.split('`').skip(1).step_by(2).filter(|code| !code.is_empty());
            found.extend(inside.map(|code| Piece { line, text: code.to_owned() }));
        }
        found
    }

    /// The targets of links and of pictures.
    #[must_use]
    pub fn links(&self) -> Vec<Piece> {
        let mut found = Vec::new();
        for Piece { line, text } in self.paragraphs() {
            let prose: String = text.split('`').step_by(2).collect();
            for behind in prose.split("](").skip(1) {
                let target = behind.split([')', ' ']).next().unwrap_or_default();
                found.push(Piece { line, text: target.to_owned() });
            }
        }
        found
    }

    /// The names by which links reach the headings, as GitHub and mdBook make them.
    #[must_use]
    pub fn anchors(&self) -> Vec<String> {
        let headings = self.lines().filter(|(.., language)| language.is_none());
        let mut found: Vec<String> = Vec::new();
        for (_, line, _) in headings.filter(|(_, line, _)| line.starts_with('#')) {
            let slug = slug(line.trim_start_matches('#').trim());
            let earlier = found.iter().filter(|one| **one == slug).count();
            found.push(if earlier == 0 { slug } else { format!("{slug}-{earlier}") });
        }
        found
    }

    /// The commands of blocks of `console`, which stand behind a prompt. Other lines are output.
    #[must_use]
    pub fn typed(&self) -> Vec<Piece> {
        let mut found = Vec::new();
        for block in self.blocks().iter().filter(|block| block.language == "console") {
            found.extend(typed(block).into_iter().map(|(piece, _)| piece));
        }
        found
    }
}

/// The commands of a block, each with the lines of output behind it.
#[must_use]
pub fn typed(block: &Block) -> Vec<(Piece, Vec<String>)> {
    let mut found: Vec<(Piece, Vec<String>)> = Vec::new();
    let mut goes_on = false;
    for (line, text) in (block.line..).zip(&block.lines) {
        if goes_on && let Some((piece, _)) = found.last_mut() {
            piece.text.truncate(piece.text.trim_end_matches('\\').len());
            piece.text.push_str(text.trim());
        } else if let Some(command) = behind_prompt(text) {
            found.push((Piece { line, text: command.to_owned() }, Vec::new()));
        } else if let Some((_, output)) = found.last_mut() {
            output.push(text.clone());
        }
        goes_on = text.ends_with('\\');
    }
    found
}

/// What stands behind the prompt of a line: `$ `, `# `, or one of these behind the name of a host.
fn behind_prompt(line: &str) -> Option<&str> {
    let at = line.find(['$', '#'])?;
    let (host, rest) = line.split_at(at);
    let is_host = host.chars().all(|one| one.is_ascii_alphanumeric());
    (is_host && rest[1..].starts_with(' ')).then(|| rest[1..].trim_start())
}

/// The name of a heading in links.
fn slug(heading: &str) -> String {
    let mut slug = String::new();
    for one in heading.chars() {
        match one {
            ' ' => slug.push('-'),
            '-' | '_' => slug.push(one),
            _ if one.is_alphanumeric() => slug.extend(one.to_lowercase()),
            _ => {}
        }
    }
    slug
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page { path: "a.md".into(), text: text.to_owned() }
    }

    #[test]
    fn a_page_is_taken_apart() {
        let page = page(
            "# A `b`: c/d\nSee [it](x.md#y) and `weft\nrun`.\n\n```console\n$ weft status  # all\n\
             one\nfirst# weft a \\\n    b\n```\n# A\n# A\n",
        );
        assert_eq!(page.anchors(), ["a-b-cd", "a", "a-1"]);
        assert_eq!(page.links(), [Piece { line: 2, text: "x.md#y".into() }]);
        let code: Vec<String> = page.code().into_iter().map(|piece| piece.text).collect();
        assert_eq!(code, ["b", "weft run"]);
        let blocks = page.blocks();
        assert_eq!((blocks.len(), blocks[0].line, &*blocks[0].language), (1, 6, "console"));
        let typed = typed(&blocks[0]);
        assert_eq!(
            typed[0],
            (Piece { line: 6, text: "weft status  # all".into() }, vec!["one".to_owned()])
        );
        assert_eq!(typed[1].0, Piece { line: 8, text: "weft a b".into() });
    }

    #[test]
    fn the_pages_of_the_repository_are_found() {
        let pages = pages();
        for name in ["README.md", "CONTRIBUTING.md", "docs/kv.md", "docs/design/004-ethernet.md"] {
            assert!(pages.iter().any(|page| page.path == Path::new(name)), "{name}");
        }
    }
}
