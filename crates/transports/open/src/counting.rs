//! Counters of a server or a tool of weft that the node daemon shows.
//!
//! They are a page of shared memory, as programs under `weft run` have one ([`weft_wire::stats`]).
//! The daemon gets it with a greeting and reads it when somebody looks. Without a daemon the page
//! has no reader; one that comes later gets all that was counted.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use weft_channel::Channel;
use weft_memory::{CopyMode, Segment, SegmentError};
use weft_wire::control::Control;
use weft_wire::stats::{self, Stats, Work};

/// The counters of this process.
#[derive(Debug)]
pub struct Counting {
    page: Segment,
    file: OwnedFd,
    socket: PathBuf,
    name: String,
    line: Option<Channel>,
}

impl Counting {
    /// Counters for the daemon at `socket`, under the name of a program. [`Self::look`] shows them
    /// to it.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(socket: &Path, name: &str) -> Result<Self, SegmentError> {
        let (page, file) = Segment::create("weft-counters", stats::BYTES)?;
        page.write(0, &Stats::header(), CopyMode::Plain);
        Ok(Self { page, file, socket: socket.to_owned(), name: name.to_owned(), line: None })
    }

    /// Sets a total, which never goes back.
    pub fn set(&self, what: Work, total: u64) {
        self.page.word64(stats::place(0, what.index())).fetch_max(total, Ordering::Relaxed);
    }

    /// Shows the page to the daemon, if there is one that does not have it. Never waits for it.
    pub fn look(&mut self) {
        let is_gone = |line: &Channel| loop {
            // The daemon answers the greeting, and may say more to programs; nothing concerns this.
            match line.receive() {
                Ok(Some(_)) => {}
                Err(Errno::AGAIN) => return false,
                Ok(None) | Err(_) => return true,
            }
        };
        if self.line.as_ref().is_some_and(is_gone) {
            self.line = None;
        }
        if self.line.is_none()
            && let Ok(line) = Channel::connect_now(&self.socket)
        {
            let hello = Control::Hello { pid: std::process::id(), name: self.name.clone() };
            let sent = line.send(&hello.emit(), &[self.file.as_fd()]);
            self.line = sent.is_ok().then_some(line);
        }
    }
}
