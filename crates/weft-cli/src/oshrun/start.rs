//! The last step before a program of a job runs: this process becomes it.
//!
//! The kernel shall end the program when its proxy dies, whatever kills that. This is a property of
//! the process which survives exec, and only the process itself can ask for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::START;
use crate::run::as_shell_script;

/// Exit status of a program that cannot be executed, as shells have it.
const EXIT_NOT_EXECUTABLE: u8 = 126;
/// `errno` of exec for a file that is neither ELF nor a script with `#!`.
const ENOEXEC: i32 = 8;

/// The words by which this program becomes `path` as `name`, bound to processors.
pub fn words(processors: Option<&[u16]>, path: &Path, name: &OsStr) -> Vec<OsString> {
    let list = processors.unwrap_or_default().iter().map(u16::to_string).collect::<Vec<_>>();
    vec![
        "oshrun".into(),
        START.into(),
        std::process::id().to_string().into(),
        list.join(",").into(),
        path.into(),
        name.into(),
    ]
}

/// Becomes the program that the words of [`words`] and its arguments name.
pub fn become_process(rest: &[OsString]) -> ExitCode {
    let [parent, processors, path, name, arguments @ ..] = rest else {
        eprintln!("weft: oshrun {START} is for weft itself");
        return ExitCode::from(EXIT_NOT_EXECUTABLE);
    };
    let path = Path::new(path);
    let bound = bind(&processors.to_string_lossy());
    let asked = set_parent_process_death_signal(Some(Signal::KILL));
    if let Err(errno) = bound.and(asked) {
        eprintln!("weft: {} cannot be prepared: {errno}; check -bind-to", path.display());
        return ExitCode::from(EXIT_NOT_EXECUTABLE);
    }
    // A proxy that died before the kernel was asked is not noticed by it.
    if getppid().map(|pid| Pid::as_raw(Some(pid)).to_string()) != parent.to_str().map(str::to_owned)
    {
        return ExitCode::FAILURE;
    }
    let mut command = Command::new(path);
    let mut error = command.arg0(name).args(arguments).exec();
    if error.raw_os_error() == Some(ENOEXEC) {
        error = as_shell_script(&command, path, arguments).exec();
    }
    eprintln!("weft: {} cannot be executed: {error}", path.display());
    ExitCode::from(EXIT_NOT_EXECUTABLE)
}

fn bind(processors: &str) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    let mut is_bound = false;
    for number in processors.split(',').filter_map(|number| number.parse().ok()) {
        if number < CpuSet::MAX_CPU {
            set.set(number);
            is_bound = true;
        }
    }
    if is_bound { sched_setaffinity(None, &set) } else { Ok(()) }
}
