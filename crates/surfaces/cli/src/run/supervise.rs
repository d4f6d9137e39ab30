//! Runs a child to its end, passes signals on to it, and returns its status.

use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::thread;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

/// The signals by which users and service managers end a program.
const PASSED_ON: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// Runs the command to its end and returns its status as a shell would.
///
/// Signals are caught from before the start of the child, so that none ends this process alone.
/// None is passed on after the child was reaped: its number may then be that of another process.
///
/// # Errors
/// When the child cannot be started, or not be waited for.
pub fn run(command: &mut Command) -> io::Result<u8> {
    let mut signals = Signals::new(PASSED_ON)?;
    let handle = signals.handle();
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    let forwarder = thread::Builder::new().name("weft-signals".into()).spawn(move || {
        for signal in signals.forever() {
            pass_on(pid, signal);
        }
    })?;
    let ended = wait_without_reaping(pid);
    handle.close();
    // A panic there has been printed already; the child's status matters more.
    drop(forwarder.join());
    ended?;
    child.wait().map(exit_code)
}

/// Waits for the end of the child, which stays a zombie and keeps its number.
fn wait_without_reaping(pid: Pid) -> io::Result<()> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        match rustix::process::waitid(WaitId::Pid(pid), options) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The status as a shell has it: the program's own, or 128 and the signal.
fn exit_code(status: ExitStatus) -> u8 {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 255,
    };
    u8::try_from(code & 0xff).unwrap_or(255)
}

/// Passes a signal on, unless the terminal sent it: then the child has it already.
fn pass_on(pid: Pid, signal: i32) {
    let from_terminal = matches!(signal, SIGINT | SIGQUIT) && in_foreground();
    if !from_terminal && let Some(signal) = Signal::from_named_raw(signal) {
        // Fails only when the child ended meanwhile.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// True when this process group owns a terminal, whose keys signal all of the group.
pub fn in_foreground() -> bool {
    File::open("/dev/tty").is_ok_and(|terminal| {
        rustix::termios::tcgetpgrp(&terminal).is_ok_and(|group| group == rustix::process::getpgrp())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn the_status_of_the_child_is_returned() {
        assert_eq!(run(&mut shell("exit 7")).expect("ran"), 7);
        assert_eq!(run(&mut shell("kill -9 $$")).expect("ran"), 128 + 9);
        assert!(run(&mut Command::new("/nonexistent")).is_err());
    }
}
