//! The ways to hosts: starting a proxy there, and the stream to it.

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::system::uname;

use super::PROXY;
use crate::arguments::{Launcher, OshrunArguments};
use crate::shell::as_word;

/// A proxy has this time to end after its stream was closed.
const END_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The program that reaches other hosts.
const SSH: &str = "ssh";

/// A started proxy, or the ssh to it.
#[derive(Debug)]
pub struct Way {
    /// The stream to it, which does not wait.
    pub stream: UnixStream,
    child: Child,
}

impl Way {
    /// Starts a proxy on a host.
    pub fn open(host: &str, arguments: &OshrunArguments) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("this program's own file cannot be found")?;
        let is_here = arguments.launcher == Launcher::Fork || is_this_host(host);
        let mut command = if is_here && arguments.launcher_exec.is_none() {
            let mut command = Command::new(&own);
            command.args(["oshrun", PROXY]);
            command
        } else {
            through_shell(host, &own, arguments.launcher_exec.as_deref())
        };
        let (ours, theirs) = UnixStream::pair().context("no socket can be made")?;
        ours.set_nonblocking(true)?;
        let input = theirs.try_clone()?;
        // A terminal's keys signal the launcher alone, which tells the proxies.
        let child = command
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(input)))
            .stdout(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .process_group(0)
            .spawn()
            .with_context(|| {
                let name = command.get_program().to_string_lossy().into_owned();
                format!("{name} cannot be started; -launcher-exec names another program")
            })?;
        Ok(Self { stream: ours, child })
    }

    /// How the proxy ended, for a message; waits a little for it.
    pub fn ending(&mut self) -> String {
        match self.ended_within(END_WITHIN) {
            Some(status) => format!("its proxy ended with {status}"),
            None => "its proxy closed the connection".to_owned(),
        }
    }

    /// Closes the stream and waits for the end of the proxy; kills it if that takes too long.
    pub fn close(mut self) {
        // Fails only when the proxy has closed it.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if self.ended_within(END_WITHIN).is_none() {
            // Fails only when it ended meanwhile.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    fn ended_within(&mut self, within: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + within;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

/// ssh, or a program like it: it gets the host and a command for a shell there.
fn through_shell(host: &str, own: &Path, program: Option<&Path>) -> Command {
    let mut command = Command::new(program.unwrap_or(Path::new(SSH)));
    if program.is_none() {
        command.arg("-x");
    }
    command.arg(host).arg(format!("exec {} oshrun {PROXY}", as_word(&own.to_string_lossy())));
    command
}

fn is_this_host(host: &str) -> bool {
    let own = uname();
    let own = own.nodename().to_string_lossy();
    let short = own.split('.').next().unwrap_or(&own);
    matches!(host, "localhost" | "127.0.0.1" | "::1") || host == own || host == short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_gets_the_path_as_one_word() {
        let command = through_shell("n1", Path::new("/a b/it's"), None);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        assert_eq!(words, ["-x", "n1", r"exec '/a b/it'\''s' oshrun --proxy"]);
    }

    #[test]
    fn this_host_has_several_names() {
        assert!(is_this_host("localhost"));
        assert!(is_this_host(&uname().nodename().to_string_lossy()));
        assert!(!is_this_host("n1.invalid"));
    }
}
