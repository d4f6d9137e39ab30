//! The commands of OpenSHMEM: `oshrun` with the options that people know from hydra, `oshcc` and
//! `oshc++`.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser};

/// The examples of `weft oshrun`.
pub const OSHRUN_EXAMPLES: &str = "\
Examples:
  weft oshrun -np 4 ./program              four PEs on this host
  weft oshrun -np 8 -hosts a,b -ppn 4 ./program
                                           four on each of two hosts, started there by ssh
  weft oshrun -np 2 -l -bind-to core ./program
                                           lines with the rank, each PE on a core of its own
  weft oshrun -np 1 ./first : -np 3 ./others
                                           one job of two programs

Options may be written with one dash or two. Those before the first program are of the job; -np,
-env, -envall, -envnone, -envlist and -wdir are of the program behind them.

Exit status: that of the first PE that failed, or 128 + N when signal N killed it; 124 when the job
ran longer than -timeout, 127 when the program is not found, 126 when it cannot be executed, 125
when weft itself failed.";

/// The examples of `weft oshcc`.
pub const OSHCC_EXAMPLES: &str = "\
Examples:
  weft oshcc -O2 -o program program.c      compiles and links against OpenSHMEM
  weft oshcc -show -c program.c            prints the command instead
  OSHCC_CC=clang weft oshcc program.c      takes another compiler

With oshc++ the variable is OSHCXX_CXX.";

/// Most processes of a job.
const SIZE_MAX: i64 = weft_launch::hosts::SIZE_MAX as i64;

/// Arguments of `weft oshrun`.
#[derive(Clone, Debug, Default, Args)]
pub struct OshrunArguments {
    /// The number of PEs of the program behind it [default: 1]
    #[arg(short = 'n', long = "np", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=SIZE_MAX))]
    pub np: Option<u32>,
    /// PEs on each host [default: as the hosts say, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=SIZE_MAX))]
    pub ppn: Option<u32>,
    /// A file with a host in each line: `NAME`, `NAME:PES`, or `NAME slots=PES`
    #[arg(
        short = 'f',
        long = "hostfile",
        alias = "machinefile",
        value_name = "FILE",
        conflicts_with = "hosts"
    )]
    pub hostfile: Option<PathBuf>,
    /// The hosts: `a,b:4` [default: this one]
    #[arg(long, alias = "host", value_name = "LIST")]
    pub hosts: Option<String>,
    /// Sets a variable for all PEs
    #[arg(long, num_args = 2, value_names = ["NAME", "VALUE"], allow_hyphen_values = true)]
    pub genv: Vec<OsString>,
    /// Passes all variables on to all PEs; this is the default
    #[arg(long, conflicts_with_all = ["genvnone", "genvlist"])]
    pub genvall: bool,
    /// Passes no variables on
    #[arg(long, conflicts_with = "genvlist")]
    pub genvnone: bool,
    /// Passes these variables on alone: `A,B`
    #[arg(long, value_name = "LIST")]
    pub genvlist: Option<String>,
    /// Sets a variable for the PEs of the program behind it
    #[arg(long, num_args = 2, value_names = ["NAME", "VALUE"], allow_hyphen_values = true)]
    pub env: Vec<OsString>,
    /// As -genvall, for the program behind it
    #[arg(long, conflicts_with_all = ["envnone", "envlist"])]
    pub envall: bool,
    /// As -genvnone, for the program behind it
    #[arg(long, conflicts_with = "envlist")]
    pub envnone: bool,
    /// As -genvlist, for the program behind it
    #[arg(long, value_name = "LIST")]
    pub envlist: Option<String>,
    /// The directory in which the PEs start [default: this one]
    #[arg(long, alias = "wd", value_name = "DIRECTORY")]
    pub wdir: Option<PathBuf>,
    /// Begins each line of output with the rank
    #[arg(short = 'l', long = "prepend-rank")]
    pub label: bool,
    /// Processors of the PEs: `core`, `hwthread`, `socket`, `numa`, or `user:0,1,2+3`
    #[arg(long, value_name = "UNIT", default_value = "none")]
    pub bind_to: String,
    /// Writes standard output of each PE to a file; `%r` is the rank, `%h` the host
    #[arg(long, value_name = "PATTERN")]
    pub outfile_pattern: Option<String>,
    /// Writes standard error of each PE to a file
    #[arg(long, value_name = "PATTERN")]
    pub errfile_pattern: Option<String>,
    /// How other hosts are reached: `ssh`, or `fork`: all hosts are this one, for tests
    #[arg(long, alias = "rmk", value_enum, default_value = "ssh")]
    pub launcher: Launcher,
    /// The program in place of ssh: it gets the host and a command for its shell
    #[arg(long, value_name = "PROGRAM")]
    pub launcher_exec: Option<PathBuf>,
    /// Ends the job after this many seconds [default: MPIEXEC_TIMEOUT, else never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<f64>,
    /// Milliseconds between SIGTERM and SIGKILL when the job is ended
    #[arg(long, value_name = "MS", default_value_t = 500,
          value_parser = clap::value_parser!(u32).range(0..=600_000))]
    pub grace: u32,
    /// The program and its arguments; a colon begins the next program
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// How other hosts are reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Launcher {
    /// By ssh.
    #[default]
    Ssh,
    /// All hosts are this one.
    Fork,
}

