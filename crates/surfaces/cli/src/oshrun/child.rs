//! One process of a job with its descriptors, as its proxy has it.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use weft_launch::frame::{Ending, Process};
use weft_program::{Lookup, find, not_found};

use super::outlet::Outlet;
use super::{processors, start};
use crate::output::limit_of_number;

/// Exit codes of shells for programs that cannot be started.
const CODE_NOT_EXECUTABLE: u8 = 126;
const CODE_NOT_FOUND: u8 = 127;
/// Variables that say where a host has its daemon, and which host it is: those of the launcher's
/// host would mislead a process of another one.
const OF_HOST: [&str; 3] = ["WEFT_SOCKET", "WEFT_DAEMON_SOCKET", "WEFT_FABRIC_HOST"];

/// Why a process was not started: the exit code that shells have for it, and the reason.
pub type NotStarted = (u8, String);

/// A process of a job, which leads a process group.
#[derive(Debug)]
pub struct Running {
    /// Its rank.
    pub rank: u32,
    child: Child,
    group: Pid,
    /// Readable when it has ended.
    pub end: Option<OwnedFd>,
    /// Its outputs, until their end.
    pub output: Option<OwnedFd>,
    /// Standard error.
    pub errors: Option<OwnedFd>,
    /// Standard input of rank 0.
    pub input: Option<OwnedFd>,
    /// Input that it has not taken.
    pub waiting_input: Outlet,
    /// No input follows what waits.
    pub has_all_input: bool,
    /// The launcher's end of its PMI connection.
    pub pmi: Option<OwnedFd>,
    /// Answers that it has not taken.
    pub waiting_pmi: Outlet,
}

fn with_limit(error: &std::io::Error) -> String {
    format!("{error}{}", error.raw_os_error().map_or("", limit_of_number))
}

impl Running {
    /// Starts a process; `number` counts those of the host, `descriptors` is how many it may have
    /// open.
    ///
    /// # Errors
    /// [`NotStarted`].
    pub fn start(
        process: &Process,
        number: usize,
        descriptors: Option<u64>,
    ) -> Result<Self, NotStarted> {
        let program = OsStr::from_bytes(&process.program);
        let directory = Path::new(OsStr::from_bytes(&process.directory));
        if !directory.is_dir() {
            let shown = directory.display();
            let reason = format!("its directory {shown} is not there; -wdir names another");
            return Err((CODE_NOT_EXECUTABLE, reason));
        }
        let path = search(program, directory, process)?;
        let system = |errno: Errno| {
            (
                CODE_NOT_EXECUTABLE,
                format!("{errno}; a PE takes 5 descriptors of its proxy (ulimit -n)"),
            )
        };
        let (pmi, theirs) = pmi_sockets().map_err(system)?;
        let own = std::env::current_exe().map_err(|error| {
            (CODE_NOT_EXECUTABLE, format!("weft's own file cannot be found: {error}"))
        })?;
        let processors = processors::choose(&process.binding, number);
        let manner = start::Manner { processors, descriptors };
        let is_first = process.rank == 0;
        let mut command = Command::new(own);
        command
            .args(start::words(&manner, &path, program))
            .args(process.arguments.iter().map(|word| OsStr::from_bytes(word)))
            .env_clear()
            .envs(
                process
                    .variables
                    .iter()
                    .filter(|(name, _)| !OF_HOST.iter().any(|of| of.as_bytes() == name))
                    .map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value))),
            )
            .envs(OF_HOST.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .env("PMI_FD", theirs.as_raw_fd().to_string())
            .current_dir(directory)
            // The others keep a descriptor 0, which would be used for something else.
            .stdin(if is_first { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child =
            command.spawn().map_err(|error| (CODE_NOT_EXECUTABLE, with_limit(&error)))?;
        drop(theirs);
        let group = Pid::from_child(&child);
        let end = pidfd_open(group, PidfdFlags::empty()).map_err(system)?;
        let running = Self {
            rank: process.rank,
            end: Some(end),
            output: child.stdout.take().map(OwnedFd::from),
            errors: child.stderr.take().map(OwnedFd::from),
            input: child.stdin.take().map(OwnedFd::from),
            waiting_input: Outlet::default(),
            has_all_input: false,
            pmi: Some(pmi),
            waiting_pmi: Outlet::default(),
            child,
            group,
        };
        for pipe in [&running.output, &running.errors, &running.input].into_iter().flatten() {
            if let Err(errno) = fcntl_setfl(pipe, OFlags::NONBLOCK) {
                running.signal(9);
                return Err(system(errno));
            }
        }
        Ok(running)
    }

    /// Sends a signal to the process and what it started.
    pub fn signal(&self, number: i32) {
        if self.end.is_some()
            && let Some(signal) = Signal::from_named_raw(number)
        {
            // Fails only when nobody of the group is left.
            let _ = kill_process_group(self.group, signal);
        }
    }

    /// How the process ended, if it has. What it left running is killed first, while its number
    /// is still its own.
    pub fn reap(&mut self) -> Option<Ending> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        if !matches!(waitid(WaitId::Pid(self.group), options), Ok(Some(_))) {
            return None;
        }
        self.signal(9);
        self.end = None;
        Some(self.child.wait().map_or(Ending::Exit(u8::MAX), ending))
    }

    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes waiting input; returns how many bytes were taken, or `None` when the process reads
    /// no more.
    pub fn write_input(&mut self) -> Option<usize> {
        let input = self.input.as_ref()?;
        let written = self.waiting_input.write(input);
        if written.is_err() || (self.waiting_input.is_empty() && self.has_all_input) {
            self.input = None;
        }
        written.ok()
    }
}

/// Both ends of a PMI connection. The second one is inherited by what is started next.
fn pmi_sockets() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::empty();
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC)?;
    fcntl_setfl(&ours, OFlags::NONBLOCK)?;
    Ok((ours, theirs))
}

fn search(
    program: &OsStr,
    directory: &Path,
    process: &Process,
) -> Result<std::path::PathBuf, NotStarted> {
    let path = process.variables.iter().find(|(name, _)| name == b"PATH");
    let path = path.map(|(_, value)| OsString::from(OsStr::from_bytes(value)));
    let is_path = program.as_bytes().contains(&b'/');
    let wanted = if is_path { directory.join(program) } else { program.into() };
    match find(wanted.as_os_str(), path.as_deref()) {
        Lookup::Found(path) => Ok(path),
        Lookup::NotExecutable(path) => {
            let shown = path.display();
            let reason = format!("{shown} may not be executed; check its permissions (chmod +x)");
            Err((CODE_NOT_EXECUTABLE, reason))
        }
        Lookup::NotFound => Err((CODE_NOT_FOUND, not_found(program))),
    }
}

fn ending(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Exit(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
        (None, signal) => Ending::Signal {
            number: signal.and_then(|number| u8::try_from(number).ok()).unwrap_or(0),
            has_core: status.core_dumped(),
        },
    }
}
