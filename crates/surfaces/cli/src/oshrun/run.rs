//! The launcher: its proxies, its signals, and the standard streams of the job.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use weft_launch::frame::{Frames, PIECE_BYTES_MAX, Stream, ToProxy, encode};
use weft_launch::{Action, Launch, Layout};

use super::outlet::Outlet;
use super::ways::Way;
use super::{now, wait};
use crate::arguments::OshrunArguments;
use crate::run::in_foreground;

const SIGNALS: [i32; 8] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT];
/// The signal that stops processes and cannot be caught.
const SIGSTOP: i32 = 19;
/// Exit code when nobody reads the output any more, as SIGPIPE has it.
const CODE_NO_READER: u8 = 128 + 13;
/// Exit code when weft itself failed.
const CODE_WEFT: u8 = 125;

/// A host's proxy.
struct Link {
    way: Way,
    frames: Frames,
    outlet: Outlet,
    is_open: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ready {
    Signal,
    Input,
    Outlet(Stream),
    Proxy(usize),
    ProxyTakes(usize),
}

/// A driven launcher.
struct Driver<'a> {
    launch: Launch,
    links: Vec<Link>,
    signals: UnixStream,
    output: Outlet,
    errors: Outlet,
    files: BTreeMap<(u32, Stream), File>,
    arguments: &'a OshrunArguments,
    layout: &'a Layout,
    code: Option<u8>,
}

/// Runs a job to its end.
pub fn run(layout: &Layout, programs: &[OshrunArguments]) -> anyhow::Result<ExitCode> {
    let arguments = programs.first().context("no program was given")?;
    // Signals are caught from before the start of any process, so that none is left behind.
    let signals = caught_signals()?;
    let links = layout.hosts.iter().map(|host| Link::open(host, arguments));
    let mut driver = Driver {
        links: links.collect::<anyhow::Result<_>>()?,
        launch: Launch::new(layout.clone(), now()),
        signals,
        output: Outlet::default(),
        errors: Outlet::default(),
        files: BTreeMap::new(),
        arguments,
        layout,
        code: None,
    };
    let code = loop {
        driver.act();
        if let Some(code) = driver.code
            && driver.output.is_empty()
            && driver.errors.is_empty()
        {
            break code;
        }
        driver.step()?;
    };
    driver.links.into_iter().for_each(|link| link.way.close());
    Ok(ExitCode::from(code))
}

/// A stream of the numbers of signals that were caught.
fn caught_signals() -> anyhow::Result<UnixStream> {
    let (ours, mut theirs) = UnixStream::pair().context("no socket can be made")?;
    ours.set_nonblocking(true)?;
    let mut signals = Signals::new(SIGNALS).context("signals cannot be caught")?;
    thread::Builder::new().name("weft-signals".into()).spawn(move || {
        for signal in signals.forever() {
            // Fails only at the end of the job.
            let _ = theirs.write_all(&[u8::try_from(signal).unwrap_or(0)]);
        }
    })?;
    Ok(ours)
}

impl Link {
    fn open(host: &str, arguments: &OshrunArguments) -> anyhow::Result<Self> {
        let way =
            Way::open(host, arguments).with_context(|| format!("host {host} cannot be reached"))?;
        Ok(Self { way, frames: Frames::default(), outlet: Outlet::default(), is_open: true })
    }

    fn flush(&mut self) {
        if self.outlet.drain(&self.way.stream).is_err() {
            self.outlet.clear();
        }
    }
}

