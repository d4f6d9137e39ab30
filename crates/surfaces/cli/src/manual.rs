//! Manual pages and completions, made from the command line's definition and the option table.
//!
//! Every page has the same sections in the same order: NAME, SYNOPSIS, DESCRIPTION, LIMITS,
//! OPTIONS, ENVIRONMENT, EXAMPLES, SEE ALSO.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap_mangen::Man;
use weft_options::{OTHER_VARIABLES, TABLE};

use crate::arguments::{HINT, command, command_of_today};

/// The page that has the options of the configuration.
const OPTIONS_PAGE: &str = "weft-config";

/// One page for the command and one for each of its subcommands: names of files, and texts.
pub fn all() -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut whole = command();
    whole.build();
    let mut pages = Vec::new();
    visit(&whole, "weft", &mut |name, command| {
        pages.push((format!("{name}.1"), page(name, command)?));
        Ok(())
    })?;
    Ok(pages)
}

/// Writes all pages into a directory. Returns their files.
pub fn pages(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("{} cannot be made", directory.display()))?;
    let write = |(file, text): (String, Vec<u8>)| {
        let path = directory.join(file);
        std::fs::write(&path, text)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(path)
    };
    all()?.into_iter().map(write).collect()
}

/// The completions for a shell.
pub fn completion(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command_of_today(), "weft", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

fn visit(
    command: &clap::Command,
    name: &str,
    each: &mut impl FnMut(&str, &clap::Command) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    each(name, command)?;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        visit(inner, &format!("{name}-{}", inner.get_name()), each)?;
    }
    Ok(())
}

/// One page.
fn page(name: &str, command: &clap::Command) -> anyhow::Result<Vec<u8>> {
    let line = name.replace('-', " ");
    let named = command
        .clone()
        .display_name(name.to_owned())
        .bin_name(line.clone())
        .mut_args(|argument| argument.hide_short_help(false));
    let man = Man::new(named.clone()).title(name.to_uppercase()).section("1").manual("weft");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    Man::new(without_table(named)).render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    page.extend(section("LIMITS", limits(name)).into_bytes());
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend(environment(name).into_bytes());
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    page.extend(examples_section(examples.trim_end_matches(HINT)).into_bytes());
    page.extend(see_also(name).into_bytes());
    Ok(page)
}

/// A synopsis names the flags of the command itself, not those of the configuration.
fn without_table(command: clap::Command) -> clap::Command {
    let is_option =
        |argument: &clap::Arg| TABLE.iter().any(|entry| entry.name == argument.get_id().as_str());
    command.mut_args(|argument| {
        let hide = is_option(&argument) || argument.is_hide_set();
        argument.hide(hide)
    })
}

/// The limits of a command.
fn limits(name: &str) -> &'static str {
    match name {
        "weft" | "weft-run" => {
            "Both ends of a connection must run under weft on the same host, else it stays on TCP. \
             Programs that are statically linked, setuid, made for another C library than glibc, \
             or that call the kernel without the C library (Go) stay on TCP."
        }
        "weft-oshrun" => {
            "A job on several hosts needs the same weft at the same path on each of them, and ssh \
             without a password. Programs of Open MPI do not know PMI: they run alone."
        }
        "weft-daemon" => "One daemon serves one node. Limits are options of the category daemon.",
        "weft-down" => "Connections that exist go on; new ones stay on TCP until a daemon is back.",
        "weft-perf" => {
            "Figures of transport sim are in virtual time and say nothing about this machine. \
             Figures of shm need two cores that nobody else uses."
        }
        "weft-sim" | "weft-sim-run" => {
            "Figures are in virtual time and say nothing about this machine. A graph has 1,048,576 \
             vertices at most, and 4,000,000 messages at most are on their way at one time."
        }
        "weft-demo" => "It measures this machine as it is: other load changes the figures.",
        _ => "None.",
    }
}

