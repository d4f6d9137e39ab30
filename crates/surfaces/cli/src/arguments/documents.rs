//! Checks that the commands of `weft` in the pages and in the helps can be typed.

use weft_pages::{Page, Piece, pages, shell};

use super::{command, oshmem};

/// The names by which the command is called, itself and by its links.
const NAMES: &[&str] = &["weft", "oshrun", "oshcc", "oshc++"];
/// Words before a command that do not change what it is.
const BEFORE: &[&str] = &["sudo", "exec", "nohup", "time", "eval", "strace", "-E"];

/// Whether a word stands for another one: in capitals, or an ellipsis.
fn is_placeholder(word: &str) -> bool {
    let letters = || word.chars().filter(char::is_ascii_alphabetic);
    let is_in_capitals = letters().next().is_some() && letters().all(|one| one.is_uppercase());
    word.contains(['…', '<', '[', '$']) || word.contains("...") || is_in_capitals
}

/// The command of `weft` among the words of a command of the shell, from its name on.
fn ours(words: &[String]) -> Option<&[String]> {
    let name = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let at = words.iter().position(|word| NAMES.contains(&&*name(word)))?;
    let before = |word: &String| {
        word.contains('=') || BEFORE.contains(&word.as_str()) || is_container(words)
    };
    words[..at].iter().all(before).then(|| &words[at..])
}

/// The script of the page about containers runs a command behind its arguments.
fn is_container(words: &[String]) -> bool {
    words.iter().any(|word| word == "container.sh")
}

/// Why a command cannot be typed. A form in a sentence may leave out what a command needs.
fn wrong(words: &[String], is_whole: bool) -> Option<String> {
    let called = words[0].rsplit('/').next().unwrap_or_default();
    let typed = words[1..].iter().filter(|word| *word != "…" && *word != "...");
    let line = std::iter::once(called).chain(typed.map(String::as_str));
    let line: Vec<std::ffi::OsString> = line.map(Into::into).collect();
    use clap::error::ErrorKind;
    let error = command().try_get_matches_from(oshmem::spelled(line)).err()?;
    let told = error.to_string();
    let is_cut_short = !is_whole || words.iter().any(|word| word == "...");
    let is_fault = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => false,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::TooFewValues
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => !is_cut_short,
        ErrorKind::InvalidValue if told.contains("a value is required") => !is_cut_short,
        _ => !words[1..].iter().any(|word| is_placeholder(word)),
    };
    is_fault.then(|| format!("{}: {}", words.join(" "), told.lines().next().unwrap_or_default()))
}

/// The faults of the pieces of a page, and how many commands there were.
fn faults(page: &Page, pieces: Vec<Piece>, is_whole: bool) -> (usize, Vec<String>) {
    let (mut looked, mut faults) = (0, Vec::new());
    for Piece { line, text } in pieces {
        for words in shell::commands(&text) {
            let Some(words) = ours(&words) else { continue };
            looked += 1;
            let found = wrong(words, is_whole);
            faults.extend(found.map(|why| format!("{}:{line}: {why}", page.path.display())));
        }
    }
    (looked, faults)
}

#[test]
fn commands_of_the_pages_can_be_typed() {
    let (mut looked, mut all) = (0, Vec::new());
    for page in pages() {
        for (pieces, is_whole) in [(page.typed(), true), (page.code(), false)] {
            let (more, found) = faults(&page, pieces, is_whole);
            looked += more;
            all.extend(found);
        }
    }
    assert!(looked > 300, "only {looked} commands were found");
    assert!(all.is_empty(), "commands that cannot be typed:\n  {}", all.join("\n  "));
}

/// The mark before the words about an example.
fn command_of(line: &str) -> &str {
    line.split("  ").next().unwrap_or_default().trim_end_matches('\\')
}

/// The commands in the examples of a help: two spaces, the command, two spaces or more, what it
/// does. An example that is longer ends with a backslash.
fn examples(help: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in help.lines().skip_while(|line| *line != "Examples:").skip(1) {
        let text = line.strip_prefix("  ").unwrap_or_default();
        if goes_on && let Some(last) = found.last_mut() {
            last.push_str(command_of(text.trim()));
        } else if !text.is_empty() && !text.starts_with(' ') {
            found.push(command_of(text).to_owned());
        }
        goes_on = line.ends_with('\\');
    }
    found
}

#[test]
fn examples_of_the_helps_can_be_typed() {
    fn visit(command: &clap::Command, found: &mut Vec<String>) {
        found.extend(examples(
            &command.get_after_help().map(ToString::to_string).unwrap_or_default(),
        ));
        command.get_subcommands().for_each(|inner| visit(inner, found));
    }
    let mut found = Vec::new();
    visit(&command(), &mut found);
    let commands: Vec<Vec<String>> = found.iter().flat_map(|line| shell::commands(line)).collect();
    let own: Vec<&[String]> = commands.iter().filter_map(|words| ours(words)).collect();
    assert!(own.len() > 80, "only {} examples were found", own.len());
    let wrong: Vec<String> = own.into_iter().filter_map(|words| wrong(words, true)).collect();
    assert!(wrong.is_empty(), "examples that cannot be typed:\n  {}", wrong.join("\n  "));
}

#[test]
fn planted_faults_are_found() {
    let fault = |line: &str, is_whole| {
        let words = shell::commands(line).remove(0);
        ours(&words).and_then(|words| wrong(words, is_whole))
    };
    for line in ["weft stats", "weft status --jsn", "sudo weft lab up --nodes many", "weft run x"] {
        assert!(fault(line, true).is_some(), "{line}");
    }
    assert!(fault("weft config explain", true).is_some());
    for line in ["weft config explain", "weft COMMAND --help", "weft perf TEST --to NODE"] {
        assert!(fault(line, false).is_none(), "{line}");
    }
    assert!(fault("oshrun -np 4 -l ./ring", true).is_none());
    assert_eq!(
        examples("x\nExamples:\n  weft a \\\n      b\n  weft c    d\n"),
        ["weft a b", "weft c"]
    );
}
