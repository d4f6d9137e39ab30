//! `weft run`: finds program, preload library and daemon, then becomes the program.
//!
//! Always true: a program that can run without weft runs under it. A thing that is missing on
//! weft's side costs speed, not the program; only what the user asked for by name and cannot be
//! had (the program, the library, a value of an option) is an error.

pub mod preload;
pub mod statistics;
mod supervise;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use weft_options::BetweenHosts;
use weft_options::runtime_path::ControlSocket;

use crate::arguments::RunArguments;
use crate::configuration::{Configuration, hand_on};
use crate::daemon;
use statistics::Block;
pub use supervise::in_foreground;
use weft_program::{self as program, Linkage, Lookup};

/// Exit status when the program is there but cannot be executed, as shells have it.
const EXIT_NOT_EXECUTABLE: u8 = 126;
/// Exit status when there is no such program, as shells have it.
const EXIT_NOT_FOUND: u8 = 127;
/// `errno` of exec for a file that is neither ELF nor a script with `#!`.
const ENOEXEC: i32 = 8;

/// `weft run`. Returns only with `--stats`, or when the program could not be executed.
pub fn run(arguments: &RunArguments, configuration: &Configuration) -> anyhow::Result<ExitCode> {
    let (name, rest) = arguments.command.split_first().context("no program was given")?;
    let path = match program::find(name, std::env::var_os("PATH").as_deref()) {
        Lookup::Found(path) => path,
        Lookup::NotExecutable(path) => {
            eprintln!(
                "weft: {} cannot be executed; check its permissions (chmod +x) or name another",
                path.display()
            );
            return Ok(ExitCode::from(EXIT_NOT_EXECUTABLE));
        }
        Lookup::NotFound => {
            eprintln!("weft: {}", program::not_found(name));
            return Ok(ExitCode::from(EXIT_NOT_FOUND));
        }
    };
    let socket = configuration.control_socket(arguments.node.node.as_deref())?;
    let library = preload::find()?;
    let linkage = program::linkage(&path);
    note_linkage(&path, &linkage, arguments.stats);
    ensure_daemon(&socket, configuration);

    let mut command = Command::new(&path);
    command.arg0(name).args(rest);
    prepare(&mut command, &socket, configuration);
    if !linkage.is_foreign() {
        let existing = std::env::var_os("LD_PRELOAD");
        command.env("LD_PRELOAD", preload::list(&library, existing.as_deref()));
    }
    if arguments.stats {
        let block = Block::new()?;
        command.env("WEFT_STATS", block.path());
        let ended = supervised(command, &path, rest, &block);
        if configuration.options.socket_between_hosts() != BetweenHosts::Never {
            eprint!("{}", other_hosts(&socket, leaves_choice(configuration)));
        }
        return Ok(ended);
    }
    let error = command.exec();
    if error.raw_os_error() == Some(ENOEXEC) {
        let error = as_shell_script(&command, &path, rest).exec();
        return Ok(refused(&path, &error));
    }
    Ok(refused(&path, &error))
}

/// The variables of the program that are about weft.
fn prepare(command: &mut Command, socket: &ControlSocket, configuration: &Configuration) {
    command.env("WEFT_SOCKET", &socket.path).env("WEFT_NODE", &socket.node);
    hand_on(&configuration.options, command);
    if leaves_choice(configuration)
        && !weftd::client::any_over_fabric(&socket.path).unwrap_or(false)
    {
        // Then the program pays nothing for the choice.
        command.env("WEFT_SOCKET_BETWEEN_HOSTS", "never");
    }
    // The preload library would warn of these again, in each process of the program.
    command.env("WEFT_WARNED", configuration.unknown_variables.join(" "));
}

/// Whether weft chooses the way to other hosts.
fn leaves_choice(configuration: &Configuration) -> bool {
    configuration.options.socket_between_hosts() == BetweenHosts::Auto
}

/// Other hosts, as the daemon knows them: those to which no data go, and the ways to all if weft
/// chooses. Nothing without a daemon.
fn other_hosts(socket: &ControlSocket, with_ways: bool) -> String {
    let status = weftd::client::status(&socket.path).ok();
    let nodes = status.and_then(|status| status.fabric).map_or_else(Vec::new, |it| it.nodes);
    let mut text = String::new();
    for node in nodes {
        let Some(number) = node.number else { continue };
        if node.state == "unreachable" {
            text += &format!("node {number} is unreachable: {}\n", node.reason);
        }
        if let Some(way) = node.way.filter(|_| with_ways) {
            text += &format!("way to node {number}: {}\n", way.text());
        }
    }
    text
}

/// Runs the program as a child, then prints what went where.
fn supervised(mut command: Command, path: &Path, rest: &[OsString], block: &Block) -> ExitCode {
    let mut ended = supervise::run(&mut command);
    if ended.as_ref().is_err_and(|error| error.raw_os_error() == Some(ENOEXEC)) {
        ended = supervise::run(&mut as_shell_script(&command, path, rest));
    }
    match ended {
        Ok(code) => {
            match block.read() {
                Ok(stats) => eprint!("{}", statistics::render(&stats)),
                Err(error) => eprintln!("weft: the counters cannot be read: {error:#}"),
            }
            ExitCode::from(code)
        }
        Err(error) => refused(path, &error),
    }
}

/// A file that the kernel does not know is read by a shell, as shells do.
pub fn as_shell_script(command: &Command, path: &Path, rest: &[OsString]) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.arg(path).args(rest);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

fn refused(path: &Path, error: &std::io::Error) -> ExitCode {
    eprintln!("weft: {}", why_refused(path, error));
    let is_missing = error.kind() == std::io::ErrorKind::NotFound;
    ExitCode::from(if is_missing { EXIT_NOT_FOUND } else { EXIT_NOT_EXECUTABLE })
}

/// Why a program cannot be executed.
pub fn why_refused(path: &Path, error: &std::io::Error) -> String {
    let is_missing = error.kind() == std::io::ErrorKind::NotFound;
    let interpreter = is_missing.then(|| program::missing_interpreter(path)).flatten();
    let reason = interpreter.unwrap_or_else(|| error.to_string());
    format!("{} cannot be executed: {reason}", path.display())
}

/// Says that a program cannot be preloaded, to those who want to know.
fn note_linkage(path: &Path, linkage: &Linkage, stats: bool) {
    let Some(reason) = linkage.obstacle() else { return };
    let text = format!("{} {reason}: it cannot be preloaded and stays on tcp", path.display());
    if stats {
        eprintln!("weft: {text}");
    } else {
        tracing::debug!("{text}");
    }
}

/// Starts a daemon when none answers; without one the program runs on TCP.
fn ensure_daemon(socket: &ControlSocket, configuration: &Configuration) {
    if !configuration.options.socket_enable() {
        return;
    }
    let ready = match weftd::client::look(&socket.path) {
        Ok(()) => Ok(()),
        // Starting one there would serve nobody, or be somebody else's trap.
        Err(error) if error.is_distrust() => Err(anyhow::anyhow!(daemon::absence(socket))),
        Err(_) => daemon::start(socket, &configuration.options, &[], false),
    };
    if let Err(error) = ready {
        eprintln!("weft: warning: {error:#}; the program runs on plain tcp");
    }
}

/// True when `text` has a byte that separates entries of `LD_PRELOAD`.
fn has_separator(text: &OsStr) -> bool {
    text.as_encoded_bytes().iter().any(|byte| byte.is_ascii_whitespace() || *byte == b':')
}