/// Arguments of `weft oshcc` and `weft oshc++`.
#[derive(Debug, Args)]
pub struct WrapperArguments {
    /// Arguments of the compiler; `-show` prints the command instead of running it
    #[arg(last = true, value_name = "ARGUMENT")]
    pub arguments: Vec<OsString>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is no number of seconds".to_owned())?;
    if seconds > 0.0 && seconds < 1e9 { Ok(seconds) } else { Err("it is not above 0".to_owned()) }
}

/// The arguments of one program of a job behind a colon.
#[derive(Debug, Parser)]
#[command(name = "weft oshrun", no_binary_name = true)]
struct Further {
    #[command(flatten)]
    arguments: OshrunArguments,
}

impl OshrunArguments {
    /// The programs of the job: these arguments up to the first colon, and those behind each.
    ///
    /// # Errors
    /// Arguments behind a colon that clap refuses.
    pub fn programs(&self) -> Result<Vec<Self>, clap::Error> {
        let mut parts = self.program.split(|word| word == ":");
        let first = Self { program: parts.next().unwrap_or_default().to_vec(), ..self.clone() };
        let mut programs = vec![first];
        for part in parts {
            let words = with_two_dashes(part);
            let matches = Further::command().try_get_matches_from(words)?;
            programs.push(Further::from_arg_matches(&matches)?.arguments);
        }
        Ok(programs)
    }
}

/// The words of a command line as the command `weft` reads them: `oshrun`, `oshcc` and `oshc++` may
/// be the name of the command itself, options of `oshrun` may have one dash, and what belongs to a
/// program or a compiler stands behind `--`.
pub fn spelled(words: Vec<OsString>) -> Vec<OsString> {
    let called = words.first().map(std::path::Path::new).and_then(std::path::Path::file_name);
    let linked = called.and_then(OsStr::to_str).filter(|name| is_ours(name)).map(OsString::from);
    let (name, rest) = match linked {
        Some(name) => (name, words.get(1..).unwrap_or_default()),
        None => match words.get(1) {
            Some(name) if name.to_str().is_some_and(is_ours) => {
                (name.clone(), words.get(2..).unwrap_or_default())
            }
            _ => return words,
        },
    };
    let rest = match name.to_str() {
        Some("oshrun") => with_two_dashes(rest),
        _ if matches!(rest, [only] if only == "--help") => rest.to_vec(),
        _ => std::iter::once(OsString::from("--")).chain(rest.iter().cloned()).collect(),
    };
    ["weft".into(), name].into_iter().chain(rest).collect()
}

fn is_ours(name: &str) -> bool {
    matches!(name, "oshrun" | "oshcc" | "oshc++")
}