impl Driver<'_> {
    /// Does all that is to be done.
    fn act(&mut self) {
        while let Some(action) = self.launch.next_action() {
            match action {
                Action::Send { host, message } => self.send(host, &message),
                Action::Write { stream: Stream::Output, bytes } => self.output.push(&bytes),
                Action::Write { stream: Stream::Error, bytes } => self.errors.push(&bytes),
                Action::Keep { rank, stream, bytes } => self.keep(rank, stream, &bytes),
                Action::Say(text) => self.errors.push(format!("weft: {text}\n").as_bytes()),
                Action::Finish(code) => self.code = Some(code),
            }
        }
        self.links.iter_mut().for_each(Link::flush);
    }

    fn send(&mut self, host: u32, message: &ToProxy) {
        let link = usize::try_from(host).ok().and_then(|host| self.links.get_mut(host));
        if let Some(link) = link.filter(|link| link.is_open) {
            link.outlet.push(&encode(message));
        }
    }

    /// Waits for the next thing, and takes it.
    fn step(&mut self) -> anyhow::Result<()> {
        for ready in self.wait()? {
            match ready {
                Ready::Signal => self.take_signals(),
                Ready::Input => self.take_input(),
                Ready::Outlet(stream) => self.write(stream),
                Ready::Proxy(index) => self.hear(index),
                Ready::ProxyTakes(index) => {
                    self.links.get_mut(index).into_iter().for_each(Link::flush);
                }
            }
        }
        self.launch.hold_output(self.output.is_full() || self.errors.is_full());
        self.launch.tick(now());
        Ok(())
    }

    fn wait(&self) -> anyhow::Result<Vec<Ready>> {
        let mut meanings: Vec<(Ready, BorrowedFd<'_>, PollFlags)> =
            vec![(Ready::Signal, self.signals.as_fd(), PollFlags::IN)];
        let input = rustix::stdio::stdin();
        if self.launch.wants_input() && may_read_input() {
            meanings.push((Ready::Input, input, PollFlags::IN));
        }
        let outlets = [
            (Stream::Output, &self.output, rustix::stdio::stdout()),
            (Stream::Error, &self.errors, rustix::stdio::stderr()),
        ];
        for (stream, outlet, descriptor) in outlets {
            if !outlet.is_empty() {
                meanings.push((Ready::Outlet(stream), descriptor, PollFlags::OUT));
            }
        }
        for (index, link) in self.links.iter().enumerate().filter(|(_, link)| link.is_open) {
            meanings.push((Ready::Proxy(index), link.way.stream.as_fd(), PollFlags::IN));
            if !link.outlet.is_empty() {
                let takes = Ready::ProxyTakes(index);
                meanings.push((takes, link.way.stream.as_fd(), PollFlags::OUT));
            }
        }
        let mut polled: Vec<PollFd<'_>> = meanings
            .iter()
            .map(|(_, descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags))
            .collect();
        wait(&mut polled, self.launch.deadline())?;
        let events = polled.iter().map(|one| !one.revents().is_empty());
        let ready = meanings.iter().zip(events).filter(|(_, is_ready)| *is_ready);
        Ok(ready.map(|((ready, _, _), _)| *ready).collect())
    }

    fn take_signals(&mut self) {
        let mut numbers = [0; 16];
        let length = self.signals.read(&mut numbers).unwrap_or(0);
        for number in numbers.iter().take(length).map(|number| i32::from(*number)) {
            if self.code.is_some() {
                // The job is over, and its output waits for a reader that does not come.
                self.output.clear();
                self.errors.clear();
            } else if number == SIGTSTP {
                self.stop();
            } else {
                self.launch.signal(number, now());
            }
        }
    }

    /// Stops the processes, then itself. SIGCONT, which ends that, is passed on like others.
    fn stop(&mut self) {
        self.launch.signal(SIGSTOP, now());
        self.act();
        // Fails never for the own process.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
    }

    fn take_input(&mut self) {
        let mut buffer = vec![0; PIECE_BYTES_MAX];
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Ok(length) => self.launch.input(buffer.get(..length).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.launch.input(&[]),
        }
    }

    fn write(&mut self, stream: Stream) {
        let (outlet, written) = match stream {
            Stream::Output => {
                let written = self.output.write(rustix::stdio::stdout());
                (&mut self.output, written)
            }
            Stream::Error => {
                let written = self.errors.write(rustix::stdio::stderr());
                (&mut self.errors, written)
            }
        };
        let Err(errno) = written else { return };
        outlet.clear();
        match (stream, errno) {
            (Stream::Output, Errno::PIPE) => self.launch.stop(CODE_NO_READER, None, now()),
            (Stream::Output, errno) => {
                let text = format!("standard output cannot be written: {errno}");
                self.launch.stop(1, Some(text), now());
            }
            // There is nowhere to tell it.
            (Stream::Error, _) => {}
        }
    }

    fn hear(&mut self, index: usize) {
        let Some(link) = self.links.get_mut(index) else { return };
        let host = u32::try_from(index).unwrap_or(u32::MAX);
        let mut buffer = vec![0; PIECE_BYTES_MAX];
        let lost = match link.way.stream.read(&mut buffer) {
            Ok(0) => Some(None),
            Ok(length) => {
                link.frames.push(buffer.get(..length).unwrap_or_default());
                loop {
                    match link.frames.next_message() {
                        Ok(Some(message)) => self.launch.hear(host, message, now()),
                        Ok(None) => break None,
                        Err(error) => break Some(Some(format!("it sent {error}"))),
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            // It ended without having read all.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(None),
            Err(error) => Some(Some(format!("the connection to it broke: {error}"))),
        };
        if let Some(reason) = lost {
            link.is_open = false;
            let reason = reason.unwrap_or_else(|| link.way.ending());
            self.launch.lose(host, &reason, now());
        }
    }

    /// Writes output of a process to its file.
    fn keep(&mut self, rank: u32, stream: Stream, bytes: &[u8]) {
        let pattern = match stream {
            Stream::Output => self.arguments.outfile_pattern.as_deref(),
            Stream::Error => self.arguments.errfile_pattern.as_deref(),
        };
        let name = file_name(pattern.unwrap_or_default(), rank, self.host_of(rank));
        let file = match self.files.entry((rank, stream)) {
            std::collections::btree_map::Entry::Occupied(file) => Ok(file.into_mut()),
            std::collections::btree_map::Entry::Vacant(place) => {
                File::create(&name).map(|file| place.insert(file))
            }
        };
        if let Err(error) = file.and_then(|file| file.write_all(bytes)) {
            let text = format!("output of PE {rank} cannot be written to {name}: {error}");
            self.launch.stop(CODE_WEFT, Some(text), now());
        }
    }

    fn host_of(&self, rank: u32) -> &str {
        let member = usize::try_from(rank).ok().and_then(|rank| self.layout.members.get(rank));
        let host = member.and_then(|member| usize::try_from(member.host).ok());
        host.and_then(|host| self.layout.hosts.get(host)).map_or("", String::as_str)
    }
}

/// The name of an output file: `%r` is the rank, `%h` the host, `%%` a percent sign.
fn file_name(pattern: &str, rank: u32, host: &str) -> String {
    let mut name = String::new();
    let mut rest = pattern.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            name.push(character);
            continue;
        }
        match rest.next() {
            Some('r') => name.push_str(&rank.to_string()),
            Some('h') => name.push_str(host),
            Some('%') | None => name.push('%'),
            Some(other) => name.extend(['%', other]),
        }
    }
    name
}

/// A terminal of which this process is in the background must not be read: that would stop it.
fn may_read_input() -> bool {
    !rustix::termios::isatty(rustix::stdio::stdin()) || in_foreground()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_have_rank_and_host() {
        assert_eq!(file_name("out.%r.%h%%x", 3, "n1"), "out.3.n1%x");
        assert_eq!(file_name("%q%", 3, "n1"), "%q%");
    }
}
