//! Standard output of the command.
//!
//! A reader that goes away, such as `head`, ends the command without a message, as SIGPIPE ends
//! other programs. The standard library's macros would panic.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::exit;

/// Exit status of a program that SIGPIPE ended, as shells have it.
const EXIT_NO_READER: i32 = 128 + 13;

/// Writes to standard output. Ends the command when that fails.
pub fn write(text: fmt::Arguments<'_>) {
    let mut output = io::stdout().lock();
    if let Err(error) = output.write_fmt(text).and_then(|()| output.flush()) {
        fail(&error);
    }
}

/// Ends the command, whose standard output cannot be written.
pub fn fail(error: &io::Error) -> ! {
    if error.kind() == ErrorKind::BrokenPipe {
        exit(EXIT_NO_READER);
    }
    eprintln!("weft: standard output cannot be written: {error}");
    exit(1);
}

/// Writes formatted text to standard output.
macro_rules! show {
    ($($argument:tt)*) => { $crate::output::write(format_args!($($argument)*)) };
}
pub(crate) use show;

/// Writes formatted text and the end of the line to standard output.
macro_rules! show_line {
    ($($argument:tt)*) => { $crate::output::show!("{}\n", format_args!($($argument)*)) };
}
pub(crate) use show_line;
