//! A proxy: starts the processes of one host, and passes on what they and the launcher say.
//!
//! Its standard input and output are the stream to the launcher.

use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use weft_launch::frame::{Frames, FromProxy, PIECE_BYTES_MAX, Stream, ToProxy, encode};
use weft_launch::{Proxy, Work};

use super::child::Running;
use super::counts::Counts;
use super::outlet::Outlet;
use super::{now, start, wait};

/// The launcher says what to start within this time.
const START_WITHIN: Duration = Duration::from_secs(60);

/// The sources that were found ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ready {
    Launcher,
    LauncherTakes,
    Output(usize, Stream),
    InputTakes(usize),
    Pmi(usize),
    PmiTakes(usize),
    End(usize),
}

/// The stream to the launcher.
struct Line {
    frames: Frames,
    outlet: Outlet,
    is_open: bool,
}

/// A driven proxy.
struct Driver {
    line: Line,
    proxy: Proxy,
    processes: Vec<Running>,
    /// How many descriptors a process may have open.
    descriptors: Option<u64>,
    counts: Arc<Counts>,
}

/// Serves a launcher until all processes have ended.
pub fn serve() -> ExitCode {
    match serve_launcher() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft: {error:#}{}", crate::output::limit_of(&error));
            ExitCode::FAILURE
        }
    }
}

fn serve_launcher() -> anyhow::Result<()> {
    for stream in [rustix::stdio::stdin(), rustix::stdio::stdout()] {
        fcntl_setfl(stream, OFlags::NONBLOCK).context("oshrun --proxy is for weft itself")?;
    }
    let mut line = Line { frames: Frames::default(), outlet: Outlet::default(), is_open: true };
    line.send(&FromProxy::Hello { version: env!("CARGO_PKG_VERSION").to_owned() });
    let Some(plan) = line.first(now() + START_WITHIN)? else { return Ok(()) };
    // Each process takes five of the proxy's descriptors, and gets the limit that the proxy had.
    let descriptors = start::limit_descriptors(None).context("limits cannot be set")?;
    let (counts, _shown) = Counts::shown(&plan);
    let proxy = Proxy::new(plan);
    let mut driver = Driver { line, proxy, processes: Vec::new(), descriptors, counts };
    // The launcher's next messages may have come with the first one.
    driver.hear();
    while !driver.work() {
        driver.step()?;
    }
    // The last messages; a launcher that reads no more is gone.
    let until = now() + START_WITHIN;
    while driver.line.is_open && !driver.line.outlet.is_empty() && now() < until {
        let out = rustix::stdio::stdout();
        wait(&mut [PollFd::new(&out, PollFlags::OUT)], Some(until))?;
        driver.line.flush();
    }
    Ok(())
}

impl Line {
    fn send(&mut self, message: &FromProxy) {
        if self.is_open {
            self.outlet.push(&encode(message));
        }
    }

    fn flush(&mut self) {
        if self.outlet.drain(rustix::stdio::stdout()).is_err() {
            self.is_open = false;
            self.outlet.clear();
        }
    }

    /// Reads what is there; false at the end of the stream.
    fn read(&mut self) -> bool {
        let mut buffer = vec![0; PIECE_BYTES_MAX];
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Ok(0) => self.is_open = false,
            Ok(length) => self.frames.push(buffer.get(..length).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.is_open = false,
        }
        self.is_open
    }

    /// The first message; `None` if the launcher goes before it.
    fn first(&mut self, until: Duration) -> anyhow::Result<Option<weft_launch::frame::Plan>> {
        loop {
            match self.frames.next_message()? {
                Some(ToProxy::Start(plan)) => return Ok(Some(plan)),
                Some(_) => bail!("the launcher began with another message than the start"),
                None if now() >= until => bail!("the launcher did not say what to start"),
                None => {}
            }
            self.flush();
            let input = rustix::stdio::stdin();
            wait(&mut [PollFd::new(&input, PollFlags::IN)], Some(until))?;
            if !self.read() {
                return Ok(None);
            }
        }
    }
}

