//! Parts of pages that a task makes: written into the page, or compared with what it has.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};

/// Whether a task writes its page, or says whether it is out of date.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Write.
    Write,
    /// Compare.
    Check,
}

impl Want {
    /// From the arguments of a task: none, or `--check`.
    pub fn of(arguments: &[String]) -> anyhow::Result<Self> {
        match arguments {
            [] => Ok(Self::Write),
            [only] if only == "--check" => Ok(Self::Check),
            _ => bail!("its only argument is --check"),
        }
    }
}

/// Puts `text` between the lines `<!-- NAME -->` and `<!-- end of NAME -->` of a page.
pub fn part(page: &Path, name: &str, text: &str, want: Want, task: &str) -> anyhow::Result<()> {
    let old = fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let [from, to] = [format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->\n")];
    let begin = old.find(&from).with_context(|| format!("no line {from}"))? + from.len();
    let end = old.find(&to).with_context(|| format!("no line {to}"))?;
    ensure!(begin <= end, "{name} ends before it begins");
    let new = format!("{}\n{}\n\n{}", &old[..begin], text.trim(), &old[end..]);
    whole(page, &new, want, task)
}

/// Makes `text` the whole page.
pub fn whole(page: &Path, text: &str, want: Want, task: &str) -> anyhow::Result<()> {
    if fs::read_to_string(page).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let shown = page.display();
    ensure!(want == Want::Write, "{shown} is out of date: run `cargo xtask {task}`");
    fs::write(page, text).with_context(|| shown.to_string())?;
    println!("wrote {shown}");
    Ok(())
}
