//! The options of the table as flags of every command.
//!
//! They are added from the table when the line is parsed, so that no option can be forgotten. The
//! help of `weft config` shows them; all other helps end with a line that says so.

use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches};
use weft_options::{Entry, TABLE};

use super::{Command, Line, oshmem};
use crate::output;

/// The line that every help ends with.
pub const HINT: &str =
    "Options of the configuration are flags, too; `weft config --help` shows them.";

/// The command whose help shows the options.
const SHOWING: &str = "config";

/// A parsed command line.
#[derive(Debug)]
pub struct Invocation {
    /// The command.
    pub command: Command,
    /// Options of the table that were given as flags: name and value.
    pub flags: Vec<(&'static str, String)>,
}

impl Invocation {
    /// Parses the arguments of the process; prints help and errors, and exits, as clap does.
    pub fn parse() -> Self {
        let words = oshmem::spelled(std::env::args_os().collect());
        let parsed = command().try_get_matches_from(words).and_then(|matches| {
            let line = Line::from_arg_matches(&matches)?;
            Ok(Self { command: line.command, flags: flags(&matches) })
        });
        parsed.unwrap_or_else(|told| match told.print() {
            // Help and the version are no errors, but for an output that cannot be written.
            Err(error) if !told.use_stderr() => output::fail(&error),
            _ => std::process::exit(told.exit_code()),
        })
    }
}

/// The whole command line, with a flag for every option of the table and for its old names.
pub fn command() -> clap::Command {
    let old = TABLE
        .iter()
        .flat_map(|entry| entry.old_names.iter().map(|name| flag(entry, name).hide(true)));
    command_of_today().args(old)
}

/// The same without old names, for completions.
pub fn command_of_today() -> clap::Command {
    let shown = || TABLE.iter().map(|entry| flag(entry, entry.name));
    let hidden = || shown().map(|flag| flag.hide(true));
    // A command that has a flag itself does not get that of the command above it.
    let config =
        |config: clap::Command| config.args(shown()).mut_subcommands(|inner| inner.args(hidden()));
    with_hint(Line::command()).args(hidden()).mut_subcommand(SHOWING, config)
}

/// Ends the help of a command and of those in it with the hint.
fn with_hint(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(with_hint);
    if command.get_name() == SHOWING {
        return command;
    }
    let help = match command.get_after_help() {
        Some(help) => format!("{help}\n\n{HINT}"),
        None => HINT.to_owned(),
    };
    command.after_help(help)
}

fn flag(entry: &'static Entry, name: &'static str) -> Arg {
    let default = entry.with_unit(&entry.kind.default_text());
    Arg::new(name)
        .long(weft_options::flag(name))
        .global(true)
        .value_name(entry.placeholder())
        .allow_hyphen_values(true)
        .hide_short_help(true)
        .help_heading("Options of the configuration (also in weft.toml and as WEFT_* variables)")
        .help(format!("{} Allowed: {}. Default: {default}.", entry.text, entry.kind))
}

/// The flags of the table that were given, by the names that were given.
fn flags(matches: &ArgMatches) -> Vec<(&'static str, String)> {
    TABLE
        .iter()
        .flat_map(|entry| std::iter::once(entry.name).chain(entry.old_names.iter().copied()))
        .filter_map(|name| Some((name, matches.get_one::<String>(name)?.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::Command;
    use super::*;

    type Parsed = (Line, Vec<(&'static str, String)>);

    fn parse(line: &[&str]) -> Result<Parsed, clap::Error> {
        let matches = command().try_get_matches_from(line)?;
        Ok((Line::from_arg_matches(&matches)?, flags(&matches)))
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn everything_after_the_dashes_belongs_to_the_program() {
        let (line, _) = parse(&["weft", "run", "--node", "a", "--", "x", "--stats", "--", "y"])
            .expect("a valid line");
        let Command::Run(run) = line.command else { panic!("not run") };
        assert_eq!(run.command, ["x", "--stats", "--", "y"]);
        assert!(!run.stats);
        assert_eq!(run.node.node.as_deref(), Some("a"));
        assert!(parse(&["weft", "run", "x"]).is_err());
        assert!(parse(&["weft", "run", "--"]).is_err());
    }

    #[test]
    fn options_of_the_table_are_flags_of_every_command() {
        let line = ["weft", "run", "--shm-spin-us", "7", "--", "x"];
        assert_eq!(parse(&line).expect("a valid line").1, [("shm.spin_us", "7".to_owned())]);
        let line = ["weft", "--socket-enable", "off", "status"];
        assert_eq!(parse(&line).expect("a valid line").1, [("socket.enable", "off".to_owned())]);
    }

    #[test]
    fn an_unknown_option_is_refused_with_the_nearest() {
        let error = parse(&["weft", "status", "--jsn"]).expect_err("an unknown option");
        assert!(error.to_string().contains("--json"), "{error}");
    }

    #[test]
    fn every_visible_command_has_examples() {
        for command in command().get_subcommands().filter(|command| !command.is_hide_set()) {
            for one in command.get_subcommands().chain([command]) {
                let help = one.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Examples:"), "{}", one.get_name());
            }
        }
    }

    /// The help of every command that is shown, by its name, in the long and the short form.
    fn helps() -> Vec<(String, String)> {
        fn visit(command: &mut clap::Command, helps: &mut Vec<(String, String)>) {
            let name = command.get_bin_name().unwrap_or_default().to_owned();
            helps.push((name.clone(), command.render_long_help().to_string()));
            helps.push((name, command.render_help().to_string()));
            for inner in command.get_subcommands_mut().filter(|inner| !inner.is_hide_set()) {
                visit(inner, helps);
            }
        }
        let mut whole = command();
        whole.build();
        let mut helps = Vec::new();
        visit(&mut whole, &mut helps);
        helps
    }

    #[test]
    fn options_of_the_table_are_shown_in_the_help_of_config_alone() {
        let helps = helps();
        assert!(helps.len() > 30, "{}", helps.len());
        let showing = |flag: &str| {
            let shown = helps.iter().filter(|(_, help)| help.contains(&format!("{flag} ")));
            shown.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
        };
        for entry in TABLE {
            // `--socket-idle-ms` and `--dash-listen` are examples, too, and so are the options of a
            // fabric.
            let examples = ["weft config dump", "weft config list", "weft dash", "weft fabric"];
            let mut shown = showing(&format!("--{} <", entry.flag()).replace(" <", ""));
            shown.retain(|name| !examples.contains(name));
            assert_eq!(shown, ["weft config"], "{}", entry.name);
        }
        assert!(showing("--socket-rest-ms").is_empty());
        assert!(showing("--node").contains(&"weft run"), "what a command has itself is shown");
    }

    #[test]
    fn every_help_ends_with_the_line_about_options() {
        for (name, help) in helps() {
            let ends = help.trim_end().ends_with(HINT);
            assert_eq!(ends, name != "weft config", "{name}: {help}");
        }
    }

    #[test]
    fn options_are_accepted_at_every_place_of_config() {
        for line in [
            ["weft", "--socket-idle-ms", "5", "config", "list"],
            ["weft", "config", "--socket-idle-ms", "5", "list"],
            ["weft", "config", "list", "--socket-idle-ms", "5"],
        ] {
            let flags = parse(&line).expect("a valid line").1;
            assert_eq!(flags, [("socket.idle_ms", "5".to_owned())], "{line:?}");
        }
    }

    #[test]
    fn old_names_are_accepted_and_not_completed() {
        let line = ["weft", "run", "--socket-rest-ms", "7", "--", "x"];
        assert_eq!(parse(&line).expect("a valid line").1, [("socket.rest_ms", "7".to_owned())]);
        assert!(command_of_today().try_get_matches_from(line).is_err());
    }
}
