//! A stream socket to the launcher: one request, one answer, within a time.

use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
    sockopt,
};
use rustix::time::{ClockId, clock_gettime};

use crate::Error;
use crate::message::{Decoder, Form, Message};

/// Bytes that are read at once.
const READ_BYTES: usize = 4096;

/// The connection to the launcher. After an error it is of no use.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    decoder: Decoder,
}

impl Connection {
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, decoder: Decoder::default() }
    }

    /// Connects to a host's TCP port; each of its addresses gets `within`.
    pub fn to_port(host: &str, port: u16, within: Duration) -> Result<Self, Error> {
        const REQUEST: &str = "connect";
        let unknown = |error: String| Error::Host { host: host.to_owned(), error };
        let addresses =
            (host, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
        let mut last = unknown("it has no address".to_owned());
        for address in addresses {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(family, SocketType::STREAM, flags, None)
                .map_err(|errno| Error::Connection { request: REQUEST, errno })?;
            let connected = match connect(&socket, &address) {
                Err(Errno::INPROGRESS) => {
                    let connection = Self::new(socket);
                    let ready = connection.wait(PollFlags::OUT, REQUEST, now() + within, within);
                    let connected = sockopt::socket_error(&connection.socket);
                    ready.map(|()| (connection, connected.and_then(|inner| inner)))
                }
                connected => Ok((Self::new(socket), connected)),
            };
            match connected {
                Ok((connection, Ok(()))) => return Ok(connection),
                Ok((_, Err(errno))) => last = Error::Connection { request: REQUEST, errno },
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends a message.
    pub fn send(
        &mut self,
        request: &'static str,
        message: &[u8],
        within: Duration,
    ) -> Result<(), Error> {
        let end = now() + within;
        let mut rest = message;
        while !rest.is_empty() {
            match send(&self.socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, request, end, within)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Closed { request }),
                Err(errno) => return Err(Error::Connection { request, errno }),
            }
        }
        Ok(())
    }

    /// Receives a message.
    pub fn receive(
        &mut self,
        request: &'static str,
        within: Duration,
    ) -> Result<(Form, Message), Error> {
        let end = now() + within;
        let mut buffer = [0; READ_BYTES];
        loop {
            let message = self.decoder.next_message();
            let message = message.map_err(|problem| Error::Malformed { request, problem })?;
            if let Some(message) = message {
                return Ok(message);
            }
            match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(Error::Closed { request }),
                Ok((length, _)) => self.decoder.push(buffer.get(..length).unwrap_or_default()),
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, request, end, within)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::Connection { request, errno }),
            }
        }
    }

    fn wait(
        &self,
        flags: PollFlags,
        request: &'static str,
        end: Duration,
        within: Duration,
    ) -> Result<(), Error> {
        loop {
            let left = end.saturating_sub(now());
            let timeout = Timespec::try_from(left).unwrap_or_default();
            match poll(&mut [PollFd::new(&self.socket, flags)], Some(&timeout)) {
                Ok(0) if left.is_zero() => return Err(Error::NoAnswer { request, within }),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(Error::Connection { request, errno }),
            }
        }
    }
}

/// Monotonic time since an unspecified moment.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}