impl Driver {
    /// Does all that is to be done; true when all is over.
    fn work(&mut self) -> bool {
        while let Some(work) = self.proxy.next_work() {
            match work {
                Work::Start(process) => {
                    let number = self.processes.len();
                    match Running::start(&process, number, self.descriptors) {
                        Ok(running) => {
                            self.counts.started(running.pid());
                            self.processes.push(running);
                        }
                        Err((code, reason)) => self.proxy.not_started(process.rank, code, reason),
                    }
                }
                Work::Send(message) => self.line.send(&message),
                Work::Signal { rank, number } => {
                    if let Some(process) = self.process(rank) {
                        process.signal(number);
                    }
                }
                Work::Pmi { rank, bytes } => {
                    if let Some(process) = self.process(rank).filter(|one| one.pmi.is_some()) {
                        process.waiting_pmi.push(&bytes);
                    }
                }
                Work::Input(bytes) => self.take_input(&bytes),
                Work::CloseOutputs { rank } => {
                    if let Some(process) = self.process(rank) {
                        (process.output, process.errors) = (None, None);
                    }
                }
                Work::Finish => return true,
            }
        }
        false
    }

    fn process(&mut self, rank: u32) -> Option<&mut Running> {
        self.processes.iter_mut().find(|process| process.rank == rank)
    }

    fn take_input(&mut self, bytes: &[u8]) {
        let Some(process) = self.process(0).filter(|process| process.input.is_some()) else {
            return;
        };
        process.waiting_input.push(bytes);
        process.has_all_input = process.has_all_input || bytes.is_empty();
        if process.has_all_input && process.waiting_input.is_empty() {
            process.input = None;
        }
    }

    /// Waits for the next thing, and takes it.
    fn step(&mut self) -> anyhow::Result<()> {
        let until = self.proxy.deadline();
        for ready in self.wait(until)? {
            self.take(ready);
        }
        self.proxy.tick(now());
        self.line.flush();
        Ok(())
    }

