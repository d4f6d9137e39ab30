//! One TCP connection to another daemon: its socket, its session, and the bytes that wait.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with};
use weft_membership::{Fault, Message, Session, SessionEvent};

/// Most bytes that wait for a peer before the connection is given up.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;
/// How often a connection is read before the others have their turn.
const READS_A_TURN: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Connecting,
    Open,
    /// The machine has closed it. The last words are on their way, until this time.
    Closing(Instant),
}

/// A connection.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    session: Session,
    output: Vec<u8>,
    /// Bytes of `output` that were written.
    written: usize,
    phase: Phase,
    /// Writing has ended; what comes is read and dropped.
    is_shut: bool,
}

impl Link {
    /// Begins a connection to `address`.
    ///
    /// # Errors
    /// The system refuses at once.
    pub fn dial(address: SocketAddr, session: Session) -> Result<Self, Fault> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fault = |errno: Errno| Fault::Other(format!("no connection: {errno}"));
        let socket =
            socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)).map_err(fault)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(fault(errno)),
        }
        Ok(Self::new(TcpStream::from(socket), session, Phase::Connecting))
    }

    /// A connection that came.
    pub fn accepted(stream: TcpStream, session: Session) -> Self {
        Self::new(stream, session, Phase::Open)
    }

    fn new(stream: TcpStream, session: Session, phase: Phase) -> Self {
        // Messages are short and wait for answers. A connection without it works, too.
        let _ = stream.set_nodelay(true);
        Self { stream, session, output: Vec::new(), written: 0, phase, is_shut: false }
    }

    /// Whether the peer proved that it knows the key.
    pub fn is_proved(&self) -> bool {
        self.session.is_proved()
    }

    /// Whether the machine has closed it.
    pub const fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing(_))
    }

    /// When it is dropped, if it is closing.
    pub const fn ends_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Closing(at) => Some(at),
            _ => None,
        }
    }

    /// Readiness to wait for.
    pub fn interest(&self) -> PollFlags {
        match self.phase {
            Phase::Connecting => PollFlags::OUT,
            _ if self.written < self.output.len() => PollFlags::IN | PollFlags::OUT,
            _ => PollFlags::IN,
        }
    }

    /// Sends a message.
    pub fn send(&mut self, message: &Message) {
        self.session.send(message);
    }

    /// Closes the connection when all was written, or at `until`.
    pub const fn close(&mut self, until: Instant) {
        self.phase = Phase::Closing(until);
    }

    /// Writes if more than `bound` bytes wait. False if they still do then.
    ///
    /// # Errors
    /// The connection is over.
    pub fn flush_if_more_than(&mut self, bound: usize) -> Result<bool, Fault> {
        self.output.extend(self.session.take_output());
        if self.output.len() - self.written > bound {
            self.flush()?;
        }
        Ok(self.output.len() - self.written <= bound)
    }

    /// Writes as much as the kernel takes.
    ///
    /// # Errors
    /// The connection is over.
    pub fn flush(&mut self) -> Result<(), Fault> {
        if self.phase == Phase::Connecting {
            return Ok(());
        }
        self.output.extend(self.session.take_output());
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(Fault::Other("the connection was closed".to_owned())),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.output.drain(..self.written);
                    self.written = 0;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Other(error.to_string())),
            }
        }
        self.output.clear();
        self.written = 0;
        if self.is_closing() && !self.is_shut {
            // The peer reads the last words before it sees the end.
            self.is_shut = true;
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    /// Takes what is there. `events` has what came before a fault.
    ///
    /// # Errors
    /// The connection is over, or the peer broke the protocol.
    pub fn receive(&mut self, events: &mut Vec<SessionEvent>) -> Result<(), Fault> {
        if self.phase == Phase::Connecting {
            match rustix::net::sockopt::socket_error(&self.stream) {
                Ok(Ok(())) => self.phase = Phase::Open,
                Ok(Err(errno)) | Err(errno) => {
                    return Err(Fault::Other(format!("no connection: {errno}")));
                }
            }
        }
        let mut space = [0; READ_BYTES];
        for _ in 0..READS_A_TURN {
            match self.stream.read(&mut space) {
                Ok(0) => return Err(self.ended("its daemon closed the connection", "closed")),
                Ok(_) if self.is_closing() => {}
                Ok(count) => self.session.receive(&space[..count], events)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let how = error.to_string();
                    return Err(self.ended(&how, &how));
                }
            }
        }
        Ok(())
    }

    /// The end of the connection, for a peer that is a daemon of the fabric, and for one that may
    /// be a service of another kind, which hangs up.
    fn ended(&self, of_daemon: &str, of_stranger: &str) -> Fault {
        Fault::Other(match self.is_proved() {
            true => of_daemon.to_owned(),
            false => format!(
                "it ended the connection without a greeting, as one does that is no weft daemon \
                 ({of_stranger})"
            ),
        })
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
