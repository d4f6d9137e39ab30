//! `weft oshcc` and `weft oshc++`: the compiler with the flags of OpenSHMEM.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;

use super::places::Places;
use crate::arguments::WrapperArguments;
use crate::configuration::variable;
use crate::output::show_line;
use crate::shell::as_word;

/// Words that print the command instead of running it, as others' wrappers have them.
const SHOW: [&str; 3] = ["-show", "-showme", "--showme"];
/// Words with which a compiler does not link.
const NO_LINK: [&str; 7] = ["-c", "-S", "-E", "-M", "-MM", "-fsyntax-only", "--version"];

/// The language of a wrapper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Language {
    /// `oshcc`.
    C,
    /// `oshc++`.
    Cxx,
}

impl Language {
    /// The variable that names another compiler, and the usual one.
    const fn compiler(self) -> (&'static str, &'static str) {
        match self {
            Self::C => ("OSHCC_CC", "cc"),
            Self::Cxx => ("OSHCXX_CXX", "c++"),
        }
    }
}

/// `weft oshcc` and `weft oshc++`: becomes the compiler.
pub fn wrap(language: Language, arguments: &WrapperArguments) -> anyhow::Result<ExitCode> {
    let (name, usual) = language.compiler();
    let compiler = variable(name).unwrap_or_else(|| usual.to_owned());
    let words = words(&compiler, &arguments.arguments, &Places::find()?);
    if arguments.arguments.iter().any(is_show) {
        let words: Vec<String> =
            words.iter().map(|word| as_word(&word.to_string_lossy())).collect();
        show_line!("{}", words.join(" "));
        return Ok(ExitCode::SUCCESS);
    }
    let (program, rest) = words.split_first().context("no compiler is named")?;
    let error = Command::new(program).args(rest).exec();
    Err(error).with_context(|| format!("{} cannot be run; {name} names another", compiler.trim()))
}

fn is_show(word: &OsString) -> bool {
    SHOW.iter().any(|show| word == show)
}

/// The command. A variable may name a compiler with arguments, such as `ccache cc`.
fn words(compiler: &str, arguments: &[OsString], places: &Places) -> Vec<OsString> {
    let mut words: Vec<OsString> = compiler.split_whitespace().map(OsString::from).collect();
    words.push(joined("-I", places.headers.as_os_str()));
    words.extend(arguments.iter().filter(|word| !is_show(word)).cloned());
    let links = !arguments.iter().any(|word| NO_LINK.iter().any(|no_link| word == no_link));
    if links {
        words.push(joined("-L", places.library.as_os_str()));
        words.push(joined("-Wl,-rpath,", places.library.as_os_str()));
        words.push("-lweft_shmem".into());
    }
    words
}

fn joined(flag: &str, path: &std::ffi::OsStr) -> OsString {
    let mut word = OsString::from(flag);
    word.push(path);
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(compiler: &str, arguments: &[&str]) -> String {
        let places = Places { library: "/p/lib".into(), headers: "/p/include".into() };
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let words = words(compiler, &arguments, &places);
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_program_is_linked_and_finds_its_library() {
        let whole = "cc -I/p/include -O2 a.c -L/p/lib -Wl,-rpath,/p/lib -lweft_shmem";
        assert_eq!(command("cc", &["-O2", "a.c"]), whole);
        assert_eq!(command("cc", &["-show", "-O2", "a.c"]), whole);
    }

    #[test]
    fn what_is_not_linked_has_no_words_for_the_linker() {
        let compiled = "ccache cc -I/p/include -c a.c";
        assert_eq!(command("ccache cc", &["-c", "a.c"]), compiled);
    }
}