/// Variables that are no options, and those of the options where these are explained.
fn environment(name: &str) -> String {
    let mut text = String::from(".SH ENVIRONMENT\n");
    for other in OTHER_VARIABLES {
        entry(&mut text, other.name, other.text);
    }
    if name != OPTIONS_PAGE {
        text.push_str(
            ".PP\nOptions of the configuration are flags and variables, too: see\n\
             .BR weft\\-config (1).\n",
        );
        return text;
    }
    for option in TABLE {
        let body = format!("Option {}, as --{} above.", option.name, option.flag());
        entry(&mut text, &option.variable(), &body);
    }
    text
}

fn entry(text: &mut String, name: &str, body: &str) {
    // Writing into a String cannot fail.
    let _ = writeln!(text, ".TP\n\\fB{}\\fR\n{}", escape(name), escape(body));
}

fn section(title: &str, body: &str) -> String {
    format!(".SH {title}\n{}\n", escape(body))
}

fn examples_section(text: &str) -> String {
    let body = text.trim_start_matches("Examples:").trim_matches('\n');
    let body = if body.is_empty() { "  weft --help" } else { body };
    format!(".SH EXAMPLES\n.nf\n{}\n.fi\n", escape(body))
}

fn see_also(name: &str) -> String {
    let others =
        ["weft", "weft-run", "weft-daemon", "weft-status", "weft-config", "weft-info", "weft-perf"];
    let list: Vec<String> = others
        .iter()
        .filter(|other| **other != name)
        .map(|other| format!("\\fB{}\\fR(1)", escape(other)))
        .collect();
    format!(".SH SEE ALSO\n{}\n", list.join(", "))
}

/// Text that troff takes as it is: no escapes, no control lines.
fn escape(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('-', "\\-");
    escaped
        .lines()
        .map(|line| if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.into() })
        .collect::<Vec<String>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_the_sections_in_their_order() {
        let mut whole = command();
        whole.build();
        let mut pages = 0;
        visit(&whole, "weft", &mut |name, command| {
            let text = String::from_utf8(page(name, command)?)?;
            let mut from = 0;
            for title in [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "LIMITS",
                "OPTIONS",
                "ENVIRONMENT",
                "EXAMPLES",
                "SEE ALSO",
            ] {
                let line = format!(".SH {title}\n");
                let quoted = format!(".SH \"{title}\"\n");
                let rest = &text[from..];
                let found = rest.find(&line).or_else(|| rest.find(&quoted));
                from += found.unwrap_or_else(|| panic!("{name}: {title}:\n{text}"));
            }
            assert_eq!(
                text.matches("weft\\-config (1)").count(),
                usize::from(name != OPTIONS_PAGE)
            );
            assert!(!text.contains(&escape(HINT)), "{name}: the hint is for helps");
            let synopsis = &text[..text.find("DESCRIPTION").expect("it was found above")];
            for option in TABLE {
                for spelled in [option.variable(), format!("--{}", option.flag())] {
                    let spelled = escape(&spelled);
                    let is_there = text.contains(&format!("{spelled}\\fR"));
                    assert_eq!(is_there, name == OPTIONS_PAGE, "{name}: {spelled}");
                    assert!(!synopsis.contains(&spelled), "{name}: {spelled}");
                }
            }
            let old = weft_options::old_variables().find(|old| text.contains(&escape(old)));
            assert_eq!(old, None, "{name}");
            pages += 1;
            Ok(())
        })
        .expect("pages");
        assert!(pages >= 8, "{pages}");
    }

    #[test]
    fn completions_have_the_options_and_no_old_names() {
        use clap_complete::Shell;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = completion(shell);
            for option in TABLE {
                assert!(text.contains(&option.flag()), "{shell}: {}", option.name);
            }
            assert!(text.contains("explain"), "{shell}");
            assert!(!text.contains("socket-rest-ms"), "{shell}");
        }
    }

    #[test]
    fn no_line_of_text_is_taken_for_a_command() {
        assert_eq!(escape(".x\n'y\na-b\\"), "\\&.x\n\\&'y\na\\-b\\\\");
    }
}