/// Options of `oshrun` with two dashes, and `--` before the program.
fn with_two_dashes(words: &[OsString]) -> Vec<OsString> {
    let command = Further::command();
    let mut spelled = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let text = word.to_string_lossy();
        if text == "--" {
            spelled.push(word.clone());
            break;
        }
        let Some(name) = text.strip_prefix('-').filter(|name| !name.is_empty()) else {
            spelled.extend(["--".into(), word.clone()]);
            break;
        };
        let name = name.strip_prefix('-').unwrap_or(name);
        let is_short = !text.starts_with("--") && name.chars().count() == 1;
        spelled.push(if is_short { word.clone() } else { format!("--{name}").into() });
        for _ in 0..values(&command, name) {
            spelled.extend(rest.next().cloned());
        }
    }
    spelled.extend(rest.cloned());
    spelled
}

/// How many words behind an option belong to it.
fn values(command: &clap::Command, name: &str) -> usize {
    let is_named = |argument: &&clap::Arg| {
        argument.get_long() == Some(name)
            || argument.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
            || argument.get_short().is_some_and(|short| name == short.to_string())
    };
    let takes = |argument: &clap::Arg| match argument.get_action() {
        clap::ArgAction::SetTrue => 0,
        _ => argument.get_value_names().map_or(1, <[_]>::len),
    };
    let known = command.get_arguments().find(is_named).map(takes);
    // An option of the configuration has one value, too. One with `=` has it behind that.
    known.unwrap_or(usize::from(weft_options::TABLE.iter().any(|entry| entry.flag() == name)))
}

#[cfg(test)]
mod tests {
    use super::super::Command;
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    fn spell(text: &str) -> String {
        let spelled = spelled(words(text));
        spelled.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn options_may_have_one_dash_and_the_program_keeps_its_own() {
        for (typed, read) in [
            ("weft oshrun -np 4 a -np 5", "weft oshrun --np 4 -- a -np 5"),
            ("weft oshrun -n 4 -l ./a", "weft oshrun -n 4 -l -- ./a"),
            ("/usr/bin/oshrun -genv A -1 -env B 2 a", "weft oshrun --genv A -1 --env B 2 -- a"),
            ("oshrun -hosts a,b --ppn 2 -- a -- b", "weft oshrun --hosts a,b --ppn 2 -- a -- b"),
            ("oshrun --np=3 a", "weft oshrun --np=3 -- a"),
            ("weft oshrun --help", "weft oshrun --help"),
            ("weft oshrun --shm-spin-us 3 a", "weft oshrun --shm-spin-us 3 -- a"),
            ("weft run -- oshrun -np 2", "weft run -- oshrun -np 2"),
            ("bin/oshcc -O2 a.c", "weft oshcc -- -O2 a.c"),
            ("weft oshc++ --help", "weft oshc++ --help"),
            ("weft", "weft"),
        ] {
            assert_eq!(spell(typed), read, "{typed}");
        }
    }

    #[test]
    fn a_colon_begins_the_next_program() {
        let line = spelled(words("oshrun -np 1 -l a x : -np 2 -env A 1 b y : c"));
        let matches = super::super::command().try_get_matches_from(line).expect("a valid line");
        let line = super::super::Line::from_arg_matches(&matches).expect("a valid line");
        let Command::Oshrun(arguments) = line.command else { panic!("not oshrun") };
        let programs = arguments.programs().expect("valid programs");
        let shown: Vec<(Option<u32>, Vec<OsString>)> =
            programs.iter().map(|one| (one.np, one.program.clone())).collect();
        let expected = [(Some(1), words("a x")), (Some(2), words("b y")), (None, words("c"))];
        assert_eq!(shown, expected);
        assert_eq!(programs[1].env, words("A 1"));
    }

    #[test]
    fn a_colon_without_a_program_is_refused() {
        let mut arguments = OshrunArguments { program: words("a :"), ..Default::default() };
        assert!(arguments.programs().is_err());
        arguments.program = words("a : -np 0 b");
        assert!(arguments.programs().is_err());
    }
}
