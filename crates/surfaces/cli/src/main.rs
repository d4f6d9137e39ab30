//! Layer 4: the `weft` command.
//!
//! `weft run` puts unmodified programs on the fabric, `weft oshrun` runs jobs of several processes.
//! `weft daemon`, `down` and `status` manage the node daemon, `top`, `dash`, `capture` and `doctor`
//! watch it, `weft fabric` shows other hosts and
//! `weft lab` makes a cluster on one machine, `weft block` serves disks, `weft fi` leads libfabric
//! to weft. `weft info` and `weft config` tell what is in force, `weft perf` measures, `weft sim`
//! simulates networks and `weft demo` shows. Everything that
//! scripts may rely on is in [`arguments`].
//!
//! May depend on every lower layer. Always true: standard output carries what was asked
//! for and nothing else; messages go to standard error, in lower case, and say what to do next.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a surface owns its clock, threads and sockets")]

mod arguments;
mod block;
mod c_library;
mod capture;
mod config;
mod configuration;
mod counting;
mod cp;
mod daemon;
mod dash;
mod demo;
mod doctor;
mod fabric;
mod fi;
mod information;
mod kv;
mod lab;
mod manual;
mod measure;
mod oshrun;
mod output;
mod path_trial;
mod perf;
mod providers;
mod release;
mod run;
mod shell;
mod shmem;
#[cfg(feature = "simulator")]
mod sim;
mod status;
mod table;
mod terminal;
mod text_file;
mod top;
mod transfer;
mod transports;

use std::io::IsTerminal;
use std::process::ExitCode;

use arguments::{Command, Invocation};
use configuration::Configuration;
use output::{show, show_line};

/// Exit status of `weft run` and `weft oshrun` when weft itself failed, as `env` has it.
const EXIT_RUN_FAILED: u8 = 125;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(code) = oshrun::part(&words) {
        return code;
    }
    let invocation = Invocation::parse();
    start_log();
    let is_run = matches!(invocation.command, Command::Run(_) | Command::Oshrun(_));
    match dispatch(invocation) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("weft: {error:#}{}", output::limit_of(&error));
            if is_run { ExitCode::from(EXIT_RUN_FAILED) } else { ExitCode::FAILURE }
        }
    }
}

fn dispatch(invocation: Invocation) -> anyhow::Result<ExitCode> {
    let configuration = || Configuration::load(invocation.flags.clone());
    match &invocation.command {
        Command::Run(arguments) => run::run(arguments, &configuration()?),
        Command::Oshrun(arguments) => oshrun::oshrun(arguments),
        Command::Oshcc(arguments) => shmem::wrap(shmem::Language::C, arguments),
        Command::Oshcxx(arguments) => shmem::wrap(shmem::Language::Cxx, arguments),
        Command::Daemon(arguments) => daemon::daemon(arguments, &configuration()?),
        Command::Down(arguments) => daemon::down(arguments, &configuration()?),
        Command::Status(arguments) => status::status(arguments, &configuration()?),
        Command::Top(arguments) => top::top(arguments, &configuration()?),
        Command::Capture(arguments) => capture::capture(arguments, &configuration()?),
        Command::Dash(arguments) => dash::dash(arguments, &configuration()?),
        Command::Doctor(arguments) => doctor::doctor(arguments, &configuration()?),
        Command::Fabric(command) => fabric::fabric(command, configuration),
        Command::Block(command) => block::block(command, configuration),
        Command::Lab(command) => lab::lab(command, &configuration()?),
        Command::Info(arguments) => information::show(arguments, &configuration()?),
        Command::Measure(command) => measure::measure(command, configuration),
        Command::Cp(arguments) => Ok(cp::cp(arguments, &configuration()?)),
        Command::Transfer(command) => transfer::transfer(command, configuration),
        Command::Perf(arguments) => perf::perf(arguments, &configuration()?),
        #[cfg(feature = "simulator")]
        Command::Sim(command) => sim::sim(command),
        Command::Kv(command) => kv::kv(command, configuration),
        Command::Demo(arguments) => demo::demo(arguments),
        Command::Fi(command) => fi::fi(command),
        Command::Config(command) => config::config(command, invocation.flags.clone()),
        Command::Install { prefix, root } => shmem::install(prefix, root.as_deref()),
        Command::Man { directory } => {
            for page in manual::pages(directory)? {
                show_line!("{}", page.display());
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Completions { shell } => {
            show!("{}", manual::completion(*shell));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Logs to standard error what `WEFT_LOG` asks for, warnings by default.
fn start_log() {
    let wanted = std::env::var("WEFT_LOG").unwrap_or_default();
    let filter = match tracing_subscriber::EnvFilter::try_new(&wanted) {
        Ok(filter) if !wanted.trim().is_empty() => filter,
        Ok(_) => tracing_subscriber::EnvFilter::new("warn"),
        Err(error) => {
            eprintln!("weft: WEFT_LOG={wanted:?} is not valid: {error}; logging warnings");
            tracing_subscriber::EnvFilter::new("warn")
        }
    };
    // Colours are for people: a file or a journal gets none.
    let is_for_people = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(is_for_people)
        .with_writer(std::io::stderr)
        .init();
}
