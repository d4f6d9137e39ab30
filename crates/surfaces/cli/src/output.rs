//! Standard output of the command.
//!
//! A reader that goes away, such as `head`, ends the command without a message, as SIGPIPE ends
//! other programs. The standard library's macros would panic.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::exit;

use rustix::io::Errno;

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

/// The limit that an error is about, with how to raise it, behind the error.
pub fn limit_of(error: &anyhow::Error) -> &'static str {
    let number = |error: &(dyn std::error::Error + 'static)| {
        let of_call = error.downcast_ref::<Errno>().map(|errno| errno.raw_os_error());
        of_call.or_else(|| error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error))
    };
    error.chain().find_map(|error| number(error).map(limit_of_number)).unwrap_or("")
}

/// The same for the number of an error.
pub fn limit_of_number(errno: i32) -> &'static str {
    match Errno::from_raw_os_error(errno) {
        Errno::MFILE => "; raise the limit of open files (ulimit -n)",
        Errno::NFILE => "; raise the limit of open files of the machine (sysctl fs.file-max)",
        _ => "",
    }
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

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_limit_is_named_wherever_in_the_chain_it_is() {
        let of_library: io::Result<()> = Err(Errno::MFILE.into());
        let error = of_library.context("no socket").context("a host").expect_err("it is one");
        assert_eq!(limit_of(&error), "; raise the limit of open files (ulimit -n)");
        let of_call = Err::<(), _>(Errno::NFILE).context("poll").expect_err("it is one");
        assert!(limit_of(&of_call).contains("fs.file-max"));
        assert_eq!(limit_of(&anyhow::anyhow!("other")), "");
    }
}
