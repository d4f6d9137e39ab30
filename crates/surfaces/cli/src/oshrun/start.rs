//! The last step before a program of a job runs: this process becomes it.
//!
//! The kernel shall end the program when its proxy dies, whatever kills that. This is a property of
//! the process which survives exec, and only the process itself can ask for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::START;
use crate::run::{as_shell_script, why_refused};

/// Exit status of a program that cannot be executed, as shells have it.
const EXIT_NOT_EXECUTABLE: u8 = 126;
/// `errno` of exec for a file that is neither ELF nor a script with `#!`.
const ENOEXEC: i32 = 8;

/// How a process differs from its proxy.
#[derive(Clone, Debug)]
pub struct Manner {
    /// Its processors; `None` for all.
    pub processors: Option<Vec<u16>>,
    /// How many descriptors it may have open; `None` for no limit.
    pub descriptors: Option<u64>,
}

/// The words by which this program becomes `path` as `name`.
pub fn words(manner: &Manner, path: &Path, name: &OsStr) -> Vec<OsString> {
    let list = manner.processors.iter().flatten().map(u16::to_string).collect::<Vec<_>>();
    vec![
        "oshrun".into(),
        START.into(),
        std::process::id().to_string().into(),
        list.join(",").into(),
        manner.descriptors.map(|limit| limit.to_string()).unwrap_or_default().into(),
        path.into(),
        name.into(),
    ]
}

/// Becomes the program that the words of [`words`] and its arguments name.
pub fn become_process(rest: &[OsString]) -> ExitCode {
    let [parent, processors, descriptors, path, name, arguments @ ..] = rest else {
        eprintln!("weft: oshrun {START} is for weft itself");
        return ExitCode::from(EXIT_NOT_EXECUTABLE);
    };
    let path = Path::new(path);
    let bound = bind(&processors.to_string_lossy());
    let limited = limit_descriptors(descriptors.to_str().and_then(|limit| limit.parse().ok()));
    let asked = set_parent_process_death_signal(Some(Signal::KILL));
    if let Err(errno) = bound.and(limited.map(drop)).and(asked) {
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
    eprintln!("weft: {}", why_refused(path, &error));
    ExitCode::from(EXIT_NOT_EXECUTABLE)
}

/// Sets how many descriptors this process may have open, as far as the hard limit allows; `None`
/// asks for all of that. Returns the former limit.
pub fn limit_descriptors(limit: Option<u64>) -> rustix::io::Result<Option<u64>> {
    let former = getrlimit(Resource::Nofile);
    let current = limit.or(former.maximum);
    setrlimit(Resource::Nofile, Rlimit { current, maximum: former.maximum })?;
    Ok(former.current)
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
