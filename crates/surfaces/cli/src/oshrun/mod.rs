//! `weft oshrun`: runs programs as one job of several processes.
//!
//! The launcher starts a proxy on each host, which starts the processes there and ends them when
//! the launcher is gone. On this host the proxy is this program again, elsewhere ssh starts it.
//! The rules are those of `weft-launch`; the modules here own processes, descriptors and clocks.
//!
//! Always true: when the launcher or a proxy is killed, the kernel or the other one ends all
//! processes of the job.

mod child;
mod counts;
mod layout;
mod outlet;
mod processors;
mod proxy;
mod run;
mod start;
mod ways;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::arguments::OshrunArguments;

/// The word behind `oshrun` by which this program is a proxy.
const PROXY: &str = "--proxy";
/// The word behind `oshrun` by which this program becomes a process of a job.
const START: &str = "--start";

/// `weft oshrun`.
pub fn oshrun(arguments: &OshrunArguments) -> anyhow::Result<ExitCode> {
    let programs = arguments.programs().unwrap_or_else(|error| error.exit());
    run::run(&layout::layout(&programs)?, &programs)
}

/// Plays a part of a job that this program gave itself, if the words of the command line say so.
pub fn part(words: &[OsString]) -> Option<ExitCode> {
    match words {
        [_, command, part, rest @ ..] if command == "oshrun" => match part.to_str() {
            Some(PROXY) if rest.is_empty() => Some(proxy::serve()),
            Some(START) => Some(start::become_process(rest)),
            _ => None,
        },
        _ => None,
    }
}

/// Monotonic time since an unspecified moment.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// Waits for descriptors, until a time if there is one.
fn wait(descriptors: &mut [PollFd<'_>], until: Option<Duration>) -> anyhow::Result<()> {
    let left = until.map(|until| until.saturating_sub(now()));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(descriptors, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(anyhow::anyhow!("waiting for the processes failed: {errno}")),
    }
}

/// Bytes of a word, as the kernel has it.
fn bytes(word: &OsStr) -> Vec<u8> {
    word.as_encoded_bytes().to_vec()
}