    fn wait(&self, until: Option<Duration>) -> anyhow::Result<Vec<Ready>> {
        let mut meanings: Vec<(Ready, BorrowedFd<'_>, PollFlags)> = Vec::new();
        let mut watch = |ready, descriptor, flags| meanings.push((ready, descriptor, flags));
        let (input, output) = (rustix::stdio::stdin(), rustix::stdio::stdout());
        if self.line.is_open {
            watch(Ready::Launcher, input, PollFlags::IN);
            if !self.line.outlet.is_empty() {
                watch(Ready::LauncherTakes, output, PollFlags::OUT);
            }
        }
        let takes_bytes = !self.line.outlet.is_full();
        let reads_output = takes_bytes && self.proxy.reads_output();
        for (index, process) in self.processes.iter().enumerate() {
            let outputs = [(Stream::Output, &process.output), (Stream::Error, &process.errors)];
            for (stream, pipe) in outputs {
                if let Some(pipe) = pipe.as_ref().filter(|_| reads_output) {
                    watch(Ready::Output(index, stream), pipe.as_fd(), PollFlags::IN);
                }
            }
            if let Some(pipe) = process.input.as_ref() {
                let waits = !process.waiting_input.is_empty();
                let flags = if waits { PollFlags::OUT } else { PollFlags::empty() };
                watch(Ready::InputTakes(index), pipe.as_fd(), flags);
            }
            if let Some(pmi) = process.pmi.as_ref().filter(|_| takes_bytes) {
                watch(Ready::Pmi(index), pmi.as_fd(), PollFlags::IN);
                if !process.waiting_pmi.is_empty() {
                    watch(Ready::PmiTakes(index), pmi.as_fd(), PollFlags::OUT);
                }
            }
            if let Some(end) = process.end.as_ref().filter(|_| takes_bytes) {
                watch(Ready::End(index), end.as_fd(), PollFlags::IN);
            }
        }
        let mut polled: Vec<PollFd<'_>> = meanings
            .iter()
            .map(|(_, descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags))
            .collect();
        wait(&mut polled, until)?;
        let events = polled.iter().map(|one| !one.revents().is_empty());
        let ready = meanings.iter().zip(events).filter(|(_, is_ready)| *is_ready);
        Ok(ready.map(|((ready, _, _), _)| *ready).collect())
    }

    fn take(&mut self, ready: Ready) {
        match ready {
            Ready::Launcher => {
                self.line.read();
                self.hear();
            }
            Ready::LauncherTakes => self.line.flush(),
            Ready::Output(index, stream) => self.pass_output(index, stream),
            Ready::InputTakes(index) => self.write_input(index),
            Ready::Pmi(index) => {
                self.pass_pmi(index);
            }
            Ready::PmiTakes(index) => {
                if let Some(process) = self.processes.get_mut(index)
                    && let Some(pmi) = process.pmi.as_ref()
                    && process.waiting_pmi.drain(pmi).is_err()
                {
                    process.waiting_pmi.clear();
                }
            }
            Ready::End(index) => self.pass_end(index),
        }
    }

    /// Takes the messages of the launcher that have come.
    fn hear(&mut self) {
        loop {
            match self.line.frames.next_message() {
                Ok(Some(message)) => self.proxy.hear(message, now()),
                Ok(None) => break,
                Err(error) => {
                    eprintln!("weft: the launcher sent {error}");
                    self.line.is_open = false;
                    break;
                }
            }
        }
        if !self.line.is_open {
            self.proxy.lose_launcher(now());
        }
    }

    fn pass_output(&mut self, index: usize, stream: Stream) {
        let Some(process) = self.processes.get_mut(index) else { return };
        let rank = process.rank;
        let pipe = match stream {
            Stream::Output => &mut process.output,
            Stream::Error => &mut process.errors,
        };
        let mut buffer = vec![0; PIECE_BYTES_MAX];
        match pipe.as_ref().map(|pipe| rustix::io::read(pipe, &mut buffer)) {
            Some(Ok(length)) if length > 0 => {
                buffer.truncate(length);
                self.line.send(&FromProxy::Output { rank, stream, bytes: buffer });
            }
            Some(Err(Errno::AGAIN | Errno::INTR)) | None => {}
            Some(_) => *pipe = None,
        }
        self.note_drained(index);
    }

    fn note_drained(&mut self, index: usize) {
        if let Some(process) = self.processes.get(index)
            && process.output.is_none()
            && process.errors.is_none()
        {
            self.proxy.drained(process.rank);
        }
    }

    fn write_input(&mut self, index: usize) {
        let Some(process) = self.processes.get_mut(index) else { return };
        let message = match process.write_input() {
            Some(0) if process.waiting_input.is_empty() => {
                // Ready without anything to write: the process closed its input.
                process.input = None;
                FromProxy::InputClosed
            }
            Some(bytes) => FromProxy::InputTaken(u32::try_from(bytes).unwrap_or(u32::MAX)),
            None => FromProxy::InputClosed,
        };
        self.line.send(&message);
    }

    /// Passes on what a process says by PMI; false when there is no more now.
    fn pass_pmi(&mut self, index: usize) -> bool {
        let Some(process) = self.processes.get_mut(index) else { return false };
        let rank = process.rank;
        let mut buffer = vec![0; PIECE_BYTES_MAX];
        match process.pmi.as_ref().map(|pmi| rustix::io::read(pmi, &mut buffer)) {
            Some(Ok(length)) if length > 0 => {
                buffer.truncate(length);
                self.line.send(&FromProxy::Pmi { rank, bytes: buffer });
                true
            }
            Some(Err(Errno::AGAIN | Errno::INTR)) | None => false,
            Some(_) => {
                process.pmi = None;
                self.line.send(&FromProxy::PmiClosed { rank });
                false
            }
        }
    }

    /// A process ended; what it said before comes first.
    fn pass_end(&mut self, index: usize) {
        // A process that ended can have left no more than the buffer of its socket.
        while !self.line.outlet.is_full() && self.pass_pmi(index) {}
        let Some(process) = self.processes.get_mut(index) else { return };
        let rank = process.rank;
        if let Some(how) = process.reap() {
            process.input = None;
            process.pmi = None;
            self.counts.ended(process.pid(), how);
            self.proxy.ended(rank, how, now());
            self.note_drained(index);
        }
    }
}
