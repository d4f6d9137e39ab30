//! Messages of the library on standard error. `WEFT_LOG` chooses the level; warnings are the
//! default.
//!
//! It has a path of its own: one `write` system call for each line, without the allocator or hooks.

use std::fmt::Write;
use std::sync::atomic::{AtomicU8, Ordering};

/// How much is logged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Nothing.
    Off = 0,
    /// Messages for the person who runs the program.
    Warn = 1,
    /// Messages for a developer.
    Debug = 2,
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Warn as u8);

/// Sets the level from the text of `WEFT_LOG`. The words are those of tracing filters.
pub fn set_level(filter: &str) {
    let is_verbose = ["debug", "trace"].iter().any(|word| filter.contains(word));
    let level = if is_verbose {
        Level::Debug
    } else if filter == "off" || filter == "error" {
        Level::Off
    } else {
        Level::Warn
    };
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// True when messages of `level` are logged.
pub fn enabled(level: Level) -> bool {
    LEVEL.load(Ordering::Relaxed) >= level as u8
}

/// Writes a line, with the process id, to standard error. At most 512 bytes are written. A TCP
/// connection as standard error gets none: its peer would take the line for data.
pub fn say(arguments: std::fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 512], length: 0 };
    let _ = write!(line, "weft[{}]: ", rustix::process::getpid().as_raw_nonzero());
    let _ = line.write_fmt(arguments);
    let _ = line.write_str("\n");
    // SAFETY: descriptor 2 is the program's standard error; if it is closed the call fails.
    let stderr = unsafe { std::os::fd::BorrowedFd::borrow_raw(2) };
    let protocol = rustix::net::sockopt::socket_protocol(stderr);
    if protocol != Ok(Some(rustix::net::ipproto::TCP)) {
        let _ = rustix::io::write(stderr, &line.bytes[..line.length]);
    }
}

struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = self.bytes.len() - self.length;
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

/// Logs a message for the person who runs the program.
macro_rules! warn_user {
    ($($argument:tt)*) => {
        if $crate::log::enabled($crate::log::Level::Warn) {
            $crate::log::say(format_args!($($argument)*));
        }
    };
}
pub(crate) use warn_user;

/// Logs a message for a developer.
macro_rules! debug {
    ($($argument:tt)*) => {
        if $crate::log::enabled($crate::log::Level::Debug) {
            $crate::log::say(format_args!($($argument)*));
        }
    };
}
pub(crate) use debug;
