//! `weft doctor`: what holds weft back on this machine, what to change, and what that gains.
//!
//! Each check looks at one thing and changes nothing. Its state is one of [`State`]; the worst one
//! is the exit status. Checks read the kernel's files below a root, so that tests have a made-up
//! machine.

mod machine;
mod measured;
mod network;
mod running;
mod security;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use crate::arguments::DoctorArguments;
use crate::configuration::Configuration;
use crate::output::{show, show_line};
use crate::terminal::paragraph;

/// How a thing is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Good,
    /// Nothing is wrong, and it is worth to know.
    Note,
    /// It costs speed.
    Slow,
    /// Something does not work because of it.
    Broken,
}

/// The finding about one thing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    /// The finding.
    found: String,
    /// The change to make; empty if there is none.
    change: String,
    /// The gain from that; empty if there is none.
    gain: String,
}

impl Check {
    fn new(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { name, state, found: found.into(), change: String::new(), gain: String::new() }
    }

    fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, State::Good, found)
    }

    fn note(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, State::Note, found)
    }

    fn change(mut self, change: impl Into<String>, gain: impl Into<String>) -> Self {
        (self.change, self.gain) = (change.into(), gain.into());
        self
    }
}

/// The files of the kernel.
#[derive(Clone, Debug)]
struct Kernel {
    root: PathBuf,
}

impl Kernel {
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The text of a file without the blanks around it; `None` if it cannot be read.
    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    /// The names in a directory, in order; none if it cannot be read.
    fn list(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// `weft doctor`.
pub fn doctor(
    arguments: &DoctorArguments,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    let socket = configuration.control_socket(arguments.node.node.as_deref())?;
    let options = &configuration.options;
    let kernel = Kernel { root: PathBuf::from("/") };
    let mut checks = machine::checks(&kernel);
    checks.extend(network::checks(&kernel, options, &socket));
    checks.extend(security::checks(&kernel));
    checks.extend(running::checks(&kernel, &socket));
    if !arguments.quick {
        checks.extend(measured::checks(machine::load_of(&kernel).1));
    }
    let worst = checks.iter().map(|check| check.state).max().unwrap_or(State::Good);
    if arguments.json {
        let report = serde_json::json!({ "state": worst, "checks": checks });
        show_line!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        show!("{}", text(&checks));
    }
    Ok(match worst {
        State::Good | State::Note => ExitCode::SUCCESS,
        State::Slow => ExitCode::from(2),
        State::Broken => ExitCode::from(3),
    })
}

/// The checks for people: what is wrong first, and what to do.
fn text(checks: &[Check]) -> String {
    let mut text = String::new();
    for (state, title) in [
        (State::Broken, "Does not work"),
        (State::Slow, "Costs speed"),
        (State::Note, "Worth to know"),
        (State::Good, "As it should be"),
    ] {
        let mut of_state = checks.iter().filter(|check| check.state == state).peekable();
        if of_state.peek().is_none() {
            continue;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!("{title}\n"));
        for check in of_state {
            text.push_str(&indented(&format!("{}: {}", check.name, check.found), 2));
            if !check.change.is_empty() {
                text.push_str(&indented(&format!("{}. Gain: {}.", check.change, check.gain), 6));
            }
        }
    }
    text
}

fn indented(text: &str, by: usize) -> String {
    paragraph(text).lines().map(|line| format!("{:by$}{line}\n", "")).collect()
}

/// Whether a path is there.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up machine.
    pub fn kernel(files: &[(&str, &str)]) -> (tempfile::TempDir, Kernel) {
        let place = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = place.path().join(path);
            std::fs::create_dir_all(path.parent().expect("below the root")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        let root = place.path().to_owned();
        (place, Kernel { root })
    }

    #[test]
    fn the_text_begins_with_what_is_worst_and_says_what_to_do() {
        let slow =
            Check::new("governor", State::Slow, "powersave").change("Set it", "half the time");
        let text = text(&[Check::good("cores", "2"), slow]);
        let head = "Costs speed\n  governor: powersave\n      Set it. Gain: half the time.\n";
        assert_eq!(text, format!("{head}\nAs it should be\n  cores: 2\n"));
    }
}
